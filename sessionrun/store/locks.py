"""Locks that say what lives: flock(2) on a file that is held for life.  That the file exists means nothing.

A lock belongs to the open file, so it ends with the last descriptor of it, however its holder died.  Probing
takes a shared lock for an instant; a process that wants the lock therefore tries for a while.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.store.files import open_regular

NAMES: Final = ("lock", "keeper.lock", "root.lock")
"""The locks of a session: of its supervisor, keeper and root."""


def hold(path: Path, *, timeout_s: float = 2.0) -> int | None:
    """Take the lock for life: the descriptor keeps it.  None when another process has held it all the time.

    The file may be removed while we wait (see `remove_free`): then the lock is that of the next file.

    Raises:
        OSError: the file cannot be opened.
    """
    fd = open_regular(path, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return fd
            os.close(fd)
            fd = open_regular(path, os.O_RDWR | os.O_CREAT)
            continue
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES) or time.monotonic() > deadline:
                os.close(fd)
                return None
        time.sleep(0.005)


def remove_free(path: Path) -> None:
    """Remove the file of a lock that no process holds.  It goes while we hold it, so no other process takes it."""
    with suppress(OSError):  # it is not there, or held
        fd = open_regular(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
                os.unlink(path)
        finally:
            os.close(fd)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock."""
    try:
        fd = open_regular(path)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
