"""How much of the disk the files of folders take: what a task can write has a limit, if its plan says so."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final

LOOK_S: Final = 1.0
"""How long the pause between two looks is at least (seconds)."""

BUSY_FACTOR: Final = 10.0
"""A pause is at least so many times as long as the look took."""

FOLDERS: Final = "walls-folders"
"""In the folder of a job on a node that has such a limit: a JSON list of the folders that are measured."""

FILLED: Final = "walls-filled"
"""In the folder of such a job: the limit ended it."""


def find_pause(took_s: float) -> float:
    """How long to wait before the next look (seconds), if this one took so long."""
    return max(LOOK_S, BUSY_FACTOR * took_s)


def is_over(folders: Sequence[str], limit: int) -> bool:
    """Whether the files of folders take more than `limit` bytes of the disk; one with several names counts once.

    What a task deletes meanwhile, or closes to its user, is not counted.  A path that is too long to be looked at
    counts as all of the limit: else a task could hide behind it what it writes.
    """
    size, left = 0, list(folders)
    seen: set[tuple[int, int]] = set()
    while left and size <= limit:
        try:
            size += _measure_folder(left.pop(), left, seen)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return True
    return size > limit


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
