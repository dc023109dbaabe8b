"""Room on the disk that is kept for the logs: a file that is given up when nothing else can be written.

What runs when a disk fills up will end, and how it ended must be recorded: so a session holds a little room from
its start.  Once that is given up nothing new is started until it can be had again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sessionrun.store.files import replace_file

NAME: Final = "reserve"
SMALLEST_BYTES: Final = 64 * 1024
BYTES_PER_TASK: Final = 1024
"""The records of a task's end in both logs."""

LARGEST_BYTES: Final = 1024 * 1024
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def make_reserve(path: Path, tasks: int) -> bool:
    """Take the room for that many tasks; False when it cannot be had.  Once taken it is left as it is."""
    if path.exists():
        return True
    size = min(SMALLEST_BYTES + BYTES_PER_TASK * tasks, LARGEST_BYTES)
    try:
        replace_file(path, b"\0" * size, durable=False)  # written, because fallocate is not everywhere
    except OSError:
        return False
    return True


def give_up_reserve(path: Path) -> bool:
    """Make the room free; False when there is none."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def find_shortage(session: Path) -> dict[str, int | str | None] | None:
    """What is free on the disk of a session where that is too little to start anything; None: there is enough.

    `free_bytes` and `free_inodes` are what this user may still take; file systems without a number of inodes have
    null.  A reserve that is there is room enough while a block and an inode are left.
    """
    try:
        disk = os.statvfs(session)
    except OSError:
        return None
    is_root = os.geteuid() == 0
    free = (disk.f_bfree if is_root else disk.f_bavail) * disk.f_frsize
    inodes = (disk.f_ffree if is_root else disk.f_favail) if disk.f_files else None
    wanted = disk.f_frsize if os.path.lexists(session / NAME) else SMALLEST_BYTES
    if free >= wanted and inodes != 0:
        return None
    return {"path": os.fspath(session.absolute().parent), "free_bytes": free, "free_inodes": inodes}


def describe_shortage(shortage: Mapping[str, int | str | None]) -> str:
    """The same in words."""
    inodes = "" if shortage["free_inodes"] is None else f" / {shortage['free_inodes']} inodes"
    return f"{shortage['free_bytes']} bytes{inodes} free in {shortage['path']}"
