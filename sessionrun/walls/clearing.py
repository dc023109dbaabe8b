"""Clears the way of mounts: what a task has put in the place of a directory on it.

Bubblewrap makes the places of mounts that are not there, and follows links on the way to them, while all of the
machine can still be written.  By a link in its /tmp, where a later job of it has a mount, a task would so make
directories and empty files outside.  No process of a task lives when a job of it is started.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from sessionrun.walls.argv import BASE_LARGE, BASE_OBJECTS, TMP, Walls


def clear_ways(walls: Walls) -> None:
    """Delete what lies in the way of the mounts of walls in what a task can write.

    Raises:
        OSError: something cannot be deleted or looked at.
    """
    writable = list(_find_writable(walls))
    for place in _find_places(walls):
        for folder, inside in writable:
            if place.startswith(f"{inside}/"):
                _clear(folder, place[len(inside) + 1 :].split("/"))


def _find_writable(walls: Walls) -> Iterator[tuple[str, str]]:
    """What a task can write, and outlives a job: where it is, and where it is inside."""
    yield walls.tmp, TMP
    if walls.view is not None and walls.common_dir is not None:
        yield walls.view, walls.common_dir
    if walls.worktree is not None:
        yield walls.worktree, walls.worktree
    yield from ((place, inside) for place, inside in walls.binds if os.path.isdir(place))


def _find_places(walls: Walls) -> Iterator[str]:
    """All places inside that get a mount and may lie in what a task can write."""
    for path in (walls.home, walls.top, walls.worktree, walls.common_dir):
        if path is not None:
            yield path
    if walls.common_dir is not None:
        yield from (
            f"{walls.common_dir}/{name}" for name in (BASE_OBJECTS, "hooks", "modules", f"{BASE_LARGE}/lfs")
        )
    if walls.worktree is not None:
        yield f"{walls.worktree}/.git"
    yield from (
        *walls.shown,
        *walls.again,
        *walls.masked_folders,
        *walls.masked_files,
        *walls.hidden,
        *walls.devices,
    )
    yield from (inside for _, inside in (*walls.binds, *walls.ro_binds))
    yield from (name for name, _ in walls.links)


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
