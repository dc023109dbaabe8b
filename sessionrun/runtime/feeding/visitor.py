"""Carries out visits to the queue: settles what has ended, and claims what is next.  Runs beside the supervisor.

A task is claimed before it is added to the session, and its claim ends after it.  So a crash may leave a claim too
many, and the next visit finds that (see `visit`).  Must not touch the session's state or files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sessionrun.model.feeding import FeedSpec
from sessionrun.model.spec import TaskSpec
from sessionrun.queue.feed import Feed
from sessionrun.queue.graph import by_id
from sessionrun.queue.signature import Signature, read_signature
from sessionrun.queue.task import QueueTask, Worker
from sessionrun.runtime.feeding.board import Board
from sessionrun.runtime.feeding.gone import take_back
from sessionrun.runtime.feeding.standing import Standing
from sessionrun.runtime.feeding.tasks import choose_id, make_task
from sessionrun.runtime.feeding.visit import Step, choose_next, find_last_steps, find_steps
from sessionrun.store import crashpoint


class Arrival(NamedTuple):
    """A task for the session."""

    task: TaskSpec


class Drop(NamedTuple):
    """A task of the session that has no claim any more."""

    name: str


class Dry(NamedTuple):
    """Nothing of the queue is left for the session, as long as the board with this number holds."""

    number: int


News = Arrival | Drop | Dry


class Visitor:
    """Visits one queue for one session."""

    def __init__(
        self,
        session_id: str,
        template: TaskSpec,
        asked: FeedSpec,
        feed: Feed,
        results_dir: Path,
        tell: Callable[[News], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            session_id: of the session.
            template: what its tasks are made of.
            asked: which tasks of the queue it gets.
            feed: the queue.
            results_dir: where sessions are looked for whose claims may be left.
            tell: gets what is new for the session.
            clock: monotonic time in seconds.
        """
        self._session_id, self._template, self._asked = session_id, template, asked
        self._feed, self._results_dir, self._tell, self._clock = feed, results_dir, tell, clock
        self._known: dict[str, Standing] = {}
        self._coming: set[str] = set()
        self._dropped: set[str] = set()
        self._taken_back_at: float | None = None
        self._signature: Signature = ()
        self._synced_at = clock()
        self._is_ours_new = False

    def has_changed(self) -> bool:
        """Whether the queue may have changed since the last visit began."""
        return read_signature(self._feed.place) != self._signature

    def is_due(self) -> bool:
        """Whether a queue is to be loaded again of which no file tells that it changed."""
        return self._feed.name != "file" and self._clock() - self._synced_at >= self._asked.sync_s

    def visit(self, board: Board) -> None:
        """Do all that there is to do now.

        Raises:
            InputError, StoreError, OSError: the queue cannot be read or changed; what was done counts.
        """
        self._hear(board)
        if self.is_due():
            self._synced_at = self._clock()
            self._feed.sync()
        self._take_back(board)
        again = True
        while again:
            self._signature = read_signature(self._feed.place)
            tasks = by_id(self._feed.load())
            steps = find_steps(tasks, self._known, self._session_id)
            steps = [step for step in steps if step.name not in (self._dropped if step.what == "drop" else ())]
            steps = [step for step in steps if not (step.what == "add" and step.name in self._coming)]
            for step in steps:
                self._do(step, tasks)
            again = any(step.what != "drop" for step in steps)
        asked, retries = self._asked, self._template.retries
        claimed = self._claim(board, choose_next(tasks, self._known, asked.group, asked.chosen, retries))
        is_going = self._coming or any(one.kind == "going" for one in self._known.values())
        if board.is_open and board.takes and not (claimed or is_going or self._asked.watch):
            self._tell(Dry(board.number))

    def leave(self, board: Board) -> None:
        """The session ends: settle its last claims.

        Raises:
            InputError, StoreError, OSError: as `visit`.
        """
        self._hear(board)
        for step in find_last_steps(by_id(self._feed.load()), self._known, self._session_id):
            self._do(step, {})
        if self._feed.name != "file":
            self._feed.sync()

    def _hear(self, board: Board) -> None:
        self._known.update(board.news)
        self._coming -= self._known.keys()
        self._dropped -= {name for name, one in board.news.items() if one.kind == "going"}

    def _take_back(self, board: Board) -> None:
        """Take back claims of sessions that are gone, while there is a free slot for their tasks."""
        now, last = self._clock(), self._taken_back_at
        is_due = last is None or now - last >= self._asked.take_back_s
        if self._asked.take_back_s and is_due and board.takes and board.free > 0:
            self._taken_back_at = now
            take_back(self._feed, self._results_dir, most=self._asked.take_back_most)

    def _do(self, step: Step, tasks: dict[str, QueueTask]) -> None:
        worker = Worker(step.name, self._session_id)
        crashpoint.step()
        if step.what == "close":
            self._feed.close(step.queue_id, reason=step.reason or None, worker=worker)
        elif step.what == "reopen":
            self._feed.reopen(step.queue_id, reason=step.reason or None, worker=worker)
        elif step.what == "add":
            self._add(tasks[step.queue_id], step.name)
        elif step.what == "drop" or self._feed.claim(step.queue_id, worker) is None:
            self._dropped.add(step.name)
            self._tell(Drop(step.name))

    def _claim(self, board: Board, ready: list[QueueTask]) -> int:
        """Claim what there are slots for; how many were claimed."""
        free = board.free - len(self._coming) if board.takes else 0
        claimed = 0
        for task in ready:
            if claimed >= free:
                break
            name = choose_id(task.id, {one.casefold() for one in (*self._known, *self._coming)})
            crashpoint.step()
            got = self._feed.claim(task.id, Worker(name, self._session_id))
            crashpoint.step()
            if got is not None:
                self._add(got, name)
                claimed += 1
        return claimed

    def _add(self, task: QueueTask, name: str) -> None:
        self._coming.add(name)
        self._tell(Arrival(make_task(self._template, task, name)))
