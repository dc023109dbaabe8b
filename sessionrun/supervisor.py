"""The loop around the scheduler: wait, record, apply, decide, carry out, publish.

The process tree of a session (DESIGN of this version: one process; see ARCHITECTURE.md):

    supervisor        decides and starts; holds `lock`, the only writer of the journal and the ledger
     └ job ... job    each in a session of its own

One turn of the loop: wait for the executor or for the wake FIFO until the next deadline; append what happened
to the journal and apply it; let the scheduler decide until it has nothing more to say; write status.json when
it is due.  Only this thread changes the state.  The journal is flushed before anything is started and synced
before anything is shown, so a reader never sees what a power cut could take back.
"""

from __future__ import annotations

import os
import time
from typing import Final, Protocol

import orjson

from sessionrun.errors import NoSpace, StoreError
from sessionrun.events import (
    CancelJob,
    EndSession,
    Entry,
    Event,
    HoldPlaced,
    JobClaimed,
    JobFinished,
    JobLost,
    Order,
    Record,
    RequestReceived,
    StartJob,
    WakeAt,
    to_record,
)
from sessionrun.executors import Executor, Exit, Notice
from sessionrun.fold import apply
from sessionrun.journal import AppendLog
from sessionrun.model import SLOT, WORKTREE_SPACE, Job, JobKey, TaskSpec
from sessionrun.scheduler import decide
from sessionrun.state import State, TaskState
from sessionrun.status import project, project_summary
from sessionrun.store import SessionDir

PUBLISH_FIRST_S: Final = 0.05
PUBLISH_COST_FACTOR: Final = 20.0
"""status.json is rewritten no sooner than this many times its last cost: a twentieth of the time at most."""

RETRY_DISK_S: Final = 1.0
RETRY_SPACE_S: Final = 5.0


class Jobs(Protocol):
    """Builds and judges jobs; see `jobs.JobMaker`."""

    def build(self, task: TaskState, key: JobKey) -> Job:
        """The process for a key."""

    def judge(self, task: TaskSpec, ended: Exit) -> JobFinished:
        """The verdict on its end."""


class Clock(Protocol):
    """Where the time comes from."""

    def wall(self) -> float:
        """Seconds since the epoch."""

    def mono(self) -> float:
        """Monotonic seconds of this boot."""


class SystemClock:
    """The clocks of this machine."""

    wall = staticmethod(time.time)
    mono = staticmethod(time.monotonic)


