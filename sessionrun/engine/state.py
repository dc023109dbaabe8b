"""What a session's journal says, as records: the scheduler's state.

The records are changed by `fold` alone (`take` and `give` are its accounts of tokens) and read by `scheduler` and
`status`.  Two states folded from the same entries are equal; the ready queue inside, an index, takes no part.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from sessionrun.engine.ready import ReadyQueue
from sessionrun.engine.task import RunningJob, TaskState
from sessionrun.model.frozen import changeable
from sessionrun.model.keys import JobKey
from sessionrun.model.reasons import Effect
from sessionrun.model.spec import PROVIDER_PREFIX, Outcome, SessionSpec
from sessionrun.model.usage import Usage

if TYPE_CHECKING:  # a launch shows a state in which nothing has happened
    from sessionrun.engine.rules import Rules
    from sessionrun.model.events import HoldPlaced, SessionEnded, SupervisorStarted

FAILURES: Final[tuple[Outcome, ...]] = ("failed", "timed_out", "lost", "interrupted")
"""Outcomes that count as a failure of the task itself."""

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
