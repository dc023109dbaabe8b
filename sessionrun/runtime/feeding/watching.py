"""Waits for changes of a queue's files without looking at them: inotify(7), on Linux and disks of this machine.

Elsewhere, and where the user's watches are used up, there is no watch, and the files have to be looked at.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sessionrun.queue.signature import is_written
from sessionrun.store.filesystem import find_file_system

LOCAL: Final = ("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "tmpfs", "overlay")
"""Where the kernel knows of all that changes: no other machine writes there."""

_WHOLE: Final = 0x0008 | 0x0040 | 0x0080 | 0x0200
"""Of a file in the directory: closed after writing, moved away, moved in, deleted."""

_PARTS: Final = 0x0002 | 0x0100
"""Written, made.  A program with a database keeps its files open; a text can only be read when it is closed."""

_MOVED, _ONLY_DIRECTORIES = 0x0800, 0x01000000
_LOST, _GONE = 0x4000, 0x8000
"""Events were lost; the watch has ended."""

_EVENT: Final = struct.Struct("iIII")
_MOST_BYTES: Final = 64 * 1024


class Watch:
    """A thread that waits for changes in one directory, until `end` or until the directory is moved or deleted."""

    def __init__(self, libc: Any, fd: int, mark: int, concerns: Callable[[str], bool], rest_s: float) -> None:
        """See `watch`."""
        self._libc, self._fd, self._mark = libc, fd, mark
        self._concerns, self._rest_s = concerns, rest_s
        self._ended = threading.Event()
        self._thread: threading.Thread
        self.lives = True
        """Whether changes are noticed."""

    def begin(self, notice: Callable[[], None]) -> None:
        """Start the thread, which calls `notice`."""
        self._thread = threading.Thread(target=self._run, args=(notice,), name="watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread; nothing is noticed any more."""
        self._ended.set()
        self._libc.inotify_rm_watch(self._fd, self._mark)  # makes a last event, for which the thread waits
        self._thread.join()
        os.close(self._fd)

    def _run(self, notice: Callable[[], None]) -> None:
        while self.lives:
            concerns, self.lives = self._judge(os.read(self._fd, _MOST_BYTES))
            if concerns or not self.lives:
                notice()
                self._ended.wait(self._rest_s)

    def _judge(self, events: bytes) -> tuple[bool, bool]:
        """Whether one of the events concerns the queue, and whether others can come."""
        concerns, at = False, 0
        while at < len(events):
            _, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size
            name = os.fsdecode(events[at : at + length].rstrip(b"\0"))
            at += length
            if mask & (_GONE | _MOVED):
                return True, False
            concerns = concerns or bool(mask & _LOST) or self._concerns(name)
        return concerns, True


def watch_queue(kept: Path, rest_s: float) -> Watch | None:
    """Return a watch of what keeps a queue, which has yet to begin; None: there can be none.

    Args:
        kept: the queue's file, which need not be there, or its directory.
        rest_s: how long to wait after a notice, if it is a directory: its program may write in there to read.
    """
    if kept.is_dir():
        return _watch(kept, _WHOLE | _PARTS, is_written, rest_s)
    return None if kept.is_symlink() else _watch(kept.parent, _WHOLE, lambda name: name == kept.name, 0.0)


def _watch(directory: Path, changes: int, concerns: Callable[[str], bool], rest_s: float) -> Watch | None:
    if sys.platform != "linux" or find_file_system(directory) not in LOCAL:
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0:
        return None
    mark = libc.inotify_add_watch(fd, os.fsencode(directory), changes | _MOVED | _ONLY_DIRECTORIES)
    if mark < 0:
        os.close(fd)
        return None
    return Watch(libc, fd, mark, concerns, rest_s)
