"""One task of a session, as its journal tells it, and the job of it that runs.

All of it is changed by `fold` alone.  This module decides nothing, and does not know why something is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Final, NamedTuple, TypeAlias

from sessionrun.model.checks import Checked, Note, ProofVerdict
from sessionrun.model.events import Stopping, Timer
from sessionrun.model.frozen import changeable
from sessionrun.model.keys import WORKSPACE_PHASES, JobKey, Phase
from sessionrun.model.places import Handed, LandEntry, Leftover, Place
from sessionrun.model.repositories import has_worktree
from sessionrun.model.spec import Limits, Outcome, TaskSpec, hides_tests, turn_deadline
from sessionrun.model.usage import Usage

UP_TO_WORK: Final[frozenset[Phase]] = frozenset(("prepare", "setup", "work"))
"""What a hold on request, on a task's provider or for want of money keeps from starting: WORK, and what would only
have to wait for WORK then.  The phases behind it only finish what has been done, and cost nothing."""

Keeper: TypeAlias = tuple[int | None, int | None]
"""Which keeper runs the jobs: its pid, and the kernel's start time of it."""


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


class Failure(NamedTuple):
    """How an attempt ended without success."""

    outcome: Outcome
    reason_class: str | None
    reason: str | None


class Best(NamedTuple):
    """The best round of an attempt so far: its number, what its CHECK found, and why it is the best."""

    round: int
    checked: Checked
    why: str


class Thread(NamedTuple):
    """The conversation with which the next WORK job of a task goes on.  An attempt begins a new conversation."""

    conversation: str | None = None
    """Its id, as the agent gave it; None: the next job begins a conversation."""
    usage: Usage | None = None
    """What the runs in it used so far."""
    broken_off: str | None = None
    """Why the last run was broken off, which the next prompt tells the agent; None: it need not know."""
    turn: int = 1
    """Where the prompts are turns of one conversation: the number of the next job's prompt, from 1."""


class Ran(NamedTuple):
    """With which agent and model the attempts up to `attempt` ran, before a retry changed that."""

    attempt: int
    agent: str
    model: str | None


NO_THREAD: Final = Thread()
_NO_USAGE: Final[Mapping[tuple[str, str], Usage]] = {}


