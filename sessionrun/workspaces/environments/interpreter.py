"""Which interpreter an environment is made from, and what about it decides what can be installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.store import programs
from sessionrun.workspaces.environments.request import EnvironmentProblem

_ASK_S: Final = 60.0

_PROGRAM: Final = """
import _imp, os, sys
found = next(filter(None, (finder.find_spec("ensurepip", None) for finder in sys.meta_path)), None)
try:
    bundled = os.listdir(os.path.join(os.path.dirname(found.origin), "_bundled"))
except (AttributeError, OSError):
    bundled = []
base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
own = sys.implementation
print(base, sys.version, own.name, own.cache_tag or "", f"{sys.platform} {os.uname().machine}",
    " ".join(_imp.extension_suffixes()), os.path.realpath(sys.base_prefix), " ".join(sorted(bundled)),
    sep=chr(0), end="")
"""
"""Imports nothing that an interpreter does not have at its start: `sysconfig` alone takes longer than that."""

_NOT_PASSED_ON: Final = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONPYCACHEPREFIX",
    "PYTHONSTARTUP",
    "__PYVENV_LAUNCHER__",
)
"""Variables by which another environment would get into the one that is made, or its compiled files out of it."""


@frozen
class Interpreter:
    """A base interpreter: its real path, and what it says of itself.

    `bundled` are the wheels from which it makes the pip of a new environment; "" where there are none.
    """

    program: str
    version: str
    implementation: str
    cache_tag: str
    platform: str
    abi: str
    prefix: str
    bundled: str


@frozen
class Installer:
    """What installs: a path of uv, or None for the pip that Python brings; and its version."""

    uv: str | None
    version: str


def clean_environ(environ: Mapping[str, str], *, without: str | None = None) -> dict[str, str]:
    """The user's variables for programs that make an environment, with PATH without the folder `without`."""
    kept = {name: value for name, value in environ.items() if name not in _NOT_PASSED_ON}
    if without is not None:
        kept["PATH"] = os.pathsep.join(part for part in kept.get("PATH", "").split(os.pathsep) if part != without)
    return {
        **kept,
        "GIT_OPTIONAL_LOCKS": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_USER": "0",
        "UV_LINK_MODE": "copy",  # a hard link would be one file with uv's own cache
        "UV_NO_PROGRESS": "1",
    }


def find_interpreter(wanted: str | None, environ: Mapping[str, str], cwd: str | None = None) -> Interpreter:
    """The interpreter that is wanted: a version, a path, or None for the first of PATH.

    Args:
        wanted: which.
        environ: variables of programs that are asked.
        cwd: where these begin; None: where this process is.  Some read files of the project there, or run them.

    Raises:
        EnvironmentProblem: there is none, or it does not run.
    """
    program = _find_program(wanted, environ, cwd)
    try:
        answer = _ask([program, "-I", "-S", "-X", "utf8", "-c", _PROGRAM], environ, cwd)
        return Interpreter(*answer.decode("utf-8", "surrogateescape").split("\0"))
    except (OSError, subprocess.SubprocessError, TypeError) as error:
        raise EnvironmentProblem(f"{program} is no Python that runs: {error}") from None


def list_programs(wanted: str | None, environ: Mapping[str, str]) -> list[str]:
    """The programs of PATH from which an environment is made, as far as they are there: the interpreter and uv."""
    uv = shutil.which("uv", path=environ.get("PATH"))
    try:
        return [_find_program(wanted, environ, "/"), *([uv] if uv else [])]
    except EnvironmentProblem:
        return []  # the build says so


def find_installer(interpreter: Interpreter, environ: Mapping[str, str], cwd: str | None = None) -> Installer:
    """uv where it is installed, else the pip that comes with the interpreter; `cwd` is as of `find_interpreter`.

    Raises:
        EnvironmentProblem: there is neither.
    """
    uv = shutil.which("uv", path=environ.get("PATH"))
    if uv is not None:
        version = _run([uv, "--version"], environ, cwd)
        if version is not None:
            return Installer(uv, version)
    if not interpreter.bundled:
        raise EnvironmentProblem(
            f"{interpreter.program} brings no pip (no ensurepip): install its venv package, or install uv"
        )
    return Installer(None, interpreter.bundled)


def _find_program(wanted: str | None, environ: Mapping[str, str], cwd: str | None) -> str:
    path = environ.get("PATH")
    if wanted is not None and os.sep in wanted:
        program: str | None = shutil.which(os.path.expanduser(wanted))
    else:
        names = ("python3", "python") if wanted is None else (f"python{wanted}", wanted)
        program = next((resolved for name in names if (resolved := shutil.which(name, path=path))), None)
    uv = shutil.which("uv", path=path) if program is None and wanted is not None else None
    program = program or (_ask_uv(uv, wanted or "", environ, cwd) if uv else None)
    if program is None:
        raise EnvironmentProblem(f"there is no Python {wanted}" if wanted else "there is no python3 on PATH")
    return program


def _ask_uv(uv: str, wanted: str, environ: Mapping[str, str], cwd: str | None) -> str | None:
    """A Python that uv has installed."""
    done = _run([uv, "python", "find", "--no-python-downloads", wanted], environ, cwd)
    return done or None


def _ask(argv: list[str], environ: Mapping[str, str], cwd: str | None) -> bytes:
    done = programs.run(argv, environ=environ, cwd=cwd, limit_s=_ASK_S)
    done.check_returncode()
    return done.stdout


def _run(argv: list[str], environ: Mapping[str, str], cwd: str | None) -> str | None:
    """What a program prints; None where it fails."""
    try:
        return _ask(argv, environ, cwd).decode().strip()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
