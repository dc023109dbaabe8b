"""The loop around the scheduler: wait, record, apply, decide, carry out, publish.

The process tree of a session (see `keeper`):

    root                starts keepers, keeps how the orphans of dead ones ended; holds `root.lock`
     └ keeper           spawns, reaps and stops; the only writer of the ledger; holds `keeper.lock`
        ├ supervisor    decides; the only writer of the journal; holds `lock`; this module
        └ job ... job   each in a session of its own

One turn of the loop: wait for the executor or for the wake FIFO until the next deadline; append what happened
to the journal and apply it; let the scheduler decide until it has nothing more to say; write status.json when
it is due.  Only this thread changes the state.  The journal is flushed before anything is started and synced
before anything is shown, so a reader never sees what a power cut could take back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.engine.fold import apply
from sessionrun.engine.requests import find_fault
from sessionrun.engine.scheduler import CancelJob, CheckOutput, Record, StartJob, decide, find_wake
from sessionrun.engine.state import State, find_job
from sessionrun.engine.status import project_live, project_summary
from sessionrun.keeper.wire import say
from sessionrun.model.errors import NoSpace, StoreError
from sessionrun.model.events import (
    Entry,
    Event,
    HoldPlaced,
    JobLost,
    OutputSeen,
    SessionEnded,
    TimerFired,
    to_record,
)
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT, WORKTREE_SPACE, Job
from sessionrun.session.executor import Exit, Notice
from sessionrun.session.maker import JobMaker, fail_job, is_of_one_job, measure_output, note_limit
from sessionrun.session.partners import Clock, Partners
from sessionrun.store.logs import FULL, AppendLog, give_up_reserve, make_reserve
from sessionrun.store.requests import Request, Spoken, drop_request, load_requests, put_aside
from sessionrun.store.session import SessionDir

PUBLISH_FIRST_S: Final = 0.05
PUBLISH_COST_FACTOR: Final = 20.0
"""status.json is rewritten no sooner than this many times its last cost: a twentieth of the time at most."""

RETRY_DISK_S: Final = 1.0
RETRY_SPACE_S: Final = 5.0


class Supervisor:
    """Runs one session to its end."""

    def __init__(
        self,
        session: SessionDir,
        state: State,
        journal: AppendLog,
        partners: Partners,
        jobs: JobMaker,
        clock: Clock,
    ) -> None:
        self._session = session
        self._state = state
        self._journal = journal
        self._executor, self._views, self._feeder, self._watches, self._notifier = partners
        self._partner_fds = [
            fd for one in (self._feeder, *self._watches, self._notifier) if one is not None for fd in one.fds
        ]
        self._jobs = jobs
        self._clock = clock
        self._unwritten: list[bytes] = []
        self._taken: set[str] = set()
        self._refused: set[str] = set()
        self._shown_ended = state.ended is not None
        self._next_publish = 0.0
        self._dirty = True
        self._wake_at: float | None = None
        self._spoken = Spoken()
        self._wake_fd = self._listen()

    def run(self, recovered: Sequence[Notice] = ()) -> None:
        """Go on until the session has ended; `recovered` is what happened before we were there to hear it."""
        self._hear(recovered)
        self._take_requests()
        self._settle()
        self._publish()
        while not self._leave_if_done():
            notices = self._executor.wait(self._timeout_s(), self._wake_fd, *self._partner_fds)
            self._hear(notices)
            if self._drain_wake():
                self._take_requests()
            self._settle()
            self._publish()
            if not self._state.running_jobs and not self._session.path.is_dir():
                break  # it was removed: nothing can be started, shown or asked for any more
        give_up_reserve(self._session.path)
        self._executor.close()

    def _listen(self) -> int:
        return os.open(self._session.wake_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def _leave_if_done(self) -> bool:
        """Close the FIFO if the session has ended, that is published, and no request is left; whether that was so.

        A client that rings after the last look must learn that no supervisor listens, so the FIFO is closed first.
        """
        while self._state.ended is not None and not (self._unwritten or self._dirty):
            if self._notifier is not None and self._notifier.is_busy:
                return False
            self._drain_wake()
            os.close(self._wake_fd)
            if not self._take_requests() and not self._dirty:
                return True
            self._wake_fd = self._listen()
            self._take_requests()  # a client that rang while it was closed does not ring again
            self._settle()
            self._publish()
        return False

    # --- recording ---

    def _record(self, event: Event) -> None:
        entry = Entry(self._state.seq + 1, self._clock.wall(), self._clock.mono(), event)
        record = orjson.dumps(to_record(entry))
        # before it can be written: what cannot be applied would stop all later supervisors
        apply(self._state, entry)
        self._unwritten.append(record)
        self._dirty = True

    def _flush(self, *, sync: bool = False) -> bool:
        """Write what was recorded; False while the disk refuses (it is tried again, nothing starts before)."""
        try:
            self._journal.append(self._unwritten)
            self._unwritten.clear()
            if sync:
                self._journal.sync()
                self._executor.settle()
        except StoreError as error:
            say(error)
            self._wake_at = min(self._wake_at or float("inf"), self._clock.mono() + RETRY_DISK_S)
            return False
        return True

    # --- what happened ---

    def _hear(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            for event in self._judge(notice) if isinstance(notice, (Exit, JobLost)) else (notice,):
                self._record(event)

    def _judge(self, ended: Exit | JobLost) -> Sequence[Event]:
        """What the end of a job comes to; where it was not seen, what its agent reported may be enough."""
        task, job = find_job(self._state, ended.key)
        try:
            if isinstance(ended, JobLost):
                return (self._jobs.judge_unseen(task, ended) or ended,)
            events = self._jobs.judge(task, ended)
            return events if job is not None else events[-1:]  # the first report has told of other tasks
        except MemoryError:
            raise  # it belongs to no job; the next supervisor begins with little
        except Exception as error:
            if isinstance(ended, JobLost):
                fail_job(Exit(ended.key, None), error)  # it is logged; the job is lost all the same
                return (ended,)
            return (fail_job(ended, error),)

    def _take_requests(self) -> bool:
        """Record what clients ask for; whether there was anything new.  It is acknowledged once it is shown."""
        new = False
        for path, request in load_requests(self._session):
            fault = request if isinstance(request, str) else find_fault(self._state, request)
            if isinstance(request, str) or fault is not None:
                new |= self._refuse(path, fault or "")
            elif request.request_id not in self._taken:
                self._taken.add(request.request_id)
                try:
                    new |= self._take(request)
                except MemoryError:
                    raise
                except Exception as error:
                    # It may be half applied.  The next supervisor folds the journal anew, which does not have it.
                    self._refuse(path, f"a bug of sessionrun: {type(error).__name__}: {error}")
                    raise
        return new

    def _take(self, request: Request) -> bool:
        """Record a request, unless it was already: then only its file was left, or it was said again."""
        new = request.request_id not in self._state.requests
        if new:
            self._record(request)
        self._dirty, self._next_publish = True, 0.0
        return new

    def _refuse(self, path: Path, fault: str) -> bool:
        """Put aside a file that is not a request; if it cannot be moved, log that once and leave it there."""
        if path.name in self._refused:
            return False
        say(f"request {path.name!r:.140} is refused: {fault}")
        try:
            put_aside(path)
        except OSError as error:
            self._refused.add(path.name)
            say(f"request {path.name!r:.140} cannot be put aside: {error.strerror}")
        return True

    def _acknowledge(self) -> bool:
        """What was taken is durable now; until then its file stays, for the next supervisor.

        Returns whether there was something: on a disk without an inode, its file may have had the last one.
        """
        any_taken = bool(self._taken)
        for request_id in self._taken:
            try:
                drop_request(self._session, request_id)
            except OSError as error:
                say(f"request {request_id} cannot be removed: {error.strerror}")
        self._taken.clear()
        return any_taken

    def _drain_wake(self) -> bool:
        """Read what rang, and take the requests that were spoken because the disk has no room for their files."""
        try:
            content = os.read(self._wake_fd, 4096)
        except BlockingIOError:
            return False
        requests, faults = self._spoken.hear(content)
        for request in requests:
            if (problem := find_fault(self._state, request)) is None:
                self._take(request)
            else:
                faults.append(problem)
        for fault in faults:
            say(f"a request in the FIFO is refused: {fault}")
        return bool(content)

    # --- what to do ---

    def _settle(self) -> None:
        """Carry out orders until there is nothing left but to wait."""
        self._wake_at = None
        session = self._session.path
        # without room for the end of what runs nothing new is started
        if not make_reserve(session, len(self._state.tasks)) and SLOT not in self._state.holds:
            is_there = session.is_dir()
            why = f"the disk of {session.parent} is full" if is_there else f"{session} is not there any more"
            self._record(HoldPlaced(SLOT, why, self._clock.mono() + RETRY_SPACE_S))
        self._hear_partners()
        while True:
            starts, waits = list[JobKey](), True
            for order in decide(self._state, self._clock.mono()):
                waits = False
                if isinstance(order, StartJob):
                    task = self._state.tasks[order.key.task]
                    self._record(self._executor.claim(order.key, task.node, task.spec.sandbox))
                    starts.append(order.key)
                else:
                    self._carry_out(order)
            if starts:
                self._start(starts)
            if waits:
                break
            self._hear_partners()
        self._wake_at = find_wake(self._state)

    def _hear_partners(self) -> None:
        if self._notifier is not None:
            self._notifier.note()
        for partner in (self._feeder, *self._watches):
            if partner is not None:
                for event in partner.hear(self._state, self._clock.wall(), self._clock.mono()):
                    self._record(event)

    def _carry_out(self, order: CancelJob | CheckOutput | Record) -> None:
        if isinstance(order, CancelJob):
            if order.reason == "timed_out" and order.key.phase == "work" and self._state.spec.cluster is None:
                # before its agent is told to end, which changes its files
                note_limit(self._jobs.site, self._state.tasks[order.key.task], order.key)
            self._executor.stop(order.key, now=order.now)
        elif isinstance(order, CheckOutput):
            # by size alone: what a file says of when it changed is a clock's word, and clocks are set
            key = order.key
            job, size = self._state.tasks[key.task].job, measure_output(self._jobs.site, key)
            waits = not size and order.timer == "workspace_timeout"
            grown = waits or job is None or size != job.output_size
            self._record(OutputSeen(key, size) if grown else TimerFired(key, order.timer))
        else:
            if self._feeder is not None and isinstance(order.event, SessionEnded):
                self._feeder.finish(self._state)
            self._record(order.event)

    def _start(self, keys: list[JobKey]) -> None:
        """Start claimed jobs; what cannot even be prepared never ran."""
        if not self._flush(sync=self._executor.needs_sync):
            self._hold(keys, "the session directory cannot be written")
            return
        jobs: list[Job] = []
        for number, key in enumerate(keys):
            try:
                jobs.append(self._jobs.build(key, self._state))
            except NoSpace as error:
                self._hold([key], str(error), WORKTREE_SPACE, RETRY_SPACE_S)
            except MemoryError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and not is_of_one_job(error, self._session.path):
                    self._hold(keys[number:], f"cannot write the files of {key.task}: {error.strerror}")
                    break
                self._record(fail_job(Exit(key, None), error))
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
        status = project_live(self._state)
        if self._views:
            complaint = self._views.write(status, durable=ended)
            status["view_problems"] = self._views.problems
            if complaint:
                say(complaint)
        shown = self._show(status, durable=ended or self._shown_ended)
        acknowledged = self._acknowledge()  # after it was shown, so that the client finds what it asked for
        if not shown and not (acknowledged and self._show(status, durable=ended or self._shown_ended)):
            self._next_publish = now + RETRY_DISK_S  # until then the clients read the logs
            return
        self._dirty, self._shown_ended = False, ended
        if self._notifier is not None:
            self._notifier.show(status)
        cost = self._clock.mono() - now
        self._next_publish = now + max(PUBLISH_FIRST_S, PUBLISH_COST_FACTOR * cost)

    def _show(self, status: dict[str, Any], *, durable: bool) -> bool:
        """Replace status.json; False while the disk refuses.

        A full disk gives the room of the reserve, which is for this as for the logs.
        """
        summary = project_summary(status)
        try:
            try:
                self._session.replace_status(status, summary, durable=durable)
            except OSError as error:
                if error.errno not in FULL or not give_up_reserve(self._session.path):
                    raise
                self._session.replace_status(status, summary, durable=durable)
        except OSError as error:
            say(f"cannot write {self._session.status_path}: {error.strerror}")
            return False
        return True

    def _timeout_s(self) -> float | None:
        """How long to wait (seconds); None = until something happens."""
        times = [] if self._wake_at is None else [self._wake_at]
        if self._dirty:
            times.append(self._next_publish)
        times += [watch.look_at for watch in self._watches if watch.look_at is not None]
        return max(0.0, min(times) - self._clock.mono()) if times else None
