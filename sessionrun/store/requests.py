"""The requests that clients left in a session: how they come, are read, checked and put aside.

A request is a file and one byte in the FIFO `wake`.  Any process that may enter the directory may put anything
there, so nothing of it is trusted.

Where the disk has no room for a file, the request itself goes into the FIFO, as a line of JSON that is written by
one write(2) and small enough not to be torn.  The client learns from the journal that it was taken: nothing else
on such a disk could tell.  This module does not know what a request means.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from sessionrun.model.errors import StoreError
from sessionrun.model.events import REQUEST_KINDS, RequestReceived, TasksAdded
from sessionrun.model.spec import RETRY_FAILED, RETRY_LOST
from sessionrun.store.codec import build
from sessionrun.store.files import open_regular, read_regular, replace_file
from sessionrun.store.session import REFUSED, SessionDir

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
    import termios

    unread = fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(unread, sys.byteorder)


def find_recorded(session: SessionDir, request_id: str, offset: int) -> int | None:
    """The number of the journal's record of a request, looked for from `offset` (bytes) on, if any."""
    try:
        with open(session.journal_path, "rb", opener=open_regular) as stream:
            stream.seek(offset)
            content = stream.read()
    except OSError:
        return None
    place = content.find(request_id.encode())
    end = content.find(b"\n", place)
    if place < 0 or end < 0:
        return None
    line = content[content.rfind(b"\n", 0, place) + 1 : end]
    seq = orjson.loads(line[9:])["seq"]
    return int(seq)


def _path(session: SessionDir, request_id: str) -> Path:
    return session.path / "requests" / f"{request_id}.json"


MAX_BYTES: Final = 8 << 20
"""Room for the longest ids of 60,000 tasks."""

ADD: Final = "add"
"""The kind of a request that brings tasks; its record is that of a TasksAdded."""

Request: TypeAlias = RequestReceived | TasksAdded

MAX_REASON: Final = 300
MAX_TEXT: Final = 1 << 20
"""Longest text of a follow-up (bytes): it fits into a request however it is escaped."""

MAX_FAULTS: Final = 10
"""So many requests that are none are told of, of those that were spoken: a process may go on for ever."""

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def load_requests(session: SessionDir) -> list[tuple[Path, Request | str]]:
    """What waits to be taken, oldest first: requests, and of files that are none what is wrong with them."""
    requests: list[tuple[Path, Request | str]] = []
    for path in sorted((session.path / "requests").glob("*.json"), key=_age):
        try:
            requests.append((path, parse_request(orjson.loads(read_regular(path, MAX_BYTES)), path.stem)))
        except FileNotFoundError:
            continue  # its client took it back
        except Exception as error:  # whatever is in it, the session goes on
            requests.append((path, (error.strerror if isinstance(error, OSError) else None) or str(error)))
    return requests


def parse_request(record: Any, name: str) -> Request:
    """Check a request; `name` is the UUID of its file's name.

    Raises:
        ValueError: it is none that this version knows.
    """
    if not isinstance(record, dict) or record.get("request_id") != name:
        raise ValueError("it is not an object with the request_id of its name")
    kind = record.get("kind")
    if kind == ADD:
        return build(TasksAdded, record)
    if kind not in REQUEST_KINDS:
        raise ValueError(f"this version does not know the kind {kind!r:.40}")
    request = build(RequestReceived, record)
    outcomes, text, change = request.outcomes, None, None
    if kind == "continue":
        text = request.text
        if text is None or not text.strip() or len(text.encode()) > MAX_TEXT:
            raise ValueError(f"text must be a text that is not empty, of at most {MAX_TEXT} bytes")
    if kind == "retry":
        change = request.change
        if not request.tasks and not outcomes:
            outcomes = (*RETRY_FAILED, *RETRY_LOST)
    if change is not None:
        if len((change.prompt or "").encode()) > MAX_TEXT:
            raise ValueError(f"a prompt may have {MAX_TEXT} bytes")
        if any(word is not None and not word.strip() for word in (change.agent, change.model, change.prompt)):
            raise ValueError("agent, model and prompt must not be empty")
    reason = " ".join((request.reason or "").split())[:MAX_REASON] or None
    return replace(request, outcomes=outcomes, reason=reason, text=text, change=change)


class Spoken:
    """Finds requests in what comes out of the FIFO `wake`, among bells and whatever others write there."""

    def __init__(self) -> None:
        self._rest = b""
        self._faults = 0

    def hear(self, content: bytes) -> tuple[list[Request], list[str]]:
        """The requests that are whole by now, and what is wrong with those that are none."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > MAX_SPOKEN_BYTES:  # no request is so long
            self._rest = b""
        requests: list[Request] = []
        faults: list[str] = []
        for line in lines:
            line = line.lstrip(b".")  # bells
            if not line.startswith(b"{"):
                continue
            try:
                record = orjson.loads(line)
                name = record.get("request_id")
                if not isinstance(name, str) or not _UUID.fullmatch(name):
                    raise ValueError("it has no UUID as its request_id")
                requests.append(parse_request(record, name))
            except ValueError as error:
                self._faults += 1
                faults += [str(error)] if self._faults <= MAX_FAULTS else []
        return requests, faults


def put_aside(path: Path) -> None:
    """Take a request that cannot be carried out from among those that wait, where its client finds it."""
    try:
        os.replace(path, path.with_suffix(REFUSED))
    except (IsADirectoryError, NotADirectoryError, FileExistsError):  # of the same name something else was refused
        os.replace(path, path.with_name(f"{path.stem}-{path.lstat().st_ino}{REFUSED}"))


def _age(path: Path) -> tuple[int, str]:
    try:
        return path.lstat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
