"""Clears the way of mounts: what a task has put in the place of a directory on it.

Bubblewrap makes the places of mounts that are not there, and follows links on the way to them, while all of the
machine can still be written.  By a link in its /tmp, where a later job of it has a mount, a task would so make
directories and empty files outside.  No process of a task lives when a job of it is started.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from sessionrun.walls.argv import Walls, list_mounts


def clear_ways(walls: Walls) -> None:
    """Delete what lies in the way of the mounts of walls in what a task can write.

    Raises:
        OSError: something cannot be deleted or looked at.
    """
    mounts = list_mounts(walls)
    # what a task can write, and outlives a job: where it is, and where it is inside
    writable = [mount[1:] for mount in mounts if mount[0] == "--bind" and os.path.isdir(mount[1])]
    for *_, place in mounts:
        for folder, inside in writable:
            if place.startswith(f"{inside}/"):
                _clear(folder, place[len(inside) + 1 :].split("/"))


def _clear(folder: str, parts: Sequence[str]) -> None:
    """Delete the first of `parts`, names below each other, that is no directory; the last one may be a file."""
    path = folder
    for number, part in enumerate(parts, 1):
        path = os.path.join(path, part)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            if number < len(parts) or not stat.S_ISREG(mode):
                os.unlink(path)
            return
