"""Room on the disk: how much there is, and how much folders take."""

from __future__ import annotations

import errno
import os
import stat
from math import inf
from pathlib import Path
from typing import Final

from sessionrun.model.errors import NoSpace
from sessionrun.model.frozen import frozen

FLOOR_BYTES: Final = 256 * 1024 * 1024
FLOOR_SHARE: Final = 0.01
"""Below either limit new worktrees wait, so that running tasks can still write their outcome."""


def check_space(folder: Path) -> None:
    """Make sure that a worktree may be made in `folder`, which need not exist yet.

    Raises:
        NoSpace: says how much is free and how much is needed.
    """
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        disk = os.statvfs(folder)
    except OSError:
        return  # PREPARE will report what is wrong with the folder
    free = disk.f_bavail * disk.f_frsize
    floor = max(FLOOR_BYTES, int(disk.f_blocks * disk.f_frsize * FLOOR_SHARE))
    if free < floor:
        mib = 1024 * 1024
        raise NoSpace(f"{free // mib} MiB are free in {folder}; new worktrees wait for {floor // mib} MiB")


@frozen
class Cached:
    """An entry of a cache: when it was used last (wall time), its size (bytes), of which repository (if noted)."""

    path: Path
    used_at: float
    size: int
    repo: str | None = None


def measure(*folders: Path | str, most: float = inf) -> int:
    """How much of the disk the files of folders take (bytes); one with several names counts once.

    Beyond `most` the sum goes no further.  What a task deletes meanwhile, or closes to its user, is not counted.
    A path that is too long to be looked at counts as more than `most`: else a task could hide behind it what it
    writes.
    """
    size, left = 0, [os.fspath(folder) for folder in folders]
    seen: set[tuple[int, int]] = set()
    while left and size <= most:  # os.walk of Python before 3.12 fails on what is deeper than its stack
        try:
            size += _measure_folder(left.pop(), left, seen)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG and most < inf:
                return int(most) + 1
    return size


def _measure_folder(folder: str, left: list[str], seen: set[tuple[int, int]]) -> int:
    """How much of the disk the files in a folder take; the folders in it are added to `left`."""
    size = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                facts = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(facts.st_mode):
                left.append(entry.path)
            elif facts.st_nlink > 1 and (facts.st_dev, facts.st_ino) in seen:
                continue
            elif facts.st_nlink > 1:
                seen.add((facts.st_dev, facts.st_ino))
            size += facts.st_blocks * 512
    return size
