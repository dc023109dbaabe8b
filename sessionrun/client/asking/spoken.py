"""Sends a request through the FIFO if the disk has no room for its file, see `inbox`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import closing
from typing import Any, Final

from sessionrun.client.reading.waiting import POLL_LAST_S
from sessionrun.model.errors import SessionGone, StoreError
from sessionrun.store import inbox
from sessionrun.store.ballast import find_shortage
from sessionrun.store.session import SessionDir

SPEAK_AGAIN_S: Final = 1.0
"""When to repeat a request: its reader may have died before it was recorded.  Read twice, it is obeyed once."""

PATIENCE_S: Final = 3.0
"""How long a request that was read may take to be recorded and shown; on a full disk it never is."""


def ask_spoken(
    session: SessionDir,
    record: dict[str, Any],
    *,
    timeout_s: float | None,
    is_moot: Callable[[], bool],
) -> bool:
    """Send a request through the FIFO and wait until it was taken: shown or, if the disk is full, at least read.

    Returns False when the time (seconds) is up before that.

    Raises:
        SessionGone: no process of the session is left to take it.
        StoreError: the request is too long for the FIFO.
    """
    request_id, line = inbox.spell_request(record)
    offset, begun = _size(session), time.monotonic()
    heard_at: float | None = None
    with closing(_Voice(session, line)) as voice:
        while True:
            now = time.monotonic()
            seq = inbox.find_recorded(session, request_id, offset)
            is_late = heard_at is not None and now - heard_at > PATIENCE_S
            if is_late or (seq is not None and _is_shown(session, seq)):
                return True
            if not session.is_alive():
                if seq is not None or is_moot():
                    return True
                raise SessionGone(_advise(session))
            is_heard = voice.speak(now)
            heard_at = heard_at or (now if is_heard or seq is not None else None)
            if timeout_s is not None and now - begun >= timeout_s:
                if not voice.has_spoken:
                    raise StoreError(_advise(session))
                return False
            time.sleep(POLL_LAST_S / 4)


class _Voice:
    """Writes a line until it was read, and again later.  The line stays in the FIFO while the FIFO is open."""

    def __init__(self, session: SessionDir, line: bytes) -> None:
        self._session = session
        self._line = line
        self._fd: int | None = None
        self._spoken_at = 0.0

    def speak(self, now: float) -> bool:
        """Write the line if it is time for that; return whether all that was written has been read."""
        self._fd = inbox.open_wake(self._session) if self._fd is None else self._fd
        if self._fd is None:
            return False
        if inbox.count_unread(self._fd) > 0:
            return False
        if self._spoken_at and now - self._spoken_at < SPEAK_AGAIN_S:
            return True
        if not inbox.speak(self._fd, self._line):
            self.close()
            return False
        self._spoken_at = now
        return False

    @property
    def has_spoken(self) -> bool:
        """Whether there was a supervisor that may have read the line."""
        return self._spoken_at > 0

    def close(self) -> None:
        """Give up the descriptor."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


def has_stopped(session: SessionDir, tasks: Collection[str]) -> bool:
    """Whether the disk is full and no process of these tasks, or of any task if none is named, lives any more.

    Their end cannot be recorded before there is room.
    """
    if find_shortage(session.path) is None:
        return False
    from sessionrun.client.cleaning.leftovers import find_recorded
    from sessionrun.store.journal import read_log
    from sessionrun.store.ledger import fold_ledger

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


def _size(session: SessionDir) -> int:
    try:
        return session.journal_path.stat().st_size
    except OSError:
        return 0
