"""What a session's journal says, as records: the scheduler's state.

The records are changed by `fold` alone (`take` and `give` are its accounts of tokens) and read by `scheduler`
and `status`.  Two states that were folded from the same entries are equal; the ready queue inside is an index
and takes no part in that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sessionrun.events import HoldPlaced, SessionEnded, Timer
from sessionrun.model import SLOT, JobKey, Outcome, Phase, Place, SessionSpec, TaskSpec, Usage, is_task_span
from sessionrun.ready import ReadyQueue
from sessionrun.transitions import Stopping

FAILURES: Final[tuple[Outcome, ...]] = ("failed", "timed_out", "lost", "interrupted")
"""Outcomes that count as a failure of the task itself."""

START_BATCH: Final = 64
"""Most jobs started by one decision, so that ends are seen between large batches."""


@dataclass(slots=True)
class RunningJob:
    """The job a task has claimed; `stopping` says why it is being stopped, if it is."""

    key: JobKey
    pid: int | None = None
    started: int | None = None
    deadline: float | None = None
    timer: Timer = "timeout"
    stopping: Stopping | None = None


@dataclass(slots=True)
class TaskState:
    """One task.  `start` counts job keys of a phase, `tries` those that used up one of its chances.

    `prepared` says that PREPARE was claimed and RELEASE is still owed; `decided` is the outcome before it is
    recorded; `last_outcome` that of the attempt before this one; `cancelled` that no further attempt is wanted.
    """

    spec: TaskSpec
    num: int
    unmet: int = 0
    attempt: int = 1
    round: int = 1
    start: int = 1
    tries: int = 0
    phase: Phase | None = None
    job: RunningJob | None = None
    prepared: bool = False
    cancelled: bool = False
    decided: Outcome | None = None
    outcome: Outcome | None = None
    last_outcome: Outcome | None = None
    reason_class: str | None = None
    reason: str | None = None
    not_before: float = 0.0
    deadline: float | None = None
    started_at: float | None = None
    started_mono: float | None = None
    ended_at: float | None = None
    duration_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    conversation: str | None = None
    model: str | None = None
    usage: Usage | None = None
    check_passed: bool | None = None
    place: Place | None = None

    @property
    def active(self) -> bool:
        """Whether the task holds its task-span tokens."""
        return self.phase is not None and self.outcome is None

    def has_phase(self, phase: Phase) -> bool:
        """Whether this task goes through `phase` at all."""
        spec = self.spec
        if phase == "prepare":
            return spec.workspace.kind != "none"
        if phase == "setup":
            return bool(spec.setup)
        if phase == "check":
            return spec.check is not None
        if phase == "land":
            return spec.land is not None
        return phase == "work" or self.prepared

    def next_phase(self) -> Phase:
        """The phase of this task's next job."""
        if self.phase is not None:
            return self.phase
        if self.has_phase("prepare"):
            return "prepare"
        return "setup" if self.spec.setup else "work"

    def deadline_of(self, phase: Phase, now: float) -> tuple[float | None, Timer]:
        """When a job of `phase` that begins `now` is to end (monotonic), and which limit that is.

        The attempt's deadline holds for WORK and CHECK; a check may have an earlier one of its own.  A setup
        has only its own.
        """
        if phase == "setup":
            limit = self.spec.setup_timeout_s
            return None if limit is None else now + limit, "setup_timeout"
        deadline = self.deadline if phase in ("work", "check") else None
        check = self.spec.check if phase == "check" else None
        if check is not None and check.timeout_s is not None:
            own = now + check.timeout_s
            if deadline is None or own < deadline:
                return own, "check_timeout"
        return deadline, "timeout"

    def next_key(self) -> JobKey:
        """The key of this task's next job."""
        return JobKey(self.spec.id, self.attempt, self.round, self.next_phase(), self.start)


@dataclass(slots=True)
class State:
    """One session; `queue` is an index, not a part of it.

    `start_batch` is how many jobs the next decision may start: one after a refusal, more with each success.
    `wall_offset` is wall time less monotonic time (seconds) as of the last entry, to show deadlines to people.
    """

    spec: SessionSpec
    tasks: dict[str, TaskState] = field(default_factory=dict)
    dependents: dict[str, list[str]] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)
    holds: dict[str, HoldPlaced] = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)
    feed_open: bool = False
    seq: int = 0
    epoch: int = 0
    boot_id: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    ended: SessionEnded | None = None
    cancelled: bool = False
    halted: bool = False
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    running_jobs: int = 0
    start_batch: int = START_BATCH
    wall_offset: float = 0.0
    queue: ReadyQueue = field(default_factory=ReadyQueue, compare=False)

    @property
    def completed(self) -> int:
        """How many tasks have their outcome."""
        return sum(self.outcomes.values())

    @property
    def failures(self) -> int:
        """How many tasks failed by themselves (not skipped, not cancelled)."""
        return sum(self.outcomes.get(outcome, 0) for outcome in FAILURES)

    @property
    def exhausted(self) -> bool:
        """Whether as many tasks failed as may."""
        limit = self.spec.limits.max_failures
        return limit is not None and self.failures >= max(1, limit)


def find_job(state: State, key: JobKey) -> tuple[TaskState, RunningJob | None]:
    """The task of `key`, and its running job when it is that one: a second report of an end means nothing."""
    task = state.tasks[key.task]
    return task, task.job if task.job is not None and task.job.key == key else None


def task_tokens(state: State, task: TaskState) -> Iterator[tuple[str, int]]:
    """The tokens held from a task's first job to its end, of those that are limited."""
    uses = task.spec.uses
    if SLOT in state.free and SLOT not in uses:
        yield SLOT, 1
    for name, amount in uses.items():
        if is_task_span(name):
            yield name, amount


def job_tokens(task: TaskState, phase: Phase) -> Iterator[tuple[str, int]]:
    """The tokens held for one job of `phase`.

    Never one that a task holds for its whole span: who holds some of it must not wait for more of it.
    """
    uses: Mapping[str, int] = {}
    if phase == "work":
        uses = task.spec.uses
    elif phase == "check" and task.spec.check:
        uses = task.spec.check.uses
    elif phase == "land" and task.spec.land:
        uses = task.spec.land.uses
    for name, amount in uses.items():
        if not is_task_span(name):
            yield name, amount


def take(state: State, tokens: Iterable[tuple[str, int]]) -> None:
    """Count tokens as held."""
    for name, amount in tokens:
        state.free[name] -= amount


def give(state: State, tokens: Iterable[tuple[str, int]]) -> None:
    """Count tokens as free again and offer them to who waits for them."""
    for name, amount in tokens:
        state.free[name] += amount
        state.queue.unpark(name)
