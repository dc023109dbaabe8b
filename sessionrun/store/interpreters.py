"""Which Python and which uv there are, by the variables of a program that would run them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from sessionrun.store import programs

ASK_S: Final = 60.0
"""How long such a program may take to answer (seconds)."""


def locate_python(wanted: str | None, environ: Mapping[str, str], cwd: str | None) -> str | None:
    """The path of the Python that is wanted; None: there is none.

    Args:
        wanted: a version, a path, or None for the first of PATH.
        environ: variables of programs that are asked.
        cwd: where these begin; None: where this process is.
    """
    if wanted is not None and os.sep in wanted:
        names = [os.path.expanduser(wanted)]
    else:
        names = ["python3", "python"] if wanted is None else [f"python{wanted}", wanted]
    found = (shutil.which(name, path=environ.get("PATH")) for name in names)
    program = next(filter(None, found), None)
    uv = locate_uv(environ)
    if program is None and wanted is not None and uv is not None:
        try:  # one that uv has installed
            program = ask([uv, "python", "find", "--no-python-downloads", wanted], environ, cwd) or None
        except (OSError, subprocess.SubprocessError):
            pass
    return program


def locate_uv(environ: Mapping[str, str]) -> str | None:
    """The path of uv, if there is one on PATH."""
    return shutil.which("uv", path=environ.get("PATH"))


def ask(argv: list[str], environ: Mapping[str, str], cwd: str | None) -> str:
    """What a program answers.

    Raises:
        OSError, subprocess.SubprocessError: it does not run.
    """
    done = programs.run(argv, environ=environ, cwd=cwd, limit_s=ASK_S)
    done.check_returncode()
    return done.stdout.decode("utf-8", "surrogateescape").strip()