@changeable
class TaskState:
    """One task: what was asked for, the job that runs, and what came of it so far."""

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
    landing: LandEntry | None = None
    """Where its work stands on the way to a branch; None: it is not to land."""
    seat: int | None = None
    """The number of the worktree that stays in which it works; None: it has none."""

    # Where its attempt stands; `begin_attempt` begins with these anew.
    attempt: int = 1
    """The number of the attempt, from 1."""
    round: int = 1
    """The number of the round within the attempt, from 1."""
    phase: Phase | None = None
    """The phase the attempt is in; None: no job of it was claimed."""
    start: int = 1
    """The number of the phase's next job, from 1; with the fields above it is the job's key."""
    tries: int = 0
    """What the starts of the phase without a result count (`transitions.count_try`); `MAX_TRIES` are the last."""
    prepared: bool = False
    """Whether PREPARE was claimed and RELEASE is still owed."""
    worked: bool = False
    """Whether a WORK job of the attempt was claimed: before that there is no work."""
    check_passed: bool | None = None
    """Whether the attempt's last CHECK passed; None: none has ended."""
    proof: ProofVerdict | None = None
    """What the attempt's last PROVE found; None: none has ended."""
    audit: tuple[Note, ...] = ()
    """What the audit of that PROVE says of the work."""
    deadline: float | None = None
    """When WORK and CHECK of the attempt are to end (monotonic); None: no such limit, or no WORK has started."""
    round_deadline: float | None = None
    """When WORK and CHECK of the round are to end (monotonic); None as for `deadline`."""
    overdue: bool = False
    """Whether the round before this one was stopped because its time was up."""
    checked: Checked | None = None
    """What the last CHECK found; None: no CHECK has ended, or the last one found nothing."""
    best: Best | None = None
    """The round whose work is kept; None: no CHECK has found one."""
    node: str | None = None
    """The node of a cluster on which the attempt's jobs run; None: this machine, or none was claimed."""
    failure: Failure | None = None
    """How a job failed whose work hidden tests judge: if they do not pass, the attempt ends so.  None: no job
    failed."""

    # What requests want of it.
    cancelled: bool = False
    """There is to be no further attempt."""
    cancel_reason: str | None = None
    """Why it is cancelled, if that is said."""
    again: bool = False
    """There is to be another attempt as soon as the decided outcome is recorded."""
    held: str | None = None
    """The reason of a hold on request; None: there is none."""

    # What has gone wrong since the user last asked for it, and what it waits for because of that.
    retried: int = 0
    """How many attempts `retries` gave."""
    fallbacks: int = 0
    """How many of its alternatives (`fallback`) were taken; the last of them is the agent whose turn it is."""
    backoffs: int = 0
    """How often its provider was without capacity, in this attempt and with this agent."""
    suspended: bool = False
    """Whether it waits for its provider and gave its slot back."""
    not_before: float = 0.0
    """When its next job may start (monotonic); 0: at once."""

    # Its conversation, and what its last WORK job left.
    thread: Thread = NO_THREAD
    """The conversation that its next WORK job goes on with."""
    last_thread: Thread = NO_THREAD
    """The conversation as it stood when its attempt ended; a follow-up goes on with it."""
    last_conversation: str | None = None
    """The id of the last job's conversation; if that gave no id, that of an earlier job."""
    last_model: str | None = None
    """The model that it used; if the job named no model, that of an earlier job."""
    exit_code: int | None = None
    """The exit code of the last WORK job; None: it has none."""
    signal: int | None = None
    """The signal that ended it."""
    remark: tuple[str, str] | None = None
    """Reason class and reason of one that passed, though its exit was not seen or not its own."""
    leftovers: tuple[Leftover, ...] | None = None
    """What it left behind."""

    # How it ended, or its last attempt.
    decided: Outcome | None = None
    """The outcome until it is recorded; a RELEASE that is owed comes in between."""
    outcome: Outcome | None = None
    """The outcome, once it is recorded; None: the task has not ended."""
    last_outcome: Outcome | None = None
    """The outcome of the attempt before this one."""
    reason_class: str | None = None
    """The published word for the reason of the outcome; if there is no outcome, for that of `last_outcome`."""
    reason: str | None = None
    """The same reason in one line for people."""

    # When it began and ended, since it was last asked for.
    started_at: float | None = None
    """When its first process started (wall time)."""
    started_mono: float | None = None
    """The same in monotonic time."""
    ended_at: float | None = None
    """When its outcome was recorded (wall time); None also for a task that never started."""
    duration_s: float | None = None
    """How long it took, in monotonic time."""
    ended_seq: int | None = None
    """The number of the journal's record of its end."""

    # What all of its WORK jobs used together.
    usage: Usage | None = None
    """The sum; None: nothing is known of any."""
    usage_by_agent: Mapping[tuple[str, str], Usage] = field(default_factory=lambda: _NO_USAGE)
    """The sums by agent and by the name of the model (see `name_model`)."""
    forgiven: int = 0
    """The part of the cost (nanodollars) that the task's budget does not count: what the task had cost when the
    user last asked for it."""
    ran: tuple[Ran, ...] = ()
    """With what earlier attempts ran, where a retry changed that; oldest first."""

    # What a user asked of it after its end, and what its further attempts go on with.
    follow_ups: tuple[str, ...] = ()
    """The follow-ups, in their order; the attempts work on the last one."""
    follow_up_attempt: int = 1
    """The attempt with which the last one began."""
    earlier_place: Place | None = None
    """Where the work lay when the last attempt ended: the next PREPARE goes on there."""
    handed_place: Place | None = None
    """Where the task ended when it last succeeded: tasks that need it get this until it succeeds again."""

    @property
    def order(self) -> int:
        """What orders tasks that are ready: smaller goes first.  A bigger priority, then the place in the plan."""
        return self.num - (self.spec.priority << 32) if self.spec.priority else self.num

    @property
    def active(self) -> bool:
        """Whether the task holds its task-span tokens."""
        return self.phase is not None and self.outcome is None

    @property
    def agent(self) -> str:
        """The agent whose turn it is: the task's own, or the last alternative taken."""
        return self.spec.fallback[self.fallbacks - 1].agent if self.fallbacks else self.spec.agent

    @property
    def asked_model(self) -> str | None:
        """The model that goes with `agent`."""
        return self.spec.fallback[self.fallbacks - 1].model if self.fallbacks else self.spec.model

    @property
    def known_outcome(self) -> Outcome | None:
        """The outcome, whether it is recorded or only decided; None: neither."""
        return self.outcome or self.decided

    @property
    def is_held(self) -> bool:
        """Whether a hold on request keeps the task's next job from starting."""
        waits = self.held is not None and self.job is None and self.outcome is None
        return waits and self.next_phase() in UP_TO_WORK

    def has_phase(self, phase: Phase) -> bool:
        spec = self.spec
        if phase == "prepare":
            return spec.workspace.kind != "none"
        if phase == "setup":
            return bool(spec.setup) or spec.environment is not None
        if phase == "check":
            return spec.check is not None or spec.brief is not None or spec.answer == "patch"
        if phase in ("park", "prove"):
            return spec.prove is not None
        return phase == "work" or self.prepared

    def has_round_after(self, phase: Phase) -> bool:
        """Whether another round may follow when a job of this phase ends; tests that are hidden send none back."""
        return self.round < self.spec.rounds and not (phase == "prove" and hides_tests(self.spec))

    def next_phase(self) -> Phase:
        if self.phase is not None:
            return self.phase
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
            ends = [(self.deadline, "timeout"), (self.round_deadline, "round_timeout")]
        if phase == "check" and self.spec.check is not None and self.spec.check.timeout_s is not None:
            ends.append((now + self.spec.check.timeout_s, "check_timeout"))
        known: list[tuple[float, Timer]] = [(end, timer) for end, timer in ends if end is not None]
        return min(known, key=lambda one: one[0], default=(None, "timeout"))

    def sum_by_model(self) -> dict[str, Usage]:
        """What its WORK jobs used by model, whichever agent asked it."""
        sums: dict[str, Usage] = {}
        for (_, model), used in self.usage_by_agent.items():
            sums[model] = sums[model].plus(used) if model in sums else used
        return sums

    def next_key(self) -> JobKey:
        return JobKey(self.spec.id, self.attempt, self.round, self.next_phase(), self.start)


