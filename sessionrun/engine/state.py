"""What a session's journal says, as records: the scheduler's state.

The records are changed by `fold` alone (`take` and `give` are its accounts of tokens) and read by `scheduler` and
`status`.  Two states folded from the same entries are equal; the ready queue inside, an index, takes no part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from sessionrun.engine.queue import ReadyQueue
from sessionrun.engine.task import (
    NO_END,
    NO_FOLLOW_UPS,
    NO_SETBACKS,
    NO_THREAD,
    NO_TIMES,
    NO_TOTALS,
    NO_WISH,
    NO_WORK,
    End,
    FollowUps,
    LandEntry,
    LastWork,
    Progress,
    Setbacks,
    Thread,
    Times,
    Totals,
    Wish,
)
from sessionrun.model.frozen import changeable
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.places import Place
from sessionrun.model.reasons import Effect
from sessionrun.model.spec import PROVIDER_PREFIX, Limits, Outcome, SessionSpec, TaskSpec, hides_tests
from sessionrun.model.turns import WORKSPACE_PHASES, turn_deadline
from sessionrun.model.usage import Usage

if TYPE_CHECKING:  # a launch shows a state in which nothing has happened
    from sessionrun.engine.transitions import Stopping
    from sessionrun.model.cluster import SlotsOffered
    from sessionrun.model.events import HoldPlaced, SessionEnded, SupervisorStarted, Timer

FAILURES: Final[tuple[Outcome, ...]] = ("failed", "timed_out", "lost", "interrupted")
"""Outcomes that count as a failure of the task itself."""

HELD_PHASES: Final[frozenset[Phase]] = frozenset(("prepare", "setup", "work"))
"""What a hold on request keeps from starting; CHECK and RELEASE only finish what has been done."""

PROVIDED_PHASES: Final[frozenset[Phase]] = frozenset(("prepare", "setup", "work"))
"""What a hold on a task's provider keeps from starting: WORK, and what would only have to wait for WORK then."""

Keeper: TypeAlias = tuple[int | None, int | None]
"""Which keeper runs the jobs: its pid, and the kernel's start time of it."""

CANARY: Final = "canary "
"""Before a provider's name: the one task that may go first is chosen."""

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
    """A session's account in nanodollars; `known` is what `known_jobs` said, `working` how many jobs run.

    `rates` has the same by the name under which tasks wait for the first job of their agent and model.  `lifted`
    says that the user went on after the soft budget was spent.
    """

    spent: int = 0
    reserved: int = 0
    known: int = 0
    known_jobs: int = 0
    working: int = 0
    lifted: bool = False
    rates: dict[str, Rate] = field(default_factory=dict)


@changeable
class RunningJob:
    """The job a task has claimed; `stopping` says why it is being stopped, if it is; `now`: without grace.

    `keeper` runs it, or `node` of a cluster, to which it went in that `epoch`.  `timer` is what `deadline` is the
    end of.  Beside it, at `idle_at`, the output is to be looked at; `output_size` is what it was (bytes).
    `reserved` is the money kept for it, None where it costs none.
    """

    key: JobKey
    keeper: Keeper = (None, None)
    pid: int | None = None
    started: int | None = None
    deadline: float | None = None
    timer: Timer = "timeout"
    stopping: Stopping | None = None
    now: bool = False
    idle_at: float | None = None
    output_size: int = 0
    reserved: int | None = None
    node: str | None = None
    epoch: str | None = None

    def timer_at(self, time: float) -> Timer | None:
        """The timer of this job that is up at that monotonic time; None: there is none (any more)."""
        if self.stopping is not None:
            return None
        if time == self.deadline:
            return self.timer
        return "idle_timeout" if time == self.idle_at else None


