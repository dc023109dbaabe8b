"""Room on the disk: no new worktree on a disk that is nearly full."""

from __future__ import annotations

import os
from contextlib import suppress
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


def measure(path: Path) -> int:
    """How much room a directory takes on the disk (bytes)."""
    total, left = 0, [os.fspath(path)]
    while left:  # os.walk of Python before 3.12 fails on directories that are deeper than its stack
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
