"""Drives the scheduler as the supervisor does, on simulated time, and keeps what it recorded.

The executor has no processes: every job's fate is scripted, and time jumps to the next event.  A day of work takes
milliseconds and comes out the same each time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson

from sessionrun.engine.fold import apply
from sessionrun.engine.requests import find_fault
from sessionrun.engine.scheduler import CancelJob, CheckOutput, Order, Record, StartJob, decide, find_wake
from sessionrun.engine.state import State
from sessionrun.engine.status import project
from sessionrun.engine.task import TaskState
from sessionrun.model.asked import Sandbox
from sessionrun.model.events import (
    Entry,
    Event,
    HoldLifted,
    HoldPlaced,
    JobClaimed,
    JobFinished,
    JobLost,
    JobStarted,
    OutputSeen,
    RequestReceived,
    SupervisorStarted,
    TasksAdded,
    TimerFired,
    to_record,
)
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.places import Place
from sessionrun.model.spec import SLOT, AgentSpec, Job, Limits, SessionSpec, TaskSpec
from sessionrun.session.executor import Exit, Notice
from sessionrun.session.history import begin
from sessionrun.session.partners import Watch
from sessionrun.store.records import read_entry

if TYPE_CHECKING:
    from typing_extensions import Self

EPOCH_S = 1_700_000_000.0
CLASSES = {75: "usage_limit", 76: "rate_limited", 77: "agent_crashed", 78: "auth", 79: "no_conversation"}
"""Exit codes by which a simulated agent says why it failed."""

PLACES: dict[Phase, Place] = {"prepare": Place("b", "/w", "c"), "release": Place("b", None, "c")}
"""What jobs of workspaces answer."""

AGENTS = {
    "one": AgentSpec("one", ("one",), continue_args=("{conversation}",), provider="first"),
    "two": AgentSpec("two", ("two",), provider="first"),
    "three": AgentSpec("three", ("three",)),
}

Planned = tuple[float, Event]


def task(name: str, agent: str = "one", **fields: Any) -> TaskSpec:
    """A task whose prompt does not matter."""
    return TaskSpec(name, ("x",), agent=agent, **fields)


def make_session(
    tasks: Iterable[TaskSpec],
    *,
    resources: dict[str, int] | None = None,
    max_failures: int | None = None,
    open_feed: bool = False,
    auto_release: bool = True,
    workspace_timeout_s: float | None = None,
) -> SessionSpec:
    return SessionSpec(
        session_id="s",
        created_at="2026-01-01T00:00:00Z",
        dialect="prompts",
        source="-",
        cwd="/",
        agent="shell",
        agents=AGENTS,
        tasks=tuple(tasks),
        resources=resources or {},
        limits=Limits(max_failures, workspace_timeout_s=workspace_timeout_s),
        open_feed=open_feed,
        auto_release=auto_release,
    )


def judge(ended: Exit) -> JobFinished:
    """The simplest verdict: exit code 0 is success."""
    if ended.wait_status is None:
        reason = f"start_failed: {ended.detail}"
        return JobFinished(ended.key, "failed", "start_failed", reason, ledger=ended.ledger)
    if ended.wait_status == 0:
        place = PLACES.get(ended.key.phase)
        return JobFinished(ended.key, "passed", wait_status=0, exit_code=0, ledger=ended.ledger, place=place)
    code, signal = ended.wait_status >> 8, ended.wait_status & 0x7F or None
    said = CLASSES.get(code, "exit") if not signal and ended.key.phase == "work" else "exit"
    return JobFinished(
        ended.key,
        "failed",
        said,
        f"{said}: {code}",
        ended.wait_status,
        exit_code=None if signal else code,
        signal=signal,
        ledger=ended.ledger,
        conversation="c1" if said in CLASSES.values() else None,
    )


def see_output(state: State, order: CheckOutput, size: int) -> Event:
    """What is recorded when a job is looked at that has printed so much."""
    job = state.tasks[order.key.task].job
    waits = not size and order.timer == "workspace_timeout"
    has_changed = waits or job is None or size != job.output_size
    return OutputSeen(order.key, size) if has_changed else TimerFired(order.key, order.timer)


def as_read(entry: Entry) -> Entry:
    """The entry as a journal gives it back."""
    return read_entry(orjson.loads(orjson.dumps(to_record(entry))))


# --- an executor that jumps from one end of a job to the next ---

SIGKILL: Final = 9
SIGTERM: Final = 15
REFUSED_RETRY_S: Final = 1.0

FateKind: TypeAlias = Literal["exits", "lost", "interrupted", "void", "refused", "unstartable"]


@frozen
class Fate:
    """What becomes of one job; times in seconds.

    `exits`: after `duration_s`, with the raw `wait_status` of wait(2).  `lost`, `interrupted`: it runs as long,
    then it is not known.  `void`: claimed, but it never runs.  `refused`: the system has no room for it (a hold).
    `unstartable`: its program cannot be executed, for `errno`.  A stopped job ends `grace_s` later, by
    `stop_signal`, unless it ends by itself before; one that is stopped `now` at once, by SIGKILL.
    `prints_at` are the times after its start at which it prints a byte.
    """

    kind: FateKind = "exits"
    duration_s: float = 0.0
    wait_status: int = 0
    errno: int = 2
    grace_s: float = 0.0
    stop_signal: int = SIGTERM
    prints_at: tuple[float, ...] = ()


class SimulatedExecutor:
    """Plays the fates that `script` gives to jobs; see `Executor` for the methods it shares."""

    def __init__(self, script: Callable[[Job], Fate], *, start_at: float = 0.0) -> None:
        self._script = script
        self._now = start_at
        self._numbers = count(1)
        self._ends: list[tuple[float, int, JobKey, int | None]] = []
        self._running: dict[JobKey, Fate] = {}
        self._begun_at: dict[JobKey, float] = {}

    def clock(self) -> float:
        """Simulated monotonic time in seconds."""
        return self._now

    @property
    def running(self) -> int:
        return len(self._running)

    needs_sync = False

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        return JobClaimed(key)

    def settle(self) -> None:
        """See `Executor.settle`."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """See `Executor.start`.  After a refusal the rest of `jobs` never runs either."""
        notices: list[Notice] = []
        for place, job in enumerate(jobs):
            fate = self._script(job)
            if fate.kind == "refused":
                reason = "no room for another process"
                notices.append(HoldPlaced(SLOT, reason, until=self._now + REFUSED_RETRY_S, until_exit=True))
                notices += [JobLost(rest.key, "void", reason, counts=False) for rest in jobs[place:]]
                break
            notices.append(self._begin(job.key, fate))
        return notices

    def _begin(self, key: JobKey, fate: Fate) -> Notice:
        number = next(self._numbers)
        if fate.kind == "void":
            return JobLost(key, "void", "it never ran")
        if fate.kind == "unstartable":
            return Exit(key, None, number, errno=fate.errno, detail="no such program")
        self._running[key], self._begun_at[key] = fate, self._now
        heappush(self._ends, (self._now + fate.duration_s, number, key, None))
        return JobStarted(key, pid=number, started=number, ledger=number)

    def measure_output(self, key: JobKey) -> int:
        """How much a running job has printed (bytes)."""
        return sum(self._begun_at[key] + time <= self._now for time in self._running[key].prints_at)

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        fate = self._running.get(key)
        if fate is not None:
            wait_s, signal = (0.0, SIGKILL) if now else (fate.grace_s, fate.stop_signal)
            heappush(self._ends, (self._now + wait_s, next(self._numbers), key, signal))

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        """Jump to the next end, or by `timeout_s`; all that ends at that moment is told.

        Raises:
            RuntimeError: nothing runs and no time was given, so a real executor would wait for ever.
        """
        until = None if timeout_s is None else self._now + max(0.0, timeout_s)
        end_at = self.next_end()
        if end_at is not None and (until is None or end_at <= until):
            until = end_at
        if until is None:
            raise RuntimeError("waits for ever: no job runs and no time is set")
        self._now = max(self._now, until)
        notices: list[Notice] = []
        while self._ends and self._ends[0][0] <= self._now:
            _, number, key, stop_signal = heappop(self._ends)
            fate = self._running.pop(key, None)
            if fate is not None:
                notices.append(_tell_end(key, fate, number, stop_signal))
        return notices

    def next_end(self) -> float | None:
        """When the next job ends; a stopped one has several ends, and only the first one happens."""
        while self._ends and self._ends[0][2] not in self._running:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def close(self) -> None:
        """See `Executor.close`; nothing is open here."""


def _tell_end(key: JobKey, fate: Fate, number: int, stop_signal: int | None) -> Notice:
    if stop_signal is not None:
        return Exit(key, stop_signal, number)
    if fate.kind == "lost" or fate.kind == "interrupted":
        return JobLost(key, fate.kind, "its end was not seen")
    return Exit(key, fate.wait_status, number)


# --- sessions: with scripted ends, and with an executor ---


class Scripted:
    """A session without an executor: `begins` and `stops` of a subclass say what becomes of its jobs.

    Each entry is read back as a journal gives it, and its number is its time; decisions are made `ahead_s` later.
    The wall clock shows `wall_s` more than the monotonic one.
    """

    ahead_s, wall_s = 0.0, 0.0
    until = ""
    """The key of a job, or a phase, that does not end by itself."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec, self.state = spec, begin(spec)
        self.entries: list[Entry] = []

    def __getitem__(self, name: str) -> TaskState:
        return self.state.tasks[name]

    def now(self) -> float:
        return float(len(self.entries))

    def record(self, event: Event) -> None:
        entry = Entry(len(self.entries) + 1, self.wall_s + self.now(), self.now(), event)
        self.entries.append(as_read(entry))
        apply(self.state, self.entries[-1])

    def go_on(self, until: str = "") -> Self:
        """Carry out orders until there is nothing left but to wait, or nothing beside the job `until`."""
        self.until = until
        while self.take_turn(self.now() + self.ahead_s):
            pass
        return self

    def take_turn(self, now: float) -> bool:
        """Carry out the orders of one time; whether anything happened then."""
        begun: list[JobKey] = []
        acts = sum(self._carry_out(order, begun) for order in decide(self.state, now)) > 0
        for key in begun:  # as with processes, no job ends before all orders are carried out
            self.begins(key)
        return acts

    def _carry_out(self, order: Order, begun: list[JobKey]) -> bool:
        if isinstance(order, StartJob):
            self.record(JobClaimed(order.key))
            begun.append(order.key)
        elif isinstance(order, Record):
            self.record(order.event)
        else:
            return isinstance(order, CancelJob) and self.stops(order.key)
        return True

    def begins(self, key: JobKey) -> None:
        if self.until not in (key.text(), key.phase):
            self.end(key)

    def end(self, key: JobKey) -> None:
        """A job ends, if a subclass says how."""

    def stops(self, key: JobKey) -> bool:
        """A job is to end; whether anything happened then."""
        return False

    def examine_replay(self) -> None:
        """A replay of the journal comes to the same."""
        again = begin(self.spec)
        for entry in self.entries:
            apply(again, entry)
        assert again == self.state and project(again) == project(self.state)


