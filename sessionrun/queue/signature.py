"""Whether a queue may have changed: what stat(2) says of its file, or of the files in its directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

Signature = tuple[tuple[str, int, int, int], ...]

_MOST: Final = 1000


def read_signature(place: Path) -> Signature:
    """Return what differs after a change; nothing if the queue is not there.

    Of a directory the files in it count, not those further below: not every backend shows a change there.
    """
    path = os.fspath(place)
    found = [_look(path)]
    try:
        found += [_look(os.path.join(path, name)) for name in sorted(os.listdir(path))[:_MOST]]
    except OSError:
        pass  # it is a file, or it is gone
    return tuple(one for one in found if one is not None)


def _look(path: str) -> tuple[str, int, int, int] | None:
    try:
        inode = os.stat(path)
    except OSError:
        return None
    return path, inode.st_ino, inode.st_mtime_ns, inode.st_size
