"""Feeds a session from a queue: the supervisor's partner, and the thread that visits the queue.

A queue may be slow: its lock is held, its program takes seconds.  So the supervisor waits for it at the end of the
session alone.  The two threads share a board, from the supervisor, and news, for the supervisor, under one lock.
News wake the supervisor by its FIFO; the journal alone says what the session knew of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.engine.state import State
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import Event, FeedClosed, RequestReceived, TaskAdded
from sessionrun.model.spec import SessionSpec
from sessionrun.queue.listeners import change_listeners
from sessionrun.queue.place import find_place
from sessionrun.queue.signature import read_signature
from sessionrun.queue.table import open_feed
from sessionrun.runtime.feeding.board import Board, Boards
from sessionrun.runtime.feeding.visitor import Arrival, Drop, News, Visitor
from sessionrun.store.inbox import ring
from sessionrun.store.session import SessionDir

RETRY_S: Final = 5.0
"""After a visit that failed."""

LEAVE_S: Final = 60.0
"""How long the end of the session waits for the queue to be told."""


class QueueFeeder:
    """The partner of one session's supervisor."""

    def __init__(self, session: SessionDir, spec: SessionSpec, log: Callable[[str], None]) -> None:
        assert spec.feed is not None and spec.template is not None
        self._session, self._spec, self._log = session, spec, log
        self._asked, self._template = spec.feed, spec.template
        self._place = find_place(Path(spec.feed.top))
        self._feed = open_feed(self._place, spec.feed.backend)
        self._boards = Boards()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._board: Board | None = None
        self._news: list[News] = []
        self._leaves = self._rung = False
        self._seen = read_signature(self._feed.place)
        self._complaint = ""

    # --- the supervisor's thread ---

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        """See `partners.Feeder`."""
        board = self._boards.make(state)  # first: what it changes makes some news stale
        with self._changed:
            news, self._news = self._news, []
        for one in news:
            yield from self._translate(state, one)
        seen = read_signature(self._feed.place)
        rung, self._seen = seen != self._seen, seen
        if (board is not None or rung) and state.ended is None:
            self._show(board)

    def finish(self, state: State) -> None:
        """See `partners.Feeder`."""
        self._show(self._boards.make(state), leaves=True)
        if self._thread is not None:
            self._thread.join(LEAVE_S)
        self._thread = None

    def _show(self, board: Board | None, *, leaves: bool = False) -> None:
        with self._changed:
            if board is not None and self._board is not None:  # the thread has not seen the one before
                board = board._replace(news={**self._board.news, **board.news})
            self._board = board or self._board
            self._leaves, self._rung = leaves, True
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
            self._thread.start()

    def _translate(self, state: State, one: News) -> Iterator[Event]:
        if state.ended is not None:
            return  # what was claimed meanwhile is given back
        if isinstance(one, Arrival):
            if one.task.id not in state.tasks:
                yield TaskAdded(one.task)
        elif isinstance(one, Drop):
            task = state.tasks.get(one.name)
            if task is not None and task.end.known_outcome is None:
                yield RequestReceived(f"unclaimed-{state.seq}-{one.name}", "cancel", (one.name,))
        elif one.number == self._boards.number and state.feed_open:
            yield FeedClosed()

    # --- the queue's thread ---

    def _run(self) -> None:
        folder = self._session.path
        visitor = Visitor(
            self._spec.session_id, self._template, self._asked, self._feed, folder.parent, self._tell
        )
        self._listen(listens=True)
        last = Board(0, {}, 0, False, False)
        leaves = False
        while not leaves:
            board, leaves = self._await(visitor)
            last = board._replace(news={**last.news, **board.news}) if board is not None else last
            try:
                (visitor.leave if leaves else visitor.visit)(last)
                last, self._complaint = last._replace(news={}), ""
            except Exception as error:  # whatever it is, the session goes on
                self._complain(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._leaves, RETRY_S)
                    self._rung = True
        self._listen(listens=False)

    def _await(self, visitor: Visitor) -> tuple[Board | None, bool]:
        """Wait until there is something to do: a new board, a change of the queue, the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._rung or self._leaves, self._asked.poll_s)
                board, self._board, rung, self._rung = self._board, None, self._rung, False
                leaves = self._leaves
            if board is not None or leaves or (rung and self._complaint) or visitor.is_due():
                return board, leaves
            if visitor.has_changed():
                return None, False

    def _tell(self, one: News) -> None:
        with self._changed:
            self._news.append(one)
        ring(self._session)

    def _listen(self, *, listens: bool) -> None:
        """Let those that change the queue wake the session, or no more."""
        with suppress(OSError):
            change_listeners(self._place, self._session.path.absolute(), listens=listens)

    def _complain(self, error: Exception) -> None:
        why = str(error) if isinstance(error, SessionrunError) else repr(error)
        if isinstance(error, OSError):
            why = f"{error.filename}: {error.strerror}"
        if why != self._complaint:
            self._log(f"the queue cannot be visited: {why}")
        self._complaint = why
