"""Feeds a session from a queue: the supervisor's partner, and the thread that visits the queue.

A queue may be slow: its lock is held, its program takes seconds.  So the supervisor waits for it at the end of the
session alone.  It gives the thread a whole snapshot of the session whenever that has changed, of which the newest
counts; the thread gives back news.  The journal alone says what the session knew of them.

A task is claimed before it is added to the session, and its claim ends after it.  So a crash may leave a claim too
many, and the next visit finds that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sessionrun.engine.state import State
from sessionrun.git.git import Git
from sessionrun.model.asked import TROUBLE, UNCLAIMED, FeedSpec
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.events import Event, FeedClosed, HoldLifted, HoldPlaced, RequestReceived, TaskAdded
from sessionrun.model.spec import SessionSpec, TaskSpec
from sessionrun.queue.claims import reclaim
from sessionrun.queue.feed import Feed
from sessionrun.queue.file import NAME as FILE
from sessionrun.queue.ingest import take_for_session
from sessionrun.queue.open import open_queue
from sessionrun.queue.sync import (
    Snapshot,
    Snapshots,
    Standing,
    Step,
    choose_id,
    choose_next,
    find_claims,
    find_steps,
    make_task,
)
from sessionrun.queue.task import QueueTask, Signature, by_id, read_signature
from sessionrun.queue.task import Worker as QueueWorker
from sessionrun.session.worker import Worker
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.session.partners import Partners


DROPPED: Final = "its task of the queue is not there for it any more: closed, removed, or of another worker"
"""Why a task is cancelled that has lost its claim."""

LEAVE_S: Final = 60.0
"""How long the end of the session waits for the queue to be told."""

_ROUNDS: Final = 100
"""The queue may change again and again while it is visited."""


class Dry(NamedTuple):
    """Nothing of the queue is left for the session, as long as the snapshot with this number holds."""

    number: int


News = TaskAdded | Step | Dry | HoldPlaced | HoldLifted
"""A step that the session has to take is `claimed`, `drop` or `land`; a hold says what is wrong with the queue."""


class Visitor:
    """Visits one queue for one session.  Must not touch the session's state or files."""

    def __init__(
        self,
        session: SessionDir,
        template: TaskSpec,
        asked: FeedSpec,
        feed: Feed,
        tell: Callable[[News], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Its tasks are made of `template`, and `tell` gets what is new for the session; `clock` is monotonic."""
        self._session_id, self._results_dir = session.session_id, session.path.parent
        self._template, self._asked, self._feed, self._tell, self._clock = template, asked, feed, tell, clock
        self._folder = session.path
        self._landing: dict[str, int | None] = {}
        self._ended: set[str] | None = None
        self._reclaimed_at = float("-inf")
        self._signature: Signature = ()
        self._synced_at = clock()
        self.refused: str | None = None
        """What the queue refused on the last visit."""

    def is_due(self, snapshot: Snapshot) -> bool:
        """Whether to visit the queue though the session has not changed.

        Some queues change without a change of their files.  No file changes when a session dies that has claims.
        """
        return read_signature(self._feed.place) != self._signature or any(self._find_due(snapshot))

    def _find_due(self, snapshot: Snapshot) -> tuple[bool, bool]:
        """Whether it is time for the backend to sync; and to reclaim, while there is a free slot for the tasks."""
        now, asked = self._clock(), self._asked
        syncs = self._feed.name != FILE and now >= self._synced_at + asked.sync_s
        reclaims = asked.take_back_s > 0 and snapshot.takes and snapshot.free > 0
        return syncs, reclaims and now >= self._reclaimed_at + asked.take_back_s

    def visit(self, snapshot: Snapshot) -> None:
        """Do all that there is to do now.

        Raises:
            InputError, StoreError, OSError: the queue cannot be read or changed; what was done counts.
        """
        known = snapshot.list_known()
        syncs, reclaims = self._find_due(snapshot)
        if syncs:
            self._synced_at = self._clock()
            self._feed.sync()
        if reclaims:
            self._reclaimed_at = self._clock()
            reclaim(self._feed, self._results_dir, most=self._asked.take_back_most)
        tasks, news = self._settle(known)
        for step in news:
            if step.what == "land":
                self._landing[step.name] = known[step.name].bounced_seq
            is_new = step.what == "add"
            self._tell(TaskAdded(make_task(self._template, tasks[step.queue_id], step.name)) if is_new else step)
        ended = {name for name, one in known.items() if one.kind != "going"}
        if self._asked.ingest and ended != self._ended:  # their agents may have written follow-ups
            self._ended = ended
            if take_for_session(self._folder, self._asked, self._feed) > 0:
                tasks = self._load(known)
        has_more = self._claim(snapshot, tasks, choose_next(tasks, known, self._asked, self._template.retries))
        is_going = news or has_more or any(one.kind == "going" for one in known.values())
        if snapshot.takes and not (is_going or self._asked.watch):
            self._tell(Dry(snapshot.number))

    def leave(self, snapshot: Snapshot) -> None:
        """The session ends: settle its last claims."""
        known = snapshot.list_known()
        for step in find_steps(self._load(known), known, self._session_id, {}, ends=True):
            self._change(step)
        if self._feed.name != FILE:
            self._feed.sync()

    def _load(self, known: dict[str, Standing]) -> dict[str, QueueTask]:
        self._signature = read_signature(self._feed.place)
        if not self._feed.place.exists() and any(one.kind == "going" for one in known.values()):
            raise InputError(f"{self._feed.place} is gone: put it back, or cancel the session")
        return by_id(self._feed.load())

    def _settle(self, known: dict[str, Standing]) -> tuple[dict[str, QueueTask], list[Step]]:
        """Change the queue until it needs nothing more, and return its tasks and what the session has to do.

        What it refuses is tried once in each visit, and shown; that claim ends with the session at the latest.
        """
        failed: set[Step] = set()
        self.refused = None
        for _ in range(_ROUNDS):
            tasks = self._load(known)
            steps = find_steps(tasks, known, self._session_id, self._landing, self._is_mended)
            needed = [step for step in steps if step.is_for_queue and step not in failed]
            for step in needed:
                try:
                    self._change(step)
                except InputError as error:
                    failed.add(step)
                    self.refused = str(error)
            if not needed:
                break
        return tasks, [step for step in steps if not step.is_for_queue]

    def _change(self, step: Step) -> None:
        worker, reason = QueueWorker(step.name, self._session_id), step.reason or None
        if step.what == "close":
            self._feed.close(step.queue_id, reason=reason, worker=worker)
        elif step.what == "reopen":
            self._feed.reopen(step.queue_id, reason=reason, worker=worker)
        elif step.what == "bounce":
            self._feed.reopen(step.queue_id, reason=reason)
            del self._landing[step.name]
        else:
            self._feed.claim(step.queue_id, worker)  # if it is not ready any more, the next look tells

    def _is_mended(self, one: Standing) -> bool:
        if one.branch is None or not self._asked.lands_again:
            return False
        branch, commit = one.branch
        now = Git(Path(self._asked.top)).commit_of(f"refs/heads/{branch}")
        return now is not None and now != commit

    def _claim(self, snapshot: Snapshot, tasks: dict[str, QueueTask], ready: Iterable[QueueTask]) -> bool:
        """Claim what there are slots for; whether something was claimed, or waits for a slot.

        A cluster has no slot before its nodes have told of theirs: then the queue is not dry.
        """
        coming = find_claims(tasks, self._session_id).keys() - snapshot.tasks.keys()
        taken = {name.casefold() for name in (*snapshot.tasks, *coming)}
        free, claimed = snapshot.free - len(coming) if snapshot.takes else 0, 0
        for task in ready:
            if claimed >= free:
                return True
            name = choose_id(task.id, taken)
            got = self._feed.claim(task.id, QueueWorker(name, self._session_id))
            if got is not None:
                taken.add(name.casefold())
                claimed += 1
                self._tell(TaskAdded(make_task(self._template, got, name)))
        return claimed > 0


Visit = tuple[Snapshot, bool]
"""What the thread is asked: to go to the queue with a snapshot; True: a last time."""


class QueueFeeder:
    """The partner of one session's supervisor."""

    look_at: float | None = None

    def __init__(self, session: SessionDir, spec: SessionSpec) -> None:
        assert spec.feed is not None and spec.template is not None
        self._session, self._asked, self._template = session, spec.feed, spec.template
        self._patience = min(spec.feed.poll_s, spec.feed.sync_s, spec.feed.take_back_s or spec.feed.poll_s)
        self._snapshots = Snapshots()
        self._snapshot = Snapshot(0, {}, 0, False)
        self._worker: Worker[Visit, News] = Worker("feeder", self._work)
        self.fds: tuple[int, ...] = (self._worker.fd,)
        # the thread alone has these
        self._visitor: Visitor | None = None
        self._trouble: str | None = ""  # what the supervisor before has shown is not known
        self._visit: Visit = self._snapshot, False
        self._fails = False

    # --- the supervisor's thread ---

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        """Tell how the tasks stand, and return what is to be recorded; the state changes between two of these."""
        reborn = self._snapshots.find_reborn(state)
        if reborn:  # before they are started: no work without a claim
            yield RequestReceived(f"unclaimed-{state.seq}", "hold", tuple(reborn), reason=UNCLAIMED)
        snapshot = self._snapshots.look(state)  # before the news, for it makes some of them stale
        news = self._worker.take()
        for one in news if state.ended is None else ():  # what was claimed meanwhile is given back
            yield from self._translate(state, one)
        if snapshot is not None:
            self._snapshot = snapshot
            if state.ended is None:  # a session may live again after its last visit
                self._worker.ask((snapshot, False))

    def finish(self, state: State) -> None:
        """The session is about to end: give back what is left."""
        self._snapshot = self._snapshots.look(state) or self._snapshot
        self._worker.ask((self._snapshot, True))
        self._worker.stop(LEAVE_S)

    def _translate(self, state: State, one: News) -> Iterator[Event]:
        """A visit tells what it finds each time, so the state says whether it is done already."""
        if isinstance(one, TaskAdded):
            if one.task.id not in state.tasks:
                yield one
        elif isinstance(one, HoldPlaced):
            if TROUBLE not in state.holds or state.holds[TROUBLE].reason != one.reason:
                yield one
        elif isinstance(one, HoldLifted):
            if TROUBLE in state.holds:
                yield one
        elif isinstance(one, Dry):
            if one.number == self._snapshots.number and state.feed_open:
                yield FeedClosed()
        elif (task := state.tasks.get(one.name)) is not None:
            where = f"{state.seq}-{one.name}"
            if one.what == "land" and not state.cancelled:  # a retry would take that back
                yield RequestReceived(f"mended-{where}", "retry", (one.name,))
            elif one.what == "drop" and task.known_outcome is None and not task.cancelled:
                yield RequestReceived(f"unclaimed-{where}", "cancel", (one.name,), reason=DROPPED)
            elif one.what == "claimed" and task.held == UNCLAIMED:
                yield RequestReceived(f"claimed-{where}", "release", (one.name,))

    # --- the queue's thread ---

    def _work(self, worker: Worker[Visit, News]) -> None:
        while (visit := self._await(worker)) is not None:
            try:
                if self._visitor is None:
                    feed = open_queue(Path(self._asked.top), backend=self._asked.backend)
                    self._visitor = Visitor(self._session, self._template, self._asked, feed, worker.tell)
                snapshot, leaves = visit
                (self._visitor.leave if leaves else self._visitor.visit)(snapshot)
                why = self._visitor.refused
                self._fails = False
            except Exception as error:  # whatever it is, the session goes on
                why = str(error) if isinstance(error, SessionrunError) else repr(error)
                if isinstance(error, OSError):
                    why = f"{error.filename}: {error.strerror}"
                why = f"the queue cannot be read or changed: {' '.join(why.split())}"
                self._fails = True
            if why != self._trouble:
                self._trouble = why
                worker.tell(HoldLifted(TROUBLE) if why is None else HoldPlaced(TROUBLE, why))

    def _await(self, worker: Worker[Visit, News]) -> Visit | None:
        """Wait until there is something to do: a new snapshot, a change of the queue, a visit that failed.

        None: it is to stop.
        """
        while True:
            asked = worker.wait(self._patience)
            if asked:
                self._visit = asked[-1]
            elif worker.is_stopping:
                return None
            if asked or self._fails or self._visitor is None or self._visitor.is_due(self._visit[0]):
                return self._visit


def open_partners(partners: Partners, session: SessionDir, state: State) -> Partners:
    """The partners, with a feeder if the session is fed."""
    return partners if state.spec.feed is None else partners._replace(feeder=QueueFeeder(session, state.spec))
