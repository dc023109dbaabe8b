"""Opening regular files where somebody may have put something else: never followed, never waited for.

A task, or another user of a shared directory, can put a link, FIFO, device or directory in the place of any
file of a session.  Opened as usual, a link leads astray and a FIFO blocks for ever.  Files of a session are opened
here, but for those that the kernel opens in a child (see `keeper.children`).

The keeper imports this module without site-packages.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SAYS_OTHER: Final = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR)
"""What open(2) itself refuses with: a link (as FreeBSD says it, too), a FIFO or socket, a directory."""


class NotRegular(OSError):
    """Something else than a regular file lies there."""


def open_regular(path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a file, private if it is made and nothing else is said; not blocking, which means nothing to it.

    Raises:
        NotRegular: a link, FIFO, device, socket or directory lies there.
        OSError: it cannot be opened.
    """
    try:
        fd = os.open(path, flags | _FLAGS, mode)
    except OSError as error:
        if error.errno in _SAYS_OTHER:
            raise _refuse(path) from error
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise _refuse(path)


def read_regular(path: Path, limit: int | None = None) -> bytes:
    """Read a file whole; one that is not regular, or has more than `limit` bytes, is refused.

    Raises:
        NotRegular: see `open_regular`.
        OSError: it is too large (EFBIG), or cannot be read.
    """
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        if limit is not None and size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", os.fspath(path))
        content = os.read(fd, size)
        while len(content) < size and (more := os.read(fd, size - len(content))):
            content += more
        return content
    finally:
        os.close(fd)


def find_mode(path: Path) -> int:
    """The permissions that a file of the user has when it is replaced: those it had, else the usual ones."""
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return 0o666


def _refuse(path: Path | str) -> NotRegular:
    return NotRegular(errno.EINVAL, "not a regular file", os.fspath(path))
