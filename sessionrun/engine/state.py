"""What a session's journal says, as records: the scheduler's state; what businesses add; which tasks could start.

The records are changed by `fold` alone (`take` and `give` are its accounts of tokens) and read by `scheduler` and
`status`.  Two states folded from the same entries are equal; the ready queue inside takes no part.

In that index entries may be stale or doubled, and the code that pops one checks it.  A task that lacks a token is
parked under that token's name, so that 10,000 waiting tasks cost nothing while they wait.  A token given back
offers itself to the first task parked under it; a task that takes up that offer passes on what is left (`unpark`
again), also when its entry proved stale: an offer that ended with a stale entry would leave the tasks behind it
waiting for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, TypeAlias

from sessionrun.engine.task import RunningJob, TaskState
from sessionrun.model.events import (
    Entry,
    Event,
    HoldPlaced,
    JobFinished,
    JobLost,
    RequestReceived,
    SessionEnded,
    SupervisorStarted,
)
from sessionrun.model.frozen import changeable
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.spec import PROVIDER_PREFIX, SLOT, Outcome, SessionSpec, TaskSpec
from sessionrun.model.usage import Usage
from sessionrun.model.words import Effect, LandWord

CONTINUING: Final = 0
"""Rank of a task that has begun: it goes before those that have not."""

NEW: Final = 1

Ready: TypeAlias = tuple[int, int, str, str]
"""Rank, what orders it there (see `TaskState.order`), task id, and the resource offered to it (empty: none)."""


class ReadyQueue:
    """Heaps of task ids: ready now, parked under a token, waiting for a time; and what is to be told.

    `timers` is the heap of deadlines (monotonic), each with place and id of a task; any of them may be stale.
    """

    __slots__ = ("_delayed", "_parked", "_ready", "decided", "stops", "timers")

    def __init__(self) -> None:
        self._ready: list[Ready] = []
        self._parked: dict[str, list[tuple[int, int, str]]] = {}
        self._delayed: list[tuple[float, int, int, str]] = []
        self.timers: list[tuple[float, int, str]] = []
        self.stops: deque[str] = deque()
        self.decided: deque[str] = deque()

    def push(self, rank: int, num: int, task: str, until: float = 0.0) -> None:
        """A task may have a job to start, from monotonic time `until` on."""
        if until:
            heappush(self._delayed, (until, rank, num, task))
        else:
            heappush(self._ready, (rank, num, task, ""))

    def pop(self, last_rank: int) -> Ready | None:
        """Take the first entry; None: there is none up to the last rank."""
        return heappop(self._ready) if self.is_ready(last_rank) else None

    def is_ready(self, last_rank: int) -> bool:
        """Whether `pop` would find an entry, be it a stale one."""
        return bool(self._ready) and self._ready[0][0] <= last_rank

    def is_parked(self, resource: str) -> bool:
        return bool(self._parked.get(resource))

    def park(self, resource: str, rank: int, num: int, task: str) -> None:
        """Set a task aside until `resource` is offered to it."""
        heappush(self._parked.setdefault(resource, []), (rank, num, task))

    def unpark(self, resource: str) -> None:
        """Offer `resource` to the first task parked under it: that one becomes ready."""
        parked = self._parked.get(resource)
        if parked:
            rank, num, task = heappop(parked)
            heappush(self._ready, (rank, num, task, resource))

    def drain(self, resource: str) -> list[tuple[int, int, str]]:
        """Take out all that are parked under `resource`: rank, place, task."""
        return self._parked.pop(resource, [])

    def unpark_all(self, resource: str) -> None:
        for rank, num, task in self.drain(resource):
            self.push(rank, num, task)

    def undelay(self, now: float) -> None:
        """Make ready whose time has come."""
        while self._delayed and self._delayed[0][0] <= now:
            _, rank, num, task = heappop(self._delayed)
            self.push(rank, num, task)

    def set_timer(self, deadline: float | None, task: TaskState) -> None:
        """A running job of this task is to end by `deadline` (monotonic), if there is one."""
        if deadline is not None:
            heappush(self.timers, (deadline, task.num, task.spec.id))

    def next_time(self) -> float | None:
        """The earliest monotonic time at which something here becomes due."""
        return min((heap[0][0] for heap in (self._delayed, self.timers) if heap), default=None)


FAILURES: Final[tuple[Outcome, ...]] = ("failed", "timed_out", "lost", "interrupted")
"""Outcomes that count as a failure of the task itself."""

START_BATCH: Final = 64
"""Most jobs started by one decision, so that ends are seen between large batches."""

BUDGET: Final = "budget"
"""The name under which tasks wait for money, and the reason class of those that got none."""


@changeable
class Rate:
    """What WORK jobs of one agent and model cost (nanodollars): `known` is what `known_jobs` said.

    `working` of them run; `silent` counts tries to learn it from one that ended, and is full at once where a
    job told its tokens, but nothing tells their price.
    """

    known: int = 0
    known_jobs: int = 0
    working: int = 0
    silent: int = 0


@changeable
class Money:
    """A session's account in nanodollars.

    `rates` has what is known by the name under which tasks wait for the first job of their agent and model.
    `lifted` says that the user went on after the soft budget was spent.
    """

    spent: int = 0
    reserved: int = 0
    lifted: bool = False
    rates: dict[str, Rate] = field(default_factory=dict)

    @property
    def working(self) -> int:
        """How many jobs run that cost money."""
        return sum(rate.working for rate in self.rates.values())


@changeable
class Provider:
    """What is known of a provider that was short of something.

    `strikes` counts how often in a row it was; `effect` is why; `met_at` is when that began and `until_at` when it
    ends (wall time); `heard` is the session that met it, None: this one.  While it is `probing` its hold is lifted
    for one task alone, the `canary`, until `canary_until` (monotonic).
    """

    strikes: int = 0
    effect: Effect = "none"
    met_at: float = 0.0
    until_at: float | None = None
    heard: str | None = None
    probing: bool = False
    canary: str | None = None
    canary_until: float | None = None


Act: TypeAlias = "Callable[[State, Entry, Any], None]"
"""What an event of the journal changes in the state."""


def _add_nothing(*_: object) -> None:
    """Stand for a moment at which a business has nothing to do."""


class Rules(NamedTuple):
    """What a business does at which moment of the engine's; one that it leaves out means nothing to it.

    The engine knows the moments, and no business.  A session is folded with the rows of the businesses that it has
    (`moves.begin` takes them), in the order of the house, and does everything else without them.  A row names pure
    functions of modules alone, so that a state can be pickled.  One that returns nothing is part of the fold; the
    others only look.

    Attributes:
        begin: the session has no tasks yet: the place for what the business keeps in `State.parts`.
        events: what those events of the journal change that are its own.
        phase: the phase whose jobs are the session's and no task's: one job for the work of many.
        claimed: a job of that phase is claimed.
        job_ended: a job of that phase has ended, or was lost.
        starts: the job of that phase that is to start now; None: none is.
        owed: the event that is to be recorded now; None: there is none.
        is_open: whether the session has to go on, although all its tasks have ended.
        task_added: a task comes while the session runs; it is not among the tasks yet.
        task_ended: the task has its outcome, and those that wait for it know.
        task_continued: a follow-up is noted, and the task is about to begin anew.
        requested: a request was done to the tasks.
        find_fault: why a task that has ended cannot be continued now; None: it can.
        find_stage: where the work of a task that has ended stands on its way; None: it has no such way.
        show: keys of the task in status.json, in the place of the engine's own; None: there are none.
    """

    begin: Callable[[State], None] = _add_nothing
    events: Mapping[type, Act] = {}
    phase: Phase | None = None
    claimed: Callable[[State, Entry, JobKey], None] = _add_nothing
    job_ended: Callable[[State, Entry, RunningJob, JobFinished | JobLost], None] = _add_nothing
    starts: Callable[[State], JobKey | None] = _add_nothing
    owed: Callable[[State], Event | None] = _add_nothing
    is_open: Callable[[State], bool | None] = _add_nothing
    task_added: Callable[[State, TaskSpec], None] = _add_nothing
    task_ended: Callable[[State, TaskState], None] = _add_nothing
    task_continued: Callable[[State, TaskState], None] = _add_nothing
    requested: Callable[[State, RequestReceived], None] = _add_nothing
    find_fault: Callable[[State, TaskState], str | None] = _add_nothing
    find_stage: Callable[[State, TaskState], LandWord | None] = _add_nothing
    show: Callable[[State, TaskState], Mapping[str, object] | None] = _add_nothing


@changeable
class State:
    """One session; `queue` is an index, and no part of it."""

    spec: SessionSpec
    """What was asked for."""
    tasks: dict[str, TaskState] = field(default_factory=dict)
    """All tasks by id, in the order of the plan; those of a feed come at the end."""
    dependents: dict[str, dict[str, None]] = field(default_factory=dict)
    """By the id of a task without an outcome: the tasks that wait for it."""
    free: dict[str, int] = field(default_factory=dict)
    """How many tokens of each limited resource are free."""
    holds: dict[str, HoldPlaced] = field(default_factory=dict)
    """The holds that the machine placed, by resource; those on request are in `held` and with the tasks."""
    providers: dict[str, Provider] = field(default_factory=dict)
    """What is known of the providers that were short of something, by resource."""
    requests: set[str] = field(default_factory=set)
    """The ids of the requests that were taken, so that each counts once."""
    feed_open: bool = False
    """Whether more tasks may come."""
    seq: int = 0
    """The number of the last entry."""
    epoch: int = 0
    """The epoch of the supervisor that started last."""
    boot_id: str = ""
    """The boot of the machine in which the monotonic times here count."""
    supervisor: SupervisorStarted | None = None
    """The supervisor that started last."""
    most_slots: int | None = None
    """How many slots there are at most, whatever width was asked for; None: as many as are asked for."""
    started_at: float | None = None
    """When the session started (wall time)."""
    ended_at: float | None = None
    """When it ended (wall time); None: it has not, or was taken up again."""
    ended: SessionEnded | None = None
    """How it ended."""
    cancelled: bool = False
    """Whether a request cancelled the whole session: tasks that come later are cancelled, too."""
    halted: bool = False
    """Whether as many tasks failed as may."""
    held: str | None = None
    """The reason of a hold on the whole session, for tasks that come later."""
    forgiven: int = 0
    """How many failures `max_failures` ignores: those before the session was last asked to try again."""
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    """How many tasks have each outcome."""
    failed_mends: int = 0
    """How many of them are mends that failed."""
    usage_by_model: dict[str, Usage] = field(default_factory=dict)
    """What all jobs that have ended used, by the name of the model (see `money`)."""
    money: Money = field(default_factory=Money)
    """The account."""
    running_jobs: int = 0
    """How many jobs are claimed and have not ended."""
    start_batch: int = START_BATCH
    """How many jobs the next decision may start: 1 after a refusal, more with each success."""
    wall_offset: float = 0.0
    """Wall time less monotonic time (seconds) as of the last entry, to show deadlines to people."""
    seats: dict[int, str] = field(default_factory=dict)
    """By number: the tasks that hold a worktree that stays."""
    parts: dict[type, Any] = field(default_factory=dict)
    """What businesses keep here, by its type."""
    queue: ReadyQueue = field(default_factory=ReadyQueue, compare=False)
    """Which tasks could start next."""
    rules: tuple[Rules, ...] = field(default=(), compare=False)
    """The rules of its businesses, by which it is folded; no part of it either."""

    @property
    def completed(self) -> int:
        """How many tasks have their outcome."""
        return sum(self.outcomes.values())

    @property
    def failures(self) -> int:
        """How many tasks failed by themselves (not skipped, not cancelled); mends do not count."""
        return sum(self.outcomes.get(outcome, 0) for outcome in FAILURES) - self.failed_mends

    @property
    def last_rank(self) -> int:
        """The last rank of which a task could start now: without a free slot none that has not begun."""
        return CONTINUING if SLOT in self.free and self.free[SLOT] <= 0 else NEW

    @property
    def exhausted(self) -> bool:
        """Whether as many tasks failed as may."""
        limit = self.spec.limits.max_failures
        return limit is not None and self.failures - self.forgiven >= max(1, limit)


def find_job(state: State, key: JobKey) -> tuple[TaskState, RunningJob | None]:
    """The task of `key`, and its running job when it is that one: a second report of an end means nothing."""
    task = state.tasks[key.task]
    return task, task.job if task.job is not None and task.job.key == key else None


def provider_of(state: State, task: TaskState) -> str:
    """The resource that stands for the account which the task's agent uses."""
    agent = state.spec.agents.get(task.agent)
    return PROVIDER_PREFIX + ((agent.provider if agent else None) or task.agent)