# --- what a task goes on with: what its needs hand on to it, and after a follow-up its own earlier work ---


def find_handed(task: TaskState, tasks: Mapping[str, TaskState]) -> tuple[Handed, ...]:
    """Where the needs of a task ended, each once, in their order; nothing where it begins with the session.

    A need that changed nothing, or has no worktree, has nothing of its own; in its place stand its own needs.  An
    attempt that a user asked for follows the branches.
    """
    asked_for = task.attempt - task.retried > 1
    ends = {end.task: end for end in _walk(task, tasks)}
    return tuple(replace(end, follow=end.follow or asked_for) for end in ends.values())


def find_end(task: TaskState) -> Place | None:
    """Where the work of a task ended; until its follow-up has succeeded, this is where it ended before."""
    before = task.handed_place
    return task.place if before is None or task.outcome == "succeeded" else before


def _walk(task: TaskState, tasks: Mapping[str, TaskState]) -> Iterator[Handed]:
    stack = [task]
    seen = {task.spec.id}
    while stack:
        at = stack.pop()
        place = find_end(at)
        holds_no_work = place is not None and place.holds_no_work
        if at is not task and has_worktree(at.spec) and not holds_no_work:
            end = place or Place()
            if end.commit is not None:
                yield Handed(at.spec.id, end.commit, end.rescue or end.branch)
            else:
                why = end.remark or end.kept or "nothing says where its work is"
                yield Handed(at.spec.id, None, end.branch, why)
        elif at.spec.base != "session":
            needs = [need for need in at.spec.needs if need in tasks and need not in seen]
            seen.update(needs)
            stack += [tasks[need] for need in reversed(needs)]


def find_earlier(task: TaskState) -> Place | None:
    """Where an attempt goes on with earlier work; None: there is none, and it begins as a first attempt does."""
    place = task.earlier_place
    return None if place is None or is_empty(place) else place


def is_empty(place: Place) -> bool:
    """Whether nothing is left of an attempt's workspace: neither work nor a branch."""
    has_work = place.commit is not None and not place.holds_no_work
    return place.branch is None and place.worktree is None and not has_work
