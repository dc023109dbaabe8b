"""Copies files into an environment of a task: blocks are shared where the file system can, never inodes.

A hard link would be one file under two names: a task that writes to a file of its environment in place would
change the cache and the environments of all others.  So nothing is linked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from typing import Final

_FICLONE: Final = 0x40049409
"""ioctl(2) of Linux: the new file shares the blocks of the other until one of them is written."""

_CANNOT: Final = frozenset(
    (
        errno.EOPNOTSUPP,
        errno.ENOTTY,
        errno.EXDEV,
        errno.EINVAL,
        errno.EPERM,
        errno.ENOSYS,
        errno.EBADF,
        errno.EACCES,
    )
)
_WORTH_BYTES: Final = 64 * 1024
"""Below this, reading and writing is as fast as sharing."""

_CHUNK: Final = 4 * 1024 * 1024


class Copier:
    """Copies files of one tree; remembers whether its file system can share blocks."""

    def __init__(self) -> None:
        self._can_share = sys.platform == "linux"
        self.shared = 0
        """How many files share their blocks with the cache."""

    def copy(self, origin: int, target: str, size: int, mode: int, times: tuple[int, int]) -> None:
        """Make a new file with the bytes of an open one.

        Args:
            origin: the open file.
            target: the path of the new one, which must not be there.
            size: of it (bytes).
            mode: of the new one.
            times: of the last access and change (ns).

        Raises:
            OSError: it cannot be made.
        """
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            if not (size >= _WORTH_BYTES and self._share(origin, fd)):
                _transfer(origin, fd, size)
            os.utime(fd, ns=times)
        finally:
            os.close(fd)

    def _share(self, origin: int, fd: int) -> bool:
        if not self._can_share:
            return False
        try:
            fcntl.ioctl(fd, _FICLONE, origin)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            self._can_share = False
            return False
        self.shared += 1
        return True


def write_new(target: str, content: bytes, mode: int) -> None:
    """Make a new file.

    Raises:
        OSError: it cannot be made.
    """
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        _write(fd, content)
    finally:
        os.close(fd)


def _transfer(origin: int, fd: int, size: int) -> None:
    while chunk := os.read(origin, min(_CHUNK, max(1, size))):
        _write(fd, chunk)


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
