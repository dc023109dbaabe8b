"""What a session's journal says of one task, in one record for each concern.

`Progress` changes with every job, so each task has its own and it is changed in place.  All other records are
values: a change puts a new one in the place of the old one.  All tasks to which nothing of a kind has happened
share one record of that kind.  So a task that waits costs little memory.

This module decides nothing, and does not know why a record is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from sessionrun.model.checks import Checked, Note
from sessionrun.model.ends import Leftover
from sessionrun.model.keys import Phase
from sessionrun.model.places import Place
from sessionrun.model.spec import Outcome, ProofVerdict
from sessionrun.model.usage import Usage


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


@dataclass(slots=True)
class Progress:
    """How far a task is: its attempt, round and phase, and what its jobs have found."""

    attempt: int = 1
    """The number of the attempt, from 1."""
    round: int = 1
    """The number of the round within the attempt, from 1."""
    phase: Phase | None = None
    """The phase the attempt is in; None: no job of it was claimed."""
    start: int = 1
    """The number of the phase's next job, from 1; with the fields above it is the job's key."""
    tries: int = 0
    """What the starts of the phase without a result count (see `starts.count_try`); `MAX_TRIES` are the last."""
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


class Wish(NamedTuple):
    """What requests want of a task."""

    cancelled: bool = False
    """There is to be no further attempt."""
    again: bool = False
    """There is to be another attempt as soon as the decided outcome is recorded."""
    held: str | None = None
    """The reason of a hold on request; None: there is none."""
    why: str | None = None
    """Why it is cancelled, if that is said."""


class Setbacks(NamedTuple):
    """What has gone wrong with a task since the user last asked for it, and what it waits for because of that."""

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


class LastWork(NamedTuple):
    """What the last WORK job of a task left."""

    exit_code: int | None = None
    """Its exit code; None: it has none."""
    signal: int | None = None
    """The signal that ended it."""
    conversation: str | None = None
    """The id of its conversation; if the job gave no id, that of an earlier job."""
    model: str | None = None
    """The model that it used; if the job named no model, that of an earlier job."""
    remark: tuple[str, str] | None = None
    """Reason class and reason of one that passed, though its exit was not seen or not its own."""
    thread: Thread = Thread()
    """The conversation as it stood when its attempt ended; a follow-up goes on with it."""
    leftovers: tuple[Leftover, ...] | None = None
    """What it left behind."""


class FollowUps(NamedTuple):
    """What a user asked of a task after its end, and what its further attempts go on with."""

    texts: tuple[str, ...] = ()
    """The follow-ups, in their order; the attempts work on the last one."""
    attempt: int = 1
    """The attempt with which the last one began."""
    place: Place | None = None
    """Where the work lay when the last attempt ended: the next PREPARE goes on there."""
    handed: Place | None = None
    """Where the task ended when it last succeeded: tasks that need it get this until it succeeds again."""


class End(NamedTuple):
    """How a task ended, or its last attempt."""

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

    @property
    def known_outcome(self) -> Outcome | None:
        """The outcome, whether it is recorded or only decided; None: neither."""
        return self.outcome or self.decided


@lru_cache(maxsize=256)
def share_end(
    *,
    decided: Outcome | None = None,
    outcome: Outcome | None = None,
    last_outcome: Outcome | None,
    reason_class: str | None,
    reason: str | None,
) -> End:
    """One record for all tasks that end alike, as most do."""
    return End(decided, outcome, last_outcome, reason_class, reason)


class Times(NamedTuple):
    """When a task began and ended, since it was last asked for."""

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


_NO_MODELS: Final[Mapping[tuple[str, str], Usage]] = {}


class Ran(NamedTuple):
    """With which agent and model the attempts up to `attempt` ran, before a retry changed that."""

    attempt: int
    agent: str
    model: str | None


class Totals(NamedTuple):
    """What all WORK jobs of a task used together."""

    usage: Usage | None = None
    """The sum; None: nothing is known of any."""
    by_model: Mapping[tuple[str, str], Usage] = _NO_MODELS
    """The sums by agent and by the name of the model (see `name_model`)."""
    forgiven: int = 0
    """The part of the cost (nanodollars) that the task's budget does not count: what the task had cost when the
    user last asked for it."""
    ran: tuple[Ran, ...] = ()
    """With what earlier attempts ran, where a retry changed that; oldest first."""

    def sum_by_model(self) -> dict[str, Usage]:
        """The sums by model, whichever agent asked it."""
        sums: dict[str, Usage] = {}
        for (_, model), used in self.by_model.items():
            sums[model] = sums[model].plus(used) if model in sums else used
        return sums


LandStatus = Literal["ready", "waiting", "landed", "bounced", "mending", "held"]
"""Where the work of a task stands on its way to the branch: `ready` for the next LAND job, `waiting` for the work
of a task that it needs, or at an end."""


class LandEntry(NamedTuple):
    """The work of a task in the landing queue of its session."""

    status: LandStatus
    """Where it stands."""
    reason_class: str | None = None
    """The word for why it has not landed."""
    reason: str | None = None
    """The same in one line for people; of work that landed, what is remarkable."""
    commit: str | None = None
    """The commit of the branch with which it landed, if that is known."""
    mend: str | None = None
    """What a user can do so that it lands."""
    files: tuple[str, ...] = ()
    """The files in conflict."""
    against: tuple[str, ...] = ()
    """The tasks that landed before and changed the same files."""
    output: str | None = None
    """The file with what a red gate printed."""
    at: float | None = None
    """When the journal said that it landed, was bounced or is held (seconds since the epoch)."""
    seq: int | None = None
    """The number of the journal's record with which it came to stand there; None: that of the task's end."""


READY: Final = LandEntry("ready")
NO_WISH: Final = Wish()
NO_SETBACKS: Final = Setbacks()
NO_THREAD: Final = Thread()
NO_WORK: Final = LastWork()
NO_END: Final = End()
NO_TIMES: Final = Times()
NO_TOTALS: Final = Totals()
NO_FOLLOW_UPS: Final = FollowUps()
