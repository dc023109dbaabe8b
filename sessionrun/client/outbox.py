"""Leaves a request for a session's supervisor, and waits until it is taken.

A request is a file or, if the disk has no room for one, a line in the FIFO (see `store.requests`).  What requests
mean is not known here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import closing, nullcontext, suppress
from typing import Any, Final, Literal

from sessionrun.client.reading.waiting import Deadline
from sessionrun.model.errors import SessionGone, StoreError
from sessionrun.store import requests
from sessionrun.store.logs import find_shortage, fold_ledger, read_log
from sessionrun.store.session import REFUSED, SessionDir

Fate = Literal["taken", "moot", "late"]
"""What became of a request in time: it was taken, or withdrawn, or it still waits."""

MAX_RESUMES: Final = 3
"""How often a session is started for one request whose processes leave without taking it."""

SPEAK_AGAIN_S: Final = 1.0
"""When to repeat a request: its reader may have died before it was recorded.  Read twice, it is obeyed once."""

PATIENCE_S: Final = 3.0
"""How long a request that was read may take to be recorded and shown; on a full disk it never is."""


class Refused(StoreError):
    """The session refused a request; `why` is what it wrote into its log."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def send(
    session: SessionDir,
    record: dict[str, Any],
    *,
    timeout_s: float | None,
    may_resume: bool = True,
    is_moot: Callable[[], bool] = lambda: False,
) -> Fate:
    """Leave a request and wait until it was taken or, if no process is left to take it, until `is_moot`.

    A request that is late stays, as where SessionGone says that no process is left; a moot one is withdrawn.

    Raises:
        StoreError: the request cannot be written, or was refused.
    """
    deadline, starts = Deadline(timeout_s), 0
    line: _Line | None = None
    try:
        request_id, _ = requests.send_request(session, record)
    except requests.NoRoom:
        line = _Line(session, record)

    def is_taken() -> bool:
        return not requests.has_request(session, request_id) if line is None else line.is_taken()

    with nullcontext() if line is None else closing(line):
        while not is_taken():
            if not session.is_alive() and not is_taken():  # the last process may have taken it, and left since
                if is_moot():
                    if line is None:
                        requests.drop_request(session, request_id)
                    return "moot"
                if line is not None:
                    raise SessionGone(_advise(session))
                starts += _resume(session, starts, may_resume=may_resume)
            if not deadline.pause():
                if line is not None and not line.spoken_at:
                    raise StoreError(_advise(session))
                return "late"
    if line is None:
        _look_for_refusal(session, request_id)
    return "taken"


def _resume(session: SessionDir, starts: int, *, may_resume: bool) -> int:
    """Start the session's processes for a request, for which that was done so often; whether they were started."""
    gone = f"no process of session {session.session_id} is left"
    if not may_resume:
        from sessionrun.session.history import find_damage

        damage = find_damage(session)
        raise SessionGone(
            f"{gone}, and {damage}" if damage else f"{gone}; the request waits until the session is resumed"
        )
    if starts == MAX_RESUMES:
        started = "the processes that were started for it ended at once"
        raise SessionGone(f"{gone}, and {started}; {session.log_path} says why")
    from sessionrun.session.launch import resume

    try:
        return resume(session)
    except StoreError as error:
        raise SessionGone(f"{gone}, and {error}") from error


def _look_for_refusal(session: SessionDir, request_id: str) -> None:
    try:
        (session.path / "requests" / request_id).with_suffix(REFUSED).unlink()
    except OSError:
        return
    begin, why = f"request '{request_id}.json' is refused: ", f"{session.log_path} says why"
    with suppress(OSError):
        lines = session.log_path.read_text("utf-8", "replace").splitlines()
        why = next((line.removeprefix(begin) for line in lines if line.startswith(begin)), why)
    raise Refused(f"session {session.session_id} refused the request; {session.log_path} says why", why)


class _Line:
    """A request as a line of the FIFO, where it stays while that is open.

    It is written until it was read, and again later.  It is taken once it is recorded and shown or, if the disk is
    full, at least read.
    """

    def __init__(self, session: SessionDir, record: dict[str, Any]) -> None:
        self._session = session
        self._request_id, self._line = requests.spell_request(record)
        self._offset = session.journal_path.stat().st_size if session.journal_path.exists() else 0
        self._fd: int | None = None
        self.spoken_at = 0.0
        """When it was written last, so that a supervisor may have read it; 0: never."""
        self._read_at: float | None = None

    def is_taken(self) -> bool:
        """Whether it was; writes it where that is due."""
        now = time.monotonic()
        seq = requests.find_recorded(self._session, self._request_id, self._offset)
        if seq is not None and (_is_shown(self._session, seq) or not self._session.is_alive()):
            return True
        if self._read_at is not None and now - self._read_at > PATIENCE_S:
            return True
        if self._speak(now) or seq is not None:
            self._read_at = self._read_at or now
        return False

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def _speak(self, now: float) -> bool:
        """Write the line if it is time for that; return whether all that was written has been read."""
        self._fd = requests.open_wake(self._session) if self._fd is None else self._fd
        if self._fd is None or requests.count_unread(self._fd) > 0:
            return False
        if self.spoken_at and now - self.spoken_at < SPEAK_AGAIN_S:
            return True
        if requests.speak(self._fd, self._line):
            self.spoken_at = now
        else:
            self.close()
        return False


def has_stopped(session: SessionDir, tasks: Collection[str]) -> bool:
    """Whether the disk is full and no process of these tasks, or of any task if none is named, lives any more.

    Their end cannot be recorded before there is room.
    """
    if find_shortage(session.path) is None:
        return False
    from sessionrun.client.evidence import find_recorded

    living = find_recorded(fold_ledger(read_log(session.ledger_path).payloads))
    return not any(not tasks or survivor.task in tasks for survivor in living)


def _advise(session: SessionDir) -> str:
    advice = f"make room on the disk of {session.path.parent}, then ask again"
    return f"the disk is full, and no supervisor of session {session.session_id} takes the request: {advice}"


def _is_shown(session: SessionDir, seq: int) -> bool:
    try:
        summary = session.load_summary()
    except StoreError:
        return False
    return summary is not None and summary["seq"] >= seq
