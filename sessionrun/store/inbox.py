"""How a client's request comes to a session's supervisor: a file and one byte in the FIFO `wake`.

Where the disk has no room for a file, the request itself goes into the FIFO, as a line of JSON that is written by
one write(2) and small enough not to be torn.  The client learns from the journal that it was taken: nothing else
on such a disk could tell.  This module does not know what a request means.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from sessionrun.model.errors import StoreError
from sessionrun.store.files import open_regular

if TYPE_CHECKING:
    from sessionrun.store.session import SessionDir

MAX_SPOKEN_BYTES: Final = getattr(select, "PIPE_BUF", 512)
"""So much is written into a FIFO whole or not at all."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class NoRoom(StoreError):
    """The disk has no room for the file of a request."""


def send_request(session: SessionDir, record: dict[str, Any]) -> tuple[str, bool]:
    """Leave a request and ring; return its id and whether a supervisor listens.

    Raises:
        NoRoom: the disk takes no new file; `spell_request` and `speak` may do.
        StoreError: it cannot be written for another reason.
    """
    from sessionrun.store.files import replace_file

    request_id = str(uuid.uuid4())
    path = _path(session, request_id)
    try:
        content = orjson.dumps({"request_id": request_id, **record})
        replace_file(path, content, durable=True, sweeps=False)  # its name is its own, and there may be thousands
    except OSError as error:
        kind = NoRoom if error.errno in _NO_ROOM else StoreError
        raise kind(f"cannot write {path}: {error.strerror}") from error
    return request_id, ring(session)


def has_request(session: SessionDir, request_id: str) -> bool:
    """Whether the request's file still waits to be taken."""
    return os.path.lexists(_path(session, request_id))


def drop_request(session: SessionDir, request_id: str) -> None:
    """Acknowledge a request: its journal record is durable."""
    _path(session, request_id).unlink(missing_ok=True)


def ring(session: SessionDir) -> bool:
    """Wake the supervisor to look for requests; False: none listens."""
    fd = open_wake(session)
    if fd is None:
        return False
    try:
        return speak(fd, b".")
    finally:
        os.close(fd)


def open_wake(session: SessionDir) -> int | None:
    """The writing end of the FIFO; None: no supervisor listens."""
    try:
        return os.open(session.wake_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # ENXIO: no supervisor listens
        return None


def speak(fd: int, line: bytes) -> bool:
    """Write into the FIFO; False: the supervisor has left in this very moment."""
    try:
        os.write(fd, line)
    except BlockingIOError:
        pass  # so full that its reader wakes anyway
    except BrokenPipeError:
        return False
    return True


def spell_request(record: dict[str, Any]) -> tuple[str, bytes]:
    """A request as the line that is spoken, with its id; what stands before it on a line is not a part of it.

    Raises:
        StoreError: it is too long for that.
    """
    request_id = str(uuid.uuid4())
    line = b"\n%b\n" % orjson.dumps({"request_id": request_id, **record})
    if len(line) > MAX_SPOKEN_BYTES:
        raise StoreError(
            "the disk is full and the request is too long for it: name fewer tasks, write less, or make room"
        )
    return request_id, line


def count_unread(fd: int) -> int:
    """How many bytes wait in the FIFO to be read."""
    import fcntl
    import termios

    unread = fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(unread, sys.byteorder)


def find_recorded(session: SessionDir, request_id: str, offset: int) -> int | None:
    """The number of the journal's record of a request, looked for from `offset` (bytes) on, if any."""
    try:
        fd = open_regular(session.journal_path)
    except OSError:
        return None
    try:
        content = os.pread(fd, max(0, os.fstat(fd).st_size - offset), offset)
    finally:
        os.close(fd)
    place = content.find(request_id.encode())
    end = content.find(b"\n", place)
    if place < 0 or end < 0:
        return None
    line = content[content.rfind(b"\n", 0, place) + 1 : end]
    seq = orjson.loads(line[9:])["seq"]
    return int(seq)


def _path(session: SessionDir, request_id: str) -> Path:
    return session.path / "requests" / f"{request_id}.json"
