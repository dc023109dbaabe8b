"""The user's own files: where they are, and the index of where sessions were started.

By the index an id is found from any directory.

One line per session, appended under the user's state directory; a line whose session is gone means nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from sessionrun.store.files import make_directories, no_umask

if TYPE_CHECKING:
    from sessionrun.store.session import SessionDir


Kind = Literal["state", "cache", "config"]

_PLACES: Final[Mapping[Kind, tuple[str, str]]] = {
    "state": ("XDG_STATE_HOME", ".local/state"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "config": ("XDG_CONFIG_HOME", ".config"),
}
_NO_HOME: Final = "/dev/null/HOME is not set"
"""For a user without HOME and without an entry in passwd: a home that can be neither read nor written."""


def user_directory(kind: Kind, environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of this kind; it need not be there.

    On Linux this is platformdirs' answer (XDG Base Directory specification) without its import, which would
    make every launch wait 5 ms.  The specification says that a relative value is ignored.
    """
    if not sys.platform.startswith("linux"):
        import platformdirs

        return Path(getattr(platformdirs, f"user_{kind}_path")("sessionrun"))
    variable, folder = _PLACES[kind]
    base = environ.get(variable, "")
    if not os.path.isabs(base):
        home = environ.get("HOME") or os.path.expanduser("~")
        base = os.path.join(_NO_HOME if home == "~" else home, folder)
    return Path(base, "sessionrun")


def choose_directory(environ: Mapping[str, str], variable: str, usual: Path) -> Path:
    """The directory that a variable names, absolute, or else the usual one."""
    named = environ.get(variable)
    return Path(named).absolute() if named else usual


def find_cache_folder() -> Path:
    """The directory of what sessions of this user make and could make again."""
    return user_directory("cache").resolve()


def index_path() -> Path:
    """The index file, in the user's state directory."""
    return user_directory("state") / "sessions"


def limits_path() -> Path:
    """The directory beside it with what sessions tell each other of limits; see `session.partners`."""
    return index_path().with_name("limits")


def remember(session: Path) -> None:
    """Note a new session's directory.

    Raises:
        OSError: the index cannot be written; the session runs all the same.
    """
    path = index_path()
    line = os.fsencode(session) + b"\n"
    if b"\n" in line[:-1]:
        return
    make_directories(path.parent, 0o700)
    with no_umask():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


def sessions() -> list[SessionDir]:
    """The sessions of the index that still exist, oldest first."""
    from sessionrun.store.session import SessionDir

    paths = map(Path, _read_paths())
    return [SessionDir(path) for path in paths if path.is_absolute() and os.path.exists(path / "spec.json")]


def results_dirs() -> list[str]:
    """The directories of the index in which sessions were started and that are there; each once."""
    return [path for path in dict.fromkeys(map(os.path.dirname, _read_paths())) if os.path.isdir(path)]


def _read_paths() -> list[str]:
    try:
        lines = index_path().read_bytes().splitlines()
    except OSError:
        return []
    return [os.fsdecode(line) for line in dict.fromkeys(lines)]
