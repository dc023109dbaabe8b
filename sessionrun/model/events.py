"""What happened, as frozen records: the events of the journal.

Events are appended to the journal and applied to the scheduler's state; orders are carried out by the
supervisor.  An event never changes its meaning: a new meaning gets a new name, and `JOURNAL_VERSION` counts
up.  This module must not know how records are stored or what they do to the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from sessionrun.model.asked import SlotsOffered
from sessionrun.model.checks import Checked, Note, ProofVerdict
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.kinds import Amount, Count, Moment, Seconds
from sessionrun.model.landings import WorkBounced, WorkHeld, WorkLanded
from sessionrun.model.places import Leftover, Place
from sessionrun.model.spec import AgentSpec, Alternative, Outcome, Price, TaskSpec
from sessionrun.model.usage import Usage
from sessionrun.model.words import Effect

JOURNAL_VERSION: Final = 1

Verdict = Literal["passed", "failed", "timed_out", "cancelled", "lost", "interrupted", "void"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)
"""How one job ended.  `void`: it was claimed, but provably never ran."""

Timer = Literal[
    "timeout",
    "round_timeout",
    "setup_timeout",
    "check_timeout",
    "idle_timeout",
    "workspace_timeout",
    "disk_limit",
    "silent_limit",
    "linger",
]
"""Which limit has ended a job; `disk_limit` and `silent_limit` are of no time."""

Stopping: TypeAlias = Timer | Literal["cancelled"]
"""Why a job is being stopped: the attempt's deadline, its round's, one of its phase's own, its silence, or a
request."""

RequestKind = Literal["cancel", "retry", "hold", "release", "set", "continue"]
REQUEST_KINDS: Final[tuple[RequestKind, ...]] = get_args(RequestKind)


@frozen
class SessionStarted:
    """The session was accepted: from here on it will be run.  Written at the launch, before its id is told."""

    boot_id: str
    pid_ns: str
    version: str
    journal_version: int = JOURNAL_VERSION


@frozen
class SupervisorStarted:
    """A supervisor took over; its identity and its keeper's.  `started` is the kernel's start time of `pid`."""

    epoch: Count
    pid: Count
    started: Count
    boot_id: str
    pid_ns: str
    version: str
    journal_version: int = JOURNAL_VERSION
    keeper: Count | None = None
    keeper_started: Count | None = None


@frozen
class TaskAdded:
    """A feed brought one more task."""

    task: TaskSpec


@frozen
class TasksAdded:
    """A client's request brought more tasks, with all that a launch would have put into the spec for them.

    One record is the request and its tasks, so no crash can come between them.  `leavings` are rules of what git
    ignores because the new agents write it for themselves.
    """

    request_id: str
    tasks: tuple[TaskSpec, ...]
    agents: Mapping[str, AgentSpec] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    resources: Mapping[str, Amount] = field(default_factory=dict)
    leavings: tuple[str, ...] = ()


@frozen
class FeedClosed:
    """No more tasks will come."""


@frozen
class JobClaimed:
    """The supervisor decided to start this job; its tokens are taken.  `node` and `epoch`: of a cluster."""

    key: JobKey
    node: str | None = None
    epoch: str | None = None


@frozen
class JobStarted:
    """The process of a job exists.  `ledger` is the offset behind its spawn record.

    `node` is where, if its claim could not know that.
    """

    key: JobKey
    pid: Count
    started: Count
    ledger: int
    node: str | None = None


@frozen
class JobFinished:
    """A job's process ended and was judged; a replay never judges again.

    `wait_status` is the raw status of wait(2); `cpu_s` user and system time in seconds; `conversation` is the
    agent's own id of its conversation; `resets_at` is when its provider's limit ends (wall time); `turns` counts
    the agent's requests to its model; `checked` is what a CHECK found out, `proof` what a PROVE did, with the
    notes of its `audit`; `leftovers` names the processes that the job left behind.
    """

    key: JobKey
    verdict: Verdict
    reason_class: str | None = None
    reason: str | None = None
    wait_status: int | None = None
    exit_code: Count | None = None
    signal: Count | None = None
    ledger: int | None = None
    cpu_s: Seconds | None = None
    conversation: str | None = None
    model: str | None = None
    usage: Usage | None = None
    place: Place | None = None
    resets_at: float | None = None
    turns: int | None = None
    proof: ProofVerdict | None = None
    checked: Checked | None = None
    audit: tuple[Note, ...] | None = None
    leftovers: tuple[Leftover, ...] | None = None


@frozen
class JobLost:
    """The end of a job was not seen (`lost`, `interrupted`), or the job provably never ran (`void`).

    `gone`: it did run, and nothing of its tree of processes is left.
    """

    key: JobKey
    verdict: Verdict
    reason: str
    counts: bool = True
    gone: bool | None = None


@frozen
class TimerFired:
    """A running job's time is up."""

    key: JobKey
    timer: Timer


@frozen
class OutputSeen:
    """A running job's output was looked at and had changed; `size` is what there was of it now (bytes).

    Of a PREPARE or RELEASE it tells also that nothing is there yet: the job waits for its turn.
    """

    key: JobKey
    size: int


@frozen
class TaskEnded:
    """A task reached its one recorded outcome (or gave its attempt up for another, see `TaskRetried`)."""

    task: str
    outcome: Outcome
    reason_class: str | None = None
    reason: str | None = None


