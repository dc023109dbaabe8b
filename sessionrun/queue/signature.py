"""Whether a queue may have changed: what stat(2) says of its file, or of the files in its directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

Signature = tuple[tuple[str, int, int, int], ...]

_WRITTEN: Final = ("-wal", ".jsonl", "last-touched")
"""How the names of files end that a program of Beads writes with a change; others it touches to read, too."""


def read_signature(place: Path) -> Signature:
    """Return what differs after a change; nothing if the queue is not there.

    Not every version of a program shows each change in these files: a queue in a directory has to be loaded now
    and then all the same.
    """
    path = os.fspath(place)
    try:
        names = sorted(filter(is_written, os.listdir(path)))
    except NotADirectoryError:
        names = [""]
    except OSError:
        return ()
    found = [_look(os.path.join(path, name) if name else path) for name in names]
    return tuple(one for one in found if one is not None)


def is_written(name: str) -> bool:
    """Whether a file of a queue in a directory is written with each change, by its name."""
    return name.endswith(_WRITTEN)


def _look(path: str) -> tuple[str, int, int, int] | None:
    try:
        inode = os.stat(path)
    except OSError:
        return None
    return path, inode.st_ino, inode.st_mtime_ns, inode.st_size