class Supervisor:
    """Runs one session to its end."""

    def __init__(
        self, session: SessionDir, state: State, journal: AppendLog, executor: Executor, jobs: Jobs, clock: Clock
    ) -> None:
        self._session = session
        self._state = state
        self._journal = journal
        self._executor = executor
        self._jobs = jobs
        self._clock = clock
        self._unwritten: list[bytes] = []
        self._taken: set[str] = set()
        self._next_publish = 0.0
        self._dirty = True
        self._wake_at: float | None = None
        self._wake_fd = os.open(session.wake_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Go on until the session has ended."""
        self._take_requests()
        self._settle()
        self._publish()
        while self._state.ended is None or self._unwritten:
            notices = self._executor.wait(self._timeout_s(), self._wake_fd)
            self._hear(notices)
            if self._drain_wake():
                self._take_requests()
            self._settle()
            self._publish()
            if not self._state.running_jobs and not self._session.path.is_dir():
                break  # it was removed: nothing can be started, shown or asked for any more
        self._executor.close()

    # --- recording ---

    def _record(self, event: Event) -> None:
        entry = Entry(self._state.seq + 1, self._clock.wall(), self._clock.mono(), event)
        self._unwritten.append(orjson.dumps(to_record(entry)))
        apply(self._state, entry)
        self._dirty = True

    def _flush(self, *, sync: bool = False) -> bool:
        """Write what was recorded; False while the disk refuses (it is tried again, nothing starts before)."""
        try:
            self._journal.append(self._unwritten)
            self._unwritten.clear()
            if sync:
                self._journal.sync()
        except StoreError as error:
            _log(str(error))
            self._wake_at = min(self._wake_at or float("inf"), self._clock.mono() + RETRY_DISK_S)
            return False
        return True

    # --- what happened ---

    def _hear(self, notices: list[Notice]) -> None:
        for notice in notices:
            if isinstance(notice, Exit):
                self._record(self._judge(notice))
            else:
                self._record(notice)

    def _judge(self, ended: Exit) -> JobFinished:
        task = self._state.tasks[ended.key.task].spec
        try:
            return self._jobs.judge(task, ended)
        except OSError as error:
            reason = f"infra: its output cannot be read or written: {error.strerror}"
            return JobFinished(ended.key, "failed", "infra", reason, ended.wait_status, ledger=ended.ledger)

    def _take_requests(self) -> None:
        for request in self._session.load_requests():
            request_id, tasks = request["request_id"], request.get("tasks") or []
            if request_id in self._taken:
                continue
            self._taken.add(request_id)
            if request.get("kind") == "cancel" and isinstance(tasks, list):
                self._record(RequestReceived(request_id, "cancel", tuple(str(task) for task in tasks)))
            else:
                _log(f"request {request_id} is of a kind that this version does not know")
        if self._taken and self._flush(sync=True):
            self._acknowledge()

    def _acknowledge(self) -> None:
        """What was taken is durable now; until then its file stays, for whoever comes after us."""
        for request_id in self._taken:
            self._session.drop_request(request_id)
        self._taken.clear()

    def _drain_wake(self) -> bool:
        try:
            return bool(os.read(self._wake_fd, 4096))
        except BlockingIOError:
            return False

    # --- what to do ---

    def _settle(self) -> None:
        """Carry out orders until there is nothing left but to wait."""
        self._wake_at = None
        while orders := decide(self._state, self._clock.mono()):
            starts = [order.key for order in orders if isinstance(order, StartJob)]
            for order in orders:
                self._carry_out(order)
            if starts:
                self._start(starts)
            if isinstance(orders[-1], WakeAt):
                break

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, StartJob):
            self._record(JobClaimed(order.key))
        elif isinstance(order, CancelJob):
            self._executor.stop(order.key)
        elif isinstance(order, WakeAt):
            self._wake_at = order.mono
        elif isinstance(order, (Record, EndSession)):
            self._record(order.event)

    def _start(self, keys: list[JobKey]) -> None:
        """Start claimed jobs; what cannot even be prepared never ran."""
        if not self._flush():
            self._hold(keys, "the session directory cannot be written")
            return
        jobs: list[Job] = []
        for number, key in enumerate(keys):
            try:
                jobs.append(self._jobs.build(self._state.tasks[key.task], key))
            except NoSpace as error:
                self._hold([key], str(error), WORKTREE_SPACE, RETRY_SPACE_S)
            except OSError as error:
                self._hold(keys[number:], f"cannot write the files of {key.task}: {error.strerror}")
                break
        if jobs:
            self._hear(self._executor.start(jobs))

    def _hold(self, keys: list[JobKey], reason: str, resource: str = SLOT, seconds: float = RETRY_DISK_S) -> None:
        self._record(HoldPlaced(resource, reason, until=self._clock.mono() + seconds))
        for key in keys:
            self._record(JobLost(key, "void", reason, counts=False))

    # --- what is shown ---

    def _publish(self) -> None:
        """Write status.json when it is due: at once when the session ends or waits, else at a bounded cost."""
        now, ended = self._clock.mono(), self._state.ended is not None
        waiting = self._state.running_jobs == 0
        if not self._dirty or (now < self._next_publish and not (ended or waiting)):
            return
        if not self._flush(sync=True):
            self._next_publish = now + RETRY_DISK_S
            return
        self._acknowledge()
        status = project(self._state)
        try:
            self._session.replace_status(status, project_summary(status), durable=ended)
            self._dirty = False
        except OSError as error:
            _log(f"cannot write {self._session.status_path}: {error.strerror}")
            self._next_publish = now + RETRY_DISK_S
            return
        cost = self._clock.mono() - now
        self._next_publish = now + max(PUBLISH_FIRST_S, PUBLISH_COST_FACTOR * cost)

    def _timeout_s(self) -> float | None:
        """How long to wait (seconds); None = until something happens."""
        times = [] if self._wake_at is None else [self._wake_at]
        if self._dirty:
            times.append(self._next_publish)
        return max(0.0, min(times) - self._clock.mono()) if times else None


def _log(line: str) -> None:
    try:
        os.write(1, f"{line}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # the disk that is full may be the log's
