"""Carries out visits to the queue: settles what has ended, and claims what is next.  Runs beside the supervisor.

A task is claimed before it is added to the session, and its claim ends after it.  So a crash may leave a claim too
many, and the next visit finds that (see `visit`).  Must not touch the session's state or files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.model.errors import InputError
from sessionrun.model.feeding import FeedSpec
from sessionrun.model.spec import TaskSpec
from sessionrun.queue.feed import Feed
from sessionrun.queue.graph import by_id
from sessionrun.queue.place import Signature, read_signature
from sessionrun.queue.task import QueueTask, Worker
from sessionrun.runtime.feeding.gone import take_back
from sessionrun.runtime.feeding.intake import Intake
from sessionrun.runtime.feeding.standing import Board, Standing
from sessionrun.runtime.feeding.tasks import choose_id, make_task
from sessionrun.runtime.feeding.visit import (
    Step,
    choose_next,
    find_claimed,
    find_excused,
    find_landings,
    find_last_steps,
    find_steps,
)
from sessionrun.store.session import SessionDir
from sessionrun.workspaces.git import Git

_ROUNDS: Final = 100
"""The queue may change again and again while it is visited."""


class Arrival(NamedTuple):
    """A task for the session."""

    task: TaskSpec


class Dry(NamedTuple):
    """Nothing of the queue is left for the session, as long as the board with this number holds."""

    number: int


class Trouble(NamedTuple):
    """What is wrong with the queue; None: nothing is any more."""

    why: str | None


News = Arrival | Step | Dry | Trouble
"""A step that the session has to take is `claimed`, `drop` or `land`."""


class Visitor:
    """Visits one queue for one session."""

    def __init__(
        self,
        session: SessionDir,
        template: TaskSpec,
        asked: FeedSpec,
        feed: Feed,
        tell: Callable[[News], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            session: which it is.
            template: what its tasks are made of.
            asked: which tasks of the queue it gets.
            feed: the queue.
            tell: gets what is new for the session.
            clock: monotonic time in seconds.
        """
        self._session_id, self._results_dir = session.session_id, session.path.parent
        self._template, self._asked, self._feed, self._tell, self._clock = template, asked, feed, tell, clock
        self._intake = Intake(session.path, asked)
        self._known: dict[str, Standing] = {}
        self._others: set[str] = set()
        self._coming: set[str] = set()
        self._dropped: set[str] = set()
        self._landing: set[str] = set()
        self._failed: set[Step] = set()
        self.refused: str | None = None
        """What the queue refused last, to be shown to the end."""
        self._has_follow_ups = True
        self._taken_back_at = float("-inf")
        self._signature: Signature = ()
        self._synced_at = clock()

    def has_changed(self) -> bool:
        """Whether the queue may have changed since the last visit began."""
        return read_signature(self._feed.place) != self._signature

    def due_in(self, board: Board) -> float | None:
        """In how many seconds a visit is due though nothing changes; None: never.

        Some queues change without a change of their files.  No file changes when a session dies that has claims.
        """
        due = [self._synced_at + self._asked.sync_s] if self._feed.name != "file" else []
        due += [self._taken_back_at + self._asked.take_back_s] if self._takes_back(board) else []
        return max(0.0, min(due) - self._clock()) if due else None

    def visit(self, board: Board) -> None:
        """Do all that there is to do now.

        Raises:
            InputError, StoreError, OSError: the queue cannot be read or changed; what was done counts.
        """
        self._hear(board)
        if self._feed.name != "file" and self._clock() >= self._synced_at + self._asked.sync_s:
            self._synced_at = self._clock()
            self._feed.sync()
        self._take_back(board)
        tasks = self._settle()
        for name in board.waiting & (find_claimed(tasks, self._session_id) | find_excused(tasks, self._known)):
            self._tell(Step("claimed", self._known[name].queue_id, name))
        if self._asked.ingest and self._has_follow_ups:
            self._has_follow_ups = False
            tasks = self._load() if self._intake.take() else tasks
        asked, retries = self._asked, self._template.retries
        claimed = self._claim(board, choose_next(tasks, self._known, asked.group, asked.chosen, retries))
        is_going = self._coming or any(one.kind == "going" for one in self._known.values())
        if board.is_open and board.takes and not (claimed or is_going or asked.watch):
            self._tell(Dry(board.number))

    def leave(self, board: Board) -> None:
        """The session ends: settle its last claims.

        Raises:
            InputError, StoreError, OSError: as `visit`.
        """
        self._hear(board)
        self._coming.clear()  # the session does not hear of them any more
        for step in find_last_steps(self._load(), self._known, self._session_id):
            self._do(step, {})
        if self._feed.name != "file":
            self._feed.sync()

    def _hear(self, board: Board) -> None:
        ended = [name for name, one in board.news.items() if one.kind != "going"]
        self._has_follow_ups = self._has_follow_ups or bool(ended)
        self._known.update(board.news)
        self._others |= board.others
        self._coming -= self._known.keys()
        self._dropped -= {name for name, one in board.news.items() if one.kind == "going"}

    def _load(self) -> dict[str, QueueTask]:
        self._signature = read_signature(self._feed.place)
        if not self._feed.place.exists() and any(one.kind == "going" for one in self._known.values()):
            raise InputError(f"{self._feed.place} is gone: put it back, or cancel the session")
        return by_id(self._feed.load())

    def _settle(self) -> dict[str, QueueTask]:
        """Bring claims and tasks together; return the tasks of the queue as they are then."""
        for _ in range(_ROUNDS):
            tasks = self._load()
            steps = find_steps(tasks, self._known, self._session_id, self._landing)
            if self._asked.lands_again:
                steps += find_landings(tasks, self._known, self._landing, self._is_mended)
            steps = [step for step in steps if self._is_new(step)]
            for step in steps:
                self._attempt(step, tasks)
            if not steps:
                break
        return tasks

    def _is_new(self, step: Step) -> bool:
        if step.what == "add":
            return step.name not in self._coming
        return step not in self._failed and not (step.what == "drop" and step.name in self._dropped)

    def _is_mended(self, branch: str, commit: str) -> bool:
        now = Git(Path(self._asked.top)).commit_of(f"refs/heads/{branch}")
        return now is not None and now != commit

    def _attempt(self, step: Step, tasks: dict[str, QueueTask]) -> None:
        """Do a step; one that the queue refuses is not tried again, and its claim ends with the session."""
        try:
            self._do(step, tasks)
        except InputError as error:
            self._failed.add(step)
            self.refused = str(error)

    def _take_back(self, board: Board) -> None:
        """Take back claims of sessions that are gone, while there is a free slot for their tasks."""
        now = self._clock()
        if self._takes_back(board) and now >= self._taken_back_at + self._asked.take_back_s:
            self._taken_back_at = now
            take_back(self._feed, self._results_dir, most=self._asked.take_back_most)

    def _takes_back(self, board: Board) -> bool:
        return self._asked.take_back_s > 0 and board.takes and board.free > 0

    def _do(self, step: Step, tasks: dict[str, QueueTask]) -> None:
        worker, reason = Worker(step.name, self._session_id), step.reason or None
        if step.what == "close":
            self._feed.close(step.queue_id, reason=reason, worker=worker)
        elif step.what == "reopen":
            self._feed.reopen(step.queue_id, reason=reason, worker=worker)
        elif step.what == "bounce":
            self._landing.discard(step.name)
            self._feed.reopen(step.queue_id, reason=reason)
        elif step.what == "land":
            self._landing.add(step.name)
            self._known[step.name] = self._known[step.name]._replace(kind="going")  # until the board says it
            self._tell(step)
        elif step.what == "add":
            self._add(tasks[step.queue_id], step.name)
        elif step.what == "drop" or self._feed.claim(step.queue_id, worker) is None:
            self._dropped.add(step.name)
            self._tell(step._replace(what="drop"))

    def _claim(self, board: Board, ready: list[QueueTask]) -> int:
        """Claim what there are slots for; how many were claimed."""
        free = board.free - len(self._coming) if board.takes else 0
        claimed = 0
        for task in ready:
            if claimed >= free:
                break
            name = choose_id(task.id, {one.casefold() for one in (*self._known, *self._coming, *self._others)})
            got = self._feed.claim(task.id, Worker(name, self._session_id))
            if got is not None:
                self._add(got, name)
                claimed += 1
        return claimed

    def _add(self, task: QueueTask, name: str) -> None:
        self._coming.add(name)
        self._tell(Arrival(make_task(self._template, task, name)))