@dataclass(slots=True)
class TaskState:
    """One task: what was asked for, the job that runs, and a record for each concern (see `task`).

    The records but `job` and `progress` are values: a change puts a new one in the place of the old one.
    """

    spec: TaskSpec
    """What was asked for."""
    num: int
    """The place in the plan, from 1."""
    unmet: int = 0
    """How many of its needs have no outcome yet."""
    job: RunningJob | None = None
    """The job that the task has claimed; None: it has none at the moment."""
    place: Place | None = None
    """The workspace in git, as the last PREPARE or RELEASE left it; None: it has none."""
    progress: Progress = field(default_factory=Progress)
    """Where it stands."""
    wish: Wish = NO_WISH
    """What requests want of it."""
    setbacks: Setbacks = NO_SETBACKS
    """What it has met with, and waits for because of that."""
    thread: Thread = NO_THREAD
    """The conversation that its next WORK job goes on with."""
    last_work: LastWork = NO_WORK
    """What its last WORK job left."""
    end: End = NO_END
    """How it ended, or its last attempt."""
    times: Times = NO_TIMES
    """When it began and ended."""
    totals: Totals = NO_TOTALS
    """What its WORK jobs used."""
    landing: LandEntry | None = None
    """Its place in the landing queue; None: it has none."""
    seat: int | None = None
    """The number of the worktree that stays in which it works; None: it has none."""
    follow_ups: FollowUps = NO_FOLLOW_UPS
    """What was asked of it after its end."""

    @property
    def order(self) -> int:
        """What orders tasks that are ready: smaller goes first.  A bigger priority, then the place in the plan."""
        return self.num - (self.spec.priority << 32)

    @property
    def active(self) -> bool:
        """Whether the task holds its task-span tokens."""
        return self.progress.phase is not None and self.end.outcome is None

    @property
    def agent(self) -> str:
        """The agent whose turn it is: the task's own, or the last alternative taken."""
        taken = self.setbacks.fallbacks
        return self.spec.fallback[taken - 1].agent if taken else self.spec.agent

    @property
    def asked_model(self) -> str | None:
        """The model that goes with `agent`."""
        taken = self.setbacks.fallbacks
        return self.spec.fallback[taken - 1].model if taken else self.spec.model

    @property
    def is_held(self) -> bool:
        """Whether a hold on request keeps the task's next job from starting."""
        waits = self.wish.held is not None and self.job is None and self.end.outcome is None
        return waits and self.next_phase() in HELD_PHASES

    def has_phase(self, phase: Phase) -> bool:
        """Whether this task goes through `phase` at all."""
        spec = self.spec
        if phase == "prepare":
            return spec.workspace.kind != "none"
        if phase == "setup":
            return bool(spec.setup) or spec.environment is not None
        if phase == "check":
            return spec.check is not None or spec.brief is not None or spec.answer == "patch"
        if phase in ("park", "prove"):
            return spec.prove is not None
        return phase == "work" or self.progress.prepared

    def has_round_after(self, phase: Phase) -> bool:
        """Whether another round may follow when a job of this phase ends; tests that are hidden send none back."""
        return self.progress.round < self.spec.rounds and not (phase == "prove" and hides_tests(self.spec))

    def next_phase(self) -> Phase:
        """The phase of this task's next job."""
        if self.progress.phase is not None:
            return self.progress.phase
        if self.has_phase("prepare"):
            return "prepare"
        return "setup" if self.has_phase("setup") else "work"

    def deadline_of(self, phase: Phase, now: float, limits: Limits) -> tuple[float | None, Timer]:
        """When a job of `phase` that begins `now` is to end (monotonic), and which limit that is.

        Those of the attempt and of the round hold for WORK and CHECK; a check may have an earlier one.  A setup
        has its own.  Of PREPARE and RELEASE it is the first look at whether their time counts already.
        """
        if phase in WORKSPACE_PHASES:
            return turn_deadline(limits, now, 0), "workspace_timeout"
        if phase == "setup":
            limit = self.spec.setup_timeout_s
            return None if limit is None else now + limit, "setup_timeout"
        ends: list[tuple[float | None, Timer]] = []
        if phase in ("work", "check"):
            ends = [(self.progress.deadline, "timeout"), (self.progress.round_deadline, "round_timeout")]
        if phase == "check" and self.spec.check is not None and self.spec.check.timeout_s is not None:
            ends.append((now + self.spec.check.timeout_s, "check_timeout"))
        known: list[tuple[float, Timer]] = [(end, timer) for end, timer in ends if end is not None]
        return min(known, key=lambda one: one[0], default=(None, "timeout"))

    def next_key(self) -> JobKey:
        """The key of this task's next job."""
        progress = self.progress
        return JobKey(self.spec.id, progress.attempt, progress.round, self.next_phase(), progress.start)


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


@changeable
class LandQueue:
    """The work that is to land, and the LAND job that lands it; one such job runs at a time.

    Its key names one of the tasks whose work it takes, and `turns` counts these jobs.
    """

    ready: dict[str, None] = field(default_factory=dict)
    """The tasks whose work the next LAND job takes, in their order."""
    waiting: dict[str, None] = field(default_factory=dict)
    """The tasks whose work waits for that of others."""
    held: dict[str, None] = field(default_factory=dict)
    """The tasks whose work could not land for a reason that is not its own: the next LAND job tries it again."""
    again_at: float = 0.0
    """When a LAND job tries that again if none does so before (monotonic)."""
    in_vain: int = 0
    """How many LAND jobs in a row left work held."""
    to_mend: dict[str, str] = field(default_factory=dict)
    """The tasks whose bounced work is owed a mend, each with the task with whose work that begins."""
    mends: dict[str, int] = field(default_factory=dict)
    """By task: how many mends of its work were added."""
    turns: int = 0
    """How many LAND jobs were claimed."""
    tries: int = 0
    """How many LAND jobs in a row ended without an answer; see `starts.count_try`."""
    lander: str | None = None
    """The task in whose name a LAND job runs; None: there is none."""
    taken: tuple[str, ...] = ()
    """The tasks whose work it took."""
    owed: bool = False
    """Whether a LAND job was broken off, so that another one has to look at what it left."""


@changeable
class State:
    """One session; `queue` is an index, not a part of it."""

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
    offered: SlotsOffered | None = None
    """What its cluster offers; None: it has none, or was not heard of."""
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
    """What all jobs that have ended used, by the name of the model (see `totals`)."""
    money: Money = field(default_factory=Money)
    """The account."""
    running_jobs: int = 0
    """How many jobs are claimed and have not ended."""
    start_batch: int = START_BATCH
    """How many jobs the next decision may start: 1 after a refusal, more with each success."""
    wall_offset: float = 0.0
    """Wall time less monotonic time (seconds) as of the last entry, to show deadlines to people."""
    land: LandQueue = field(default_factory=LandQueue)
    """The landing queue; empty unless the session was asked to land."""
    seats: dict[int, str] = field(default_factory=dict)
    """By number: the tasks that hold a worktree that stays."""
    queue: ReadyQueue = field(default_factory=ReadyQueue, compare=False)
    """Which tasks could start next."""

    @property
    def completed(self) -> int:
        """How many tasks have their outcome."""
        return sum(self.outcomes.values())

    @property
    def failures(self) -> int:
        """How many tasks failed by themselves (not skipped, not cancelled); mends do not count."""
        return sum(self.outcomes.get(outcome, 0) for outcome in FAILURES) - self.failed_mends

    @property
    def wish(self) -> Wish:
        """What requests want of a task that is added or reopened now: at most a hold on all."""
        return NO_WISH if self.held is None else Wish(held=self.held)

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
