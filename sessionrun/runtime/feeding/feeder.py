"""Feeds a session from a queue: the supervisor's partner, and the thread that visits the queue.

A queue may be slow: its lock is held, its program takes seconds.  So the supervisor waits for it at the end of the
session alone.  The two threads share a board, from the supervisor, and news, for the supervisor, under one lock.
News wake the supervisor by its FIFO; the journal alone says what the session knew of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sessionrun.engine.state import State
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import Event, FeedClosed, HoldLifted, HoldPlaced, RequestReceived, TaskAdded
from sessionrun.model.feeding import TROUBLE, UNCLAIMED
from sessionrun.model.spec import SessionSpec
from sessionrun.queue.feed import open_feed
from sessionrun.queue.place import find_place
from sessionrun.runtime.feeding.standing import Board, Boards, join_boards
from sessionrun.runtime.feeding.visit import Step
from sessionrun.runtime.feeding.visitor import Arrival, News, Trouble, Visitor
from sessionrun.store.inbox import ring
from sessionrun.store.session import SessionDir

RETRY_S: Final = 5.0
"""After a visit that failed."""

DROPPED: Final = "its task of the queue is not there for it any more: closed, removed, or of another worker"
"""Why a task is cancelled that has lost its claim."""

LEAVE_S: Final = 60.0
"""How long the end of the session waits for the queue to be told."""


class QueueFeeder:
    """The partner of one session's supervisor."""

    def __init__(self, session: SessionDir, spec: SessionSpec, log: Callable[[str], None]) -> None:
        assert spec.feed is not None and spec.template is not None
        self._session, self._asked, self._template, self._log = session, spec.feed, spec.template, log
        self._place = find_place(Path(spec.feed.top))
        self._boards = Boards()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._visitor: Visitor | None = None
        self._last = Board(0, {}, frozenset(), frozenset(), 0, False, False)
        self._board: Board | None = None
        self._news: list[News] = []
        self._leaves = self._left = self._visits = self._fails = False
        self._trouble: str | None = ""  # what the supervisor before has shown is not known

    # --- the supervisor's thread ---

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        """Tell how the tasks stand, and return what is to be recorded; the state changes between two of these."""
        reborn = self._boards.find_reborn(state)
        if reborn:  # before they are started: no work without a claim
            yield RequestReceived(f"unclaimed-{state.seq}", "hold", tuple(reborn), reason=UNCLAIMED)
        board = self._boards.make(state)  # before the news, for it makes some of them stale
        with self._changed:
            news, self._news = self._news, []
        for one in news:
            yield from self._translate(state, one)
        if board is not None:
            self._show(board, visits=state.ended is None)

    def finish(self, state: State) -> None:
        """The session is about to end: give back what is left."""
        self._show(self._boards.make(state), leaves=True)
        if self._thread is not None:
            self._thread.join(LEAVE_S)
        self._left = True

    def _show(self, board: Board | None, *, visits: bool = True, leaves: bool = False) -> None:
        """Show the thread a board; with `visits` it visits the queue at once, with `leaves` for the last time."""
        with self._changed:
            if board is not None and self._board is not None:  # the thread has not seen the one before
                board = join_boards(self._board, board)
            self._board = board or self._board
            if not visits:
                return
            self._leaves, self._visits = leaves, True
            self._changed.notify()
        if self._thread is None or self._left:  # a session may live again after its last visit
            self._thread = threading.Thread(target=self._run, args=(self._thread,), name="feeder", daemon=True)
            self._left = False
            self._thread.start()

    def _translate(self, state: State, one: News) -> Iterator[Event]:
        if state.ended is not None:
            return  # what was claimed meanwhile is given back
        if isinstance(one, Arrival):
            if one.task.id not in state.tasks:
                yield TaskAdded(one.task)
        elif isinstance(one, Step):
            task, where = state.tasks.get(one.name), f"{state.seq}-{one.name}"
            if one.what == "land":
                if not state.cancelled:  # a retry would take that back
                    yield RequestReceived(f"mended-{where}", "retry", (one.name,))
            elif one.what == "drop" and task is not None and task.known_outcome is None:
                yield RequestReceived(f"unclaimed-{where}", "cancel", (one.name,), reason=DROPPED)
            elif one.what == "claimed" and task is not None and task.held == UNCLAIMED:
                yield RequestReceived(f"claimed-{where}", "release", (one.name,))
        elif isinstance(one, Trouble):
            yield from _tell_trouble(state, one.why)
        elif one.number == self._boards.number and state.feed_open:
            yield FeedClosed()

    # --- the queue's thread ---

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # its last visit may have taken longer than the session has waited
        leaves = False
        while not leaves:
            board, leaves = self._await()
            self._last = join_boards(self._last, board) if board is not None else self._last
            try:
                self._visitor = self._visitor or self._open()
                (self._visitor.leave if leaves else self._visitor.visit)(self._last)
                self._last = self._last._replace(news={}, others=frozenset())
                self._fails = False
                self._complain(self._visitor.refused)
            except Exception as error:  # whatever it is, the session goes on
                self._fails = True
                self._complain(_describe(error))
                self._pause()

    def _open(self) -> Visitor:
        feed = open_feed(self._place, self._asked.backend)
        return Visitor(self._session, self._template, self._asked, feed, self._tell)

    def _await(self) -> tuple[Board | None, bool]:
        """Wait until there is something to do: a new board, a change of the queue, the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._visits or self._leaves, self._choose_patience())
                board, self._board, self._visits, leaves = self._board, None, False, self._leaves
            if board is not None or leaves or self._fails or self._visitor is None:
                return board, leaves
            if self._visitor.due_in(self._last) == 0 or self._visitor.has_changed():
                return None, False

    def _choose_patience(self) -> float:
        """For how long to wait (seconds) until the files are looked at or a visit is due."""
        due_in = None if self._visitor is None else self._visitor.due_in(self._last)
        return self._asked.poll_s if due_in is None else min(due_in, self._asked.poll_s)

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._leaves, RETRY_S)

    def _tell(self, one: News) -> None:
        with self._changed:
            self._news.append(one)
        ring(self._session)

    def _complain(self, why: str | None) -> None:
        """Log what is wrong with the queue, once, and let the session show it; None: nothing is."""
        if why != self._trouble:
            if why is not None:
                self._log(why)
            self._trouble = why
            self._tell(Trouble(why))


def _describe(error: Exception) -> str:
    why = str(error) if isinstance(error, SessionrunError) else repr(error)
    if isinstance(error, OSError):
        why = f"{error.filename}: {error.strerror}"
    return f"the queue cannot be read or changed: {' '.join(why.split())}"


def _tell_trouble(state: State, why: str | None) -> Iterator[Event]:
    """The hold that shows what is wrong with the queue."""
    known = state.holds.get(TROUBLE)
    if why is not None and (known is None or known.reason != why):
        yield HoldPlaced(TROUBLE, why)
    elif why is None and known is not None:
        yield HoldLifted(TROUBLE)
