"""Which interpreter and which uv make an environment, and what about them decides what can be installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.store.interpreters import ask, locate_python, locate_uv
from sessionrun.worktrees.env_request import EnvironmentProblem

NO_UV: Final = "it is made by uv, which is not on PATH: pip install uv"

_PROGRAM: Final = """
import _imp, os, sys
base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
own = sys.implementation
about = (sys.version, own.name, own.cache_tag, sys.platform, os.uname().machine, _imp.extension_suffixes())
print(base, repr((*about, os.path.realpath(sys.base_prefix))), sep=chr(0), end="")
"""
"""Imports nothing that an interpreter does not have at its start: `sysconfig` alone takes longer than that."""

_NOT_PASSED_ON: Final = (
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH"),
    *("PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__"),
)
"""Variables by which another environment would get into the one that is made, or its compiled files out of it."""


@frozen
class Programs:
    """From what an environment is made: the paths of the base interpreter and of uv.

    `about` is what both say of themselves: it decides with the inputs what is made.
    """

    python: str
    uv: str
    about: tuple[str, ...]


def clean_environ(environ: Mapping[str, str], *, without: str) -> dict[str, str]:
    """The user's variables for programs that make an environment, with PATH without the folder `without`."""
    kept = {name: value for name, value in environ.items() if name not in _NOT_PASSED_ON}
    return {
        **kept,
        "PATH": os.pathsep.join(part for part in kept.get("PATH", "").split(os.pathsep) if part != without),
        "GIT_OPTIONAL_LOCKS": "0",
        "UV_LINK_MODE": "copy",  # a hard link would be one file with uv's own cache
        "UV_NO_PROGRESS": "1",
    }


def find_programs(wanted: str | None, environ: Mapping[str, str], cwd: str | None = None) -> Programs:
    """The base interpreter that is wanted, by its real path, and the first uv of PATH.

    Args:
        wanted: a version, a path, or None for the first of PATH.
        environ: variables of programs that are asked.
        cwd: where these begin; None: where this process is.  Some read files of the project there, or run them.

    Raises:
        EnvironmentProblem: one of them is not there, or does not run.
    """
    program, uv = locate_python(wanted, environ, cwd), locate_uv(environ)
    if program is None:
        raise EnvironmentProblem(f"there is no Python {wanted}" if wanted else "there is no python3 on PATH")
    if uv is None:
        raise EnvironmentProblem(NO_UV)
    try:
        answer = ask([program, "-I", "-S", "-X", "utf8", "-c", _PROGRAM], environ, cwd)
        python, about = answer.split("\0")
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvironmentProblem(f"{program} is no Python that runs: {error}") from None
    try:
        return Programs(python, uv, (python, about, ask([uv, "--version"], environ, cwd)))
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(f"{uv} does not run: {error}") from None
