"""Locks that say what lives: flock(2) on a file that is held for life.  That the file exists means nothing.

A lock belongs to the open file, so it ends with the last descriptor of it, however its holder died.  Probing
takes a shared lock for an instant; a process that wants the lock therefore tries for a while.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import open_regular

NAMES: Final = ("lock", "keeper.lock", "root.lock")
"""The locks of a session: of its supervisor, keeper and root."""

LOCK_TIMEOUT_S: Final = 600
LOCK_POLL_S: Final = 0.01


def hold(path: Path | str, *, timeout_s: float = 2.0, mode: int = 0o600, dir_fd: int | None = None) -> int | None:
    """Take the lock for life: the descriptor keeps it.  None when another process has held it all the time.

    The file may be removed or replaced while we wait: then the lock is that of the next file.  With `dir_fd`, the
    descriptor of a directory, `path` is a name in that.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        fd = open_regular(path, os.O_RDWR | os.O_CREAT, mode, dir_fd=dir_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(path, fd, dir_fd):
                return fd
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES) or time.monotonic() > deadline:
                os.close(fd)
                return None
        os.close(fd)
        time.sleep(0.005)


def remove_held(path: Path | str, fd: int, *, dir_fd: int | None = None) -> None:
    """Remove the file of a lock that we hold; a process that waits for it makes the next one.

    A file that another process put in its place stays: that process may hold it.
    """
    with suppress(OSError):  # it stays: a lock without a holder hinders nothing
        if _is_there(path, fd, dir_fd):
            os.unlink(path, dir_fd=dir_fd)


def remove_free(path: Path) -> None:
    """Remove the file of a lock that no process holds."""
    with suppress(OSError):  # it is not there, or held
        fd = open_regular(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_held(path, fd)
        finally:
            os.close(fd)


def _is_there(path: Path | str, fd: int, dir_fd: int | None) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
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


@contextmanager
def hold_lock(path: Path, mode: int = 0o644, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock on a file; one process at a time has it, others wait so long (seconds; below 0: any time)."""
    from filelock import FileLock, Timeout

    # Without flock(2) a "soft" lock would be taken, which outlives its holder: no lock is better.
    lock = FileLock(path, mode=mode, timeout=timeout_s, poll_interval=LOCK_POLL_S, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise SessionrunError(f"{path} was held for {timeout_s:g} s by another process") from None
    try:
        yield
    finally:
        lock.release()