@frozen
class BudgetRefused:
    """There is no money left for the task's next job, and no job runs that might leave some."""

    task: str


@frozen
class TaskRetried:
    """An attempt ended without success and the task goes back into the queue, not before `not_before`.

    `not_before` is monotonic time in seconds.
    """

    task: str
    outcome: Outcome
    reason_class: str | None
    reason: str | None
    not_before: float


@frozen
class AgentChanged:
    """A task whose agent's provider is held goes to the next agent that it names."""

    task: str
    reason: str


@frozen
class HoldPlaced:
    """No job that uses `resource` starts until the hold is lifted, by itself at monotonic `until`.

    With `until_exit` the end of any job lifts it too.
    """

    resource: str
    reason: str
    until: float | None = None
    until_exit: bool = False


@frozen
class HoldLifted:
    """The hold on `resource` ended."""

    resource: str


@frozen
class LimitHeard:
    """Another `session` met a limit of the account behind `provider` at `met_at`, `strikes` times in a row.

    Nothing of it starts until `until_at` (both wall time).  An account's file is such a record, too.
    """

    provider: str
    effect: Effect
    reason: str
    until_at: Moment
    met_at: Moment
    strikes: Amount
    session: str


@frozen
class Change:
    """Another agent, model or prompt for the next attempts at a task; None leaves it as it is.

    A model belongs to its agent: with another agent and no model, the agent chooses.  `agents`, `prices` and
    `leavings` are what the session lacks for it; see `TasksAdded`.
    """

    agent: str | None = None
    model: str | None = None
    prompt: str | None = None
    agents: Mapping[str, AgentSpec] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    leavings: tuple[str, ...] = ()


@frozen
class RequestReceived:
    """A client asked for something; empty `tasks` means the whole session.

    `now` (cancel): without any grace.  `outcomes` (retry): only tasks that ended, or are about to end, in one of
    these ways; empty = any but success, of the tasks that are named.  `reason` (hold, cancel): what is shown.
    `max_parallel` (set): how many tasks may run at once; 0 = no limit.  `text` (continue): the follow-up.
    `change` (retry): what is other for the tasks that are named or chosen, not for those that come along.
    """

    request_id: str
    kind: RequestKind
    tasks: tuple[str, ...] = ()
    now: bool = False
    outcomes: tuple[Outcome, ...] = ()
    reason: str | None = None
    max_parallel: Count | None = None
    text: str | None = None
    change: Change | None = None


@frozen
class SessionEnded:
    """Every task has its outcome and the feed is closed."""

    status: Literal["completed", "cancelled"]
    outcome: Literal["succeeded", "failed"]


Event: TypeAlias = (
    SessionStarted
    | SupervisorStarted
    | TaskAdded
    | TasksAdded
    | FeedClosed
    | JobClaimed
    | JobStarted
    | JobFinished
    | JobLost
    | TimerFired
    | OutputSeen
    | BudgetRefused
    | TaskEnded
    | TaskRetried
    | AgentChanged
    | HoldPlaced
    | HoldLifted
    | LimitHeard
    | RequestReceived
    | WorkLanded
    | WorkBounced
    | WorkHeld
    | SlotsOffered
    | SessionEnded
)

EVENTS: Final[dict[str, type[Any]]] = {cls.__name__: cls for cls in get_args(Event)}
"""Each event by the name that the journal has for it."""

_NAMES: Final = {cls: tuple(f.name for f in fields(cls)) for cls in EVENTS.values()}


@frozen
class Entry:
    """One journal entry: an event with its place and time.

    `seq` counts up by one; `at` is wall time (seconds since the epoch, for people); `mono` is the monotonic
    clock of the boot (seconds, for deadlines).
    """

    seq: int
    at: float
    mono: float
    event: Event


def to_record(entry: Entry) -> dict[str, Any]:
    """The JSON object of a journal entry; absent values are left out."""
    event = entry.event
    record: dict[str, Any] = {"seq": entry.seq, "at": entry.at, "mono": entry.mono, "ev": type(event).__name__}
    for name in _NAMES[type(event)]:
        value = getattr(event, name)
        if value is not None:
            record[name] = value.text() if name == "key" else value
    return record


def change_task(task: TaskSpec, change: Change) -> TaskSpec:
    """The task as it is tried next.

    Arguments were for the agent that the task had, so another one does not get them.  Labels by which tasks are
    grouped name what it has now, where it has them.
    """
    agent = change.agent or task.agent
    same = agent == task.agent
    model = change.model or (task.model if same else None)
    labels = dict(task.labels)
    if (agent, model) != (task.agent, task.model):
        labels |= {key: name for key, name in (("agent", agent), ("model", model or "default")) if key in labels}
    return replace(
        task,
        agent=agent,
        model=model,
        args=task.args if same else (),
        fallback=tuple(other for other in task.fallback if other != Alternative(agent, model)),
        prompts=task.prompts if change.prompt is None else (change.prompt,),
        labels=labels,
    )


def takes_model(agent: AgentSpec) -> bool:
    """Whether a model has an effect: the agent is told of it, or reports what it used, which the model prices."""
    return bool(agent.model_args) or (agent.prompt_kind != "script" and agent.output != "text")