class Drive:
    """One session on an executor; `planned` events (requests, holds, late tasks) come at their times.

    `entries` holds what was recorded.  A `suspicious` one looks whether decisions change the state, whose ready
    queue is only an index.  One that `replays` has a second state: it lives on what the journal would give back.
    """

    def __init__(
        self,
        spec: SessionSpec,
        executor: SimulatedExecutor,
        planned: Iterable[Planned] = (),
        watch: Callable[[State, Entry], None] | None = None,
        state: State | None = None,
        *,
        judged: Callable[[Exit], JobFinished] = judge,
        sharing: Watch | None = None,
        suspicious: bool = False,
        replays: bool = False,
    ) -> None:
        self._suspicious = suspicious
        self.replayed = begin(spec) if replays else None
        self.state = begin(spec) if state is None else state
        self.sharing = sharing
        self.executor = executor
        self.entries: list[Entry] = []
        self._judged = judged
        self._planned = sorted(planned, key=lambda plan: plan[0])
        self._watch = watch
        self._wake: float | None = None

    def run(self) -> Drive:
        """Go on until the session has ended and no request is left that might re-open it."""
        self.start()
        while self.state.ended is None or self._planned:
            due = self.due_at()
            assert self.executor.running or due is not None, f"nothing runs, nothing is due: {self.outcomes}"
            self.step(due)
        return self

    def start(self) -> None:
        if not self.state.seq:
            self.record(SupervisorStarted(1, 1, 1, "b1", "n", "0"))
        self.settle()

    def due_at(self) -> float | None:
        """When something is due, if no job ends before."""
        planned = self._planned[0][0] if self._planned else None
        return min((time for time in (self._wake, planned) if time is not None), default=None)

    def step(self, until: float | None) -> None:
        """Wait for the next end of a job, until then at most, and go on."""
        timeout_s = None if until is None else max(0.0, until - self.executor.clock())
        for notice in self.executor.wait(timeout_s):
            self.record(self._judged(notice) if isinstance(notice, Exit) else notice)
        self._happen()
        self.settle()

    def record(self, event: Event) -> None:
        now = self.executor.clock()
        entry = Entry(self.state.seq + 1, EPOCH_S + now, now, event)
        self.entries.append(entry)
        apply(self.state, entry)
        if self._watch is not None:
            self._watch(self.state, entry)
        if self.replayed is not None:
            apply(self.replayed, as_read(entry))
            assert self.replayed == self.state

    def _happen(self) -> None:
        """What is due; after the end only requests come, and holds may be lifted."""
        while self._planned and self._planned[0][0] <= self.executor.clock():
            event = self._planned.pop(0)[1]
            if isinstance(event, (RequestReceived, TasksAdded)) and find_fault(self.state, event) is not None:
                continue
            if self.state.ended is None or isinstance(event, (HoldLifted, RequestReceived, TasksAdded)):
                self.record(event)

    def settle(self) -> None:
        """Carry out orders until there is nothing left but to wait."""
        self._wake = None
        self._hear()
        acts = True
        while acts:
            acts, keys = False, []
            for order in self._decide():
                acts = True
                if isinstance(order, StartJob):
                    keys.append(order.key)
                self._carry_out(order)
            for notice in self.executor.start([Job(key, ("true",), "/", "", "") for key in keys]) if keys else ():
                self.record(self._judged(notice) if isinstance(notice, Exit) else notice)
            self._hear()
        self._wake = find_wake(self.state)

    def _decide(self) -> Iterator[Order]:
        orders = decide(self.state, self.executor.clock())
        while True:
            before = pickle.loads(pickle.dumps(self.state)) if self._suspicious else None  # deepcopy takes longer
            order = next(orders, None)
            assert before is None or before == self.state, "a decision changed the state"
            if order is None:
                return
            yield order

    def _hear(self) -> None:
        now = self.executor.clock()
        for event in self.sharing.hear(self.state, EPOCH_S + now, now) if self.sharing else ():
            self.record(event)

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, StartJob):
            self.record(JobClaimed(order.key))
        elif isinstance(order, CancelJob):
            self.executor.stop(order.key, now=order.now)
        elif isinstance(order, CheckOutput):
            self.record(see_output(self.state, order, self.executor.measure_output(order.key)))
        else:
            self.record(order.event)

    def claims(self) -> dict[str, float]:
        events = ((entry.event, entry.mono) for entry in self.entries)
        return {event.key.text(): at for event, at in events if isinstance(event, JobClaimed)}

    @property
    def outcomes(self) -> dict[str, str | None]:
        return {name: task.outcome for name, task in self.state.tasks.items()}
