"""Tells when a file was replaced: inotify(7) on Linux, a look at its state from time to time elsewhere.

A queue is replaced by a rename, so its directory is watched.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_IN_CLOSE_WRITE: Final = 0x8
_IN_MOVED_TO: Final = 0x80
_IN_CREATE: Final = 0x100
_IN_DELETE: Final = 0x200
_EVENTS: Final = _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE


class Watch:
    """Watches one file; `fd` becomes readable when something happens beside it (None: it has to be asked)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._look()
        self.fd = _open(path.parent)

    def has_changed(self) -> bool:
        """Whether the file is another one than at the last question."""
        if self.fd is not None:
            _drain(self.fd)
        state = self._look()
        changed, self._state = state != self._state, state
        return changed

    def close(self) -> None:
        """Watch no longer."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _open(folder: Path) -> int | None:
    """A descriptor of inotify for a directory; None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if fd < 0:
            return None
        if libc.inotify_add_watch(fd, os.fsencode(folder), _EVENTS) < 0:
            os.close(fd)
            return None
    except (OSError, AttributeError):
        return None
    return fd


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 65536):
            pass
    except BlockingIOError:
        pass
