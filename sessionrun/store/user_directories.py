"""Where the user's own files of `sessionrun` are: what it remembers, what it can make again, what the user set."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

Kind = Literal["state", "cache", "config"]

_PLACES: Final[Mapping[Kind, tuple[str, str]]] = {
    "state": ("XDG_STATE_HOME", ".local/state"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "config": ("XDG_CONFIG_HOME", ".config"),
}
_NO_HOME: Final = "/dev/null/HOME is not set"
"""For a user without HOME and without an entry in passwd: like a home that can be neither read nor written."""


def user_directory(kind: Kind) -> Path:
    """The directory of this kind; it need not be there.

    On Linux this is platformdirs' answer (XDG Base Directory specification) without its import, which would
    make every launch wait 5 ms.  The specification says that a relative value is ignored.
    """
    variable, folder = _PLACES[kind]
    base, home = os.environ.get(variable, ""), os.environ.get("HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(home, folder) if home else ""
    if sys.platform.startswith("linux") and base:
        return Path(base, "sessionrun")
    import platformdirs

    paths = {
        "state": platformdirs.user_state_path,
        "cache": platformdirs.user_cache_path,
        "config": platformdirs.user_config_path,
    }
    try:
        return paths[kind]("sessionrun")
    except RuntimeError:
        return Path(_NO_HOME)


def find_cache_folder() -> Path:
    """The directory of what sessions of this user make and could make again."""
    return user_directory("cache").resolve()
