"""The published words: how a task and its session stand, why, and when.  Pure, and cheap to import for a poll.

Here alone the word for how a task stands is decided, with the counts and the state of a session that follow.  The
writer of status.json asks, and so do readers that know what no supervisor wrote: that the processes are gone, or
that a later `merge` landed the work.

Reason classes say why a task did not succeed, and what follows.  Their table is open: a later version may add
rows, and an agent of the user's own may say others.  What is not in it is shown as it is and has no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from sessionrun.model.frozen import frozen

SCHEMA_VERSION: Final = 1
"""The `schema_version` of spec.json, status.json and the summary."""

OUTPUT_VERSION: Final = 2
"""The `schema_version` of each object that a verb prints with `--json`."""

# --- how a task stands ---

Word: TypeAlias = Literal[
    "landed",
    "succeeded",
    "bounced",
    "failed",
    "timed_out",
    "lost",
    "changed_nothing",
    "skipped",
    "cancelled",
    "held",
    "running",
    "waiting",
]
State: TypeAlias = Literal["running", "held", "running, partly held", "stopped", "ended"]
LandWord = Literal["ready", "landing", "waiting", "landed", "bounced", "mending", "held"]
Result: TypeAlias = Literal["failed", "bounced", "cancelled", "succeeded"]

WORDS: Final[tuple[Word, ...]] = get_args(Word)
"""All words, in the order in which counts are told."""

GOOD: Final = ("landed", "succeeded", "changed_nothing")
BAD: Final = ("failed", "timed_out", "lost")

SIGNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("succeeded", "landed"), "\u2713"),
    **dict.fromkeys(BAD, "\u2717"),
    **dict.fromkeys(("skipped", "cancelled"), "\u2013"),
    "bounced": "\u21a9",
    "changed_nothing": "\u2205",
    "held": "\u2016",
    "running": "\u25b6",
    "waiting": "\u00b7",
}
"""The sign of each word; that of `held` is two bars."""

JUDGED: Final = ("succeeded", "failed", "timed_out")
"""Outcomes that say something about the agent; the others say only that it was not seen to its end."""

AXES: Final = ("model", "task", "agent")
"""Labels by which the tasks of a matrix are compared."""

QUEUE_LABEL: Final = "queue"
"""The label of a task that says which task of the queue it is."""

HELD: Final = "held"
STATES: Final[tuple[State, ...]] = get_args(State)
"""What a session's `state` may be.  `held`: nothing runs, and all that is left is held; `stopped`: no process."""

IN_LANDING: Final = ("ready", "landing", "mending")
"""Where work stands that is about to land, or that another task mends."""


class Standing(NamedTuple):
    """How a task stands, as far as the state of its session depends on that."""

    name: str
    word: Word
    is_open: bool
    held_until: str | None
    needs: Sequence[str]
    landing: str | None
    tries: str | None
    """Of what it is an attempt: of several with the same name the last one decides the result.  None: a mend."""


def choose_word(
    outcome: str | None,
    *,
    runs: bool = False,
    held: bool = False,
    landing: str | None = None,
    changed: bool = True,
) -> Word:
    """The word of a task: by its outcome, if it has ended, and where its work stands, if that is to land.

    `held`: it will not start by itself, or only at a known time.  `changed`: it had no worktree, or something in
    it differs from where it began.
    """
    if outcome is None:
        return "running" if runs else "held" if held else "waiting"
    if outcome == "succeeded":
        if landing in ("landed", "bounced", "held"):
            return landing  # type: ignore[return-value]
        return "succeeded" if changed else "changed_nothing"
    return "lost" if outcome == "interrupted" else outcome  # type: ignore[return-value]


def read_landing(task: Mapping[str, Any]) -> str | None:
    """Where the work of a task stands on its way to the branch; None: nothing has tried to land it."""
    landing = task.get("landing")
    return landing["status"] if landing else None


def stand(task: Mapping[str, Any], *, feeds: bool) -> Standing:
    """How a task of status.json stands; `feeds`: the session takes its tasks from a queue."""
    return Standing(
        task["id"],
        task["word"],
        task["status"] != "completed",
        task["held_until"],
        task["needs"],
        read_landing(task),
        name_tries(task["id"], task["labels"], mends=bool(task["mends"]), feeds=feeds),
    )


def name_tries(task_id: str, labels: Mapping[str, str], *, mends: bool, feeds: bool) -> str | None:
    """Of what a task is an attempt: of itself, or of a task of the queue; None if it mends work of another one."""
    if mends or not feeds:
        return None if mends else task_id
    queue_id = labels.get(QUEUE_LABEL)
    return f"/{queue_id}" if queue_id else task_id


def describe_session(tasks: Iterable[Standing], *, ended: bool, stopped: bool = False) -> dict[str, Any]:
    """The keys of a session that follow from how its tasks stand."""
    tasks = list(tasks)
    counts = dict.fromkeys(WORDS, 0)
    for task in tasks:
        counts[task.word] += 1
    completed, failed = sum(not task.is_open for task in tasks), sum(counts[word] for word in BAD)
    state: State = "ended" if ended else "stopped" if stopped else _find_state(tasks)
    times = [task.held_until for task in tasks if state == HELD and task.word == HELD and task.held_until]
    return {
        "state": state,
        "result": _find_result(tasks) if ended else None,
        "held_until": min(times, default=None),
        "total": len(tasks),
        "counts": counts,
        "completed": completed,
        "running": counts["running"],
        "successful": completed - failed - counts["skipped"] - counts["cancelled"],
        "failed": failed,
        "skipped": counts["skipped"],
    }


def tell_counts(counts: Mapping[str, int]) -> str:
    """``4 landed, 1 bounced, 2 failed``: for people, without what there is none of."""
    return ", ".join(f"{counts[word]} {word.replace('_', ' ')}" for word in WORDS if counts.get(word))


def find_held(tasks: Collection[Standing], *, timed: bool = True) -> set[str]:
    """The tasks that are held or need a held task; not those held until a known time, if `timed` is false."""
    held = {task.name for task in tasks if task.word == HELD and task.is_open and (timed or not task.held_until)}
    waiting = [task for task in tasks if task.word == "waiting" and task.needs] if held else []
    while more := {task.name for task in waiting if not held.isdisjoint(task.needs)} - held:
        held |= more
    return held


def is_stuck(tasks: Collection[Standing], chosen: Collection[str]) -> bool:
    """Whether all that is left of the chosen tasks is held without a known time, or needs such a task."""
    left = {task.name for task in tasks if task.name in chosen and _is_left(task)}
    return bool(left) and left <= find_held(tasks, timed=False)


def _is_left(task: Standing) -> bool:
    """Whether a task has not ended, or its work is about to land."""
    return task.is_open or task.landing in IN_LANDING


def _find_state(tasks: Collection[Standing]) -> State:
    held = find_held(tasks)
    if not held:
        return "running"
    return "running, partly held" if any(_is_left(task) and task.name not in held for task in tasks) else HELD


def _find_result(tasks: Collection[Standing]) -> Result:
    """What came out of a session.  Work that was to land and did not is told as bounced, whatever kept it."""
    decisive = {task.tries: task for task in tasks if task.tries is not None}.values()
    words = {task.word for task in decisive}
    if not words.isdisjoint(BAD):
        return "failed"
    if not words.isdisjoint(("bounced", HELD)) or any(task.landing not in (None, "landed") for task in decisive):
        return "bounced"
    return "succeeded" if words.issubset(GOOD) else "cancelled"


def is_matrix(tasks: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the same tasks were given to several arms, or several times to one."""
    given: dict[str, int] = {}
    for task in tasks:
        if {"task", "model"} <= task["labels"].keys():
            given[task["labels"]["task"]] = given.get(task["labels"]["task"], 0) + 1
    return max(given.values(), default=0) > 1


# --- why: reason classes ---

REASONS_VERSION: Final = 1
"""Counts up when a row goes or changes its meaning; new rows do not count."""

Effect = Literal["none", "limit", "backoff"]
"""What a class means for the other tasks of the same provider: nothing; they are held until the limit is over;
they are held for a moment that doubles."""

About = Literal["work", "outside", "judged", "session"]
"""What a class speaks of: the work of an agent; what its WORK met outside, which says nothing about the work; the
work as others judged it, and no end of an agent; neither of them."""


@frozen
class Reason:
    """One class: what it speaks of, what it means, and what follows from it.

    `effect` is that on the other tasks of the provider.  `goes_on`: the same conversation may well go on.
    `retried`: `retries` are for it, too; not for what comes again as long as nothing is changed.  `falls_back`:
    another agent takes over, where a task names one and does not say for what.
    """

    about: About
    meaning: str
    effect: Effect = "none"
    goes_on: bool = False
    retried: bool = True
    falls_back: bool = False


REASONS: Final[Mapping[str, Reason]] = {
    # from the system and from sessionrun
    "start_failed": Reason("outside", "the program could not be started", falls_back=True),
    "exit_code": Reason("work", "another exit code than 0, and nothing says why"),
    "signal": Reason("work", "killed by a signal that sessionrun did not send", goes_on=True),
    "agent_crashed": Reason("work", "the agent died of a fault of its own or broke off", goes_on=True),
    "oom": Reason("work", "the agent ran out of memory", goes_on=True),
    "disk_limit": Reason("work", "what it can write inside of its walls came to more than sandbox.disk"),
    "stalled": Reason("work", "no output for longer than idle_timeout", goes_on=True),
    "timeout": Reason("work", "the attempt took longer than allowed"),
    "setup_failed": Reason("session", "the setup commands failed"),
    "setup_timeout": Reason("session", "the setup commands took longer than allowed"),
    "check_failed": Reason("judged", "the check did not pass in the last round", goes_on=True),
    "check_not_run": Reason("session", "the check's program is not found or not executable", retried=False),
    "check_timeout": Reason("judged", "the check took longer than allowed"),
    "round_timeout": Reason("judged", "the last round took longer than allowed"),
    "no_patch": Reason("judged", "the answer was to be a patch, and holds none"),
    "bad_patch": Reason("judged", "the patch in the answer does not apply"),
    "cancelled": Reason("session", "on request"),
    "need": Reason("session", "a task that it needs did not succeed"),
    "max_failures": Reason("session", "so many tasks had failed that nothing new is started"),
    "budget": Reason("outside", "a limit on money or tokens is reached"),
    "lost": Reason("session", "its end was not seen", goes_on=True),
    "interrupted": Reason("session", "the machine was restarted", goes_on=True),
    "exit_unseen": Reason("judged", "it succeeded: its answer is complete, but its end was not seen"),
    "lingered": Reason("judged", "it succeeded, but did not exit after its last word, and was ended"),
    "infra": Reason("outside", "the session's own files could not be read or written"),
    "internal": Reason("outside", "a bug of sessionrun; its traceback is in supervisor.log"),
    "no_change": Reason("judged", "a change was expected and nothing was changed"),
    "mend_refused": Reason("judged", "a mend left a conflict as it was, or dropped all that one side had added"),
    "bad_context": Reason("work", "a file to be shown is not there, too long or outside the project"),
    "workspace_failed": Reason("session", "its worktree could not be made; nothing of the task ran"),
    "repository_failed": Reason("session", "its repository could not be fetched, or lacks the ref; nothing ran"),
    "environment_failed": Reason("session", "its environment could not be made; nothing of the task ran"),
    "sandbox_failed": Reason("session", "its walls could not be built; nothing of the job ran", retried=False),
    "needs_conflict": Reason("judged", "the work of what it needs conflicts; nothing ran", retried=False),
    "not_parked": Reason("session", "its work could not be committed to its branch, so it cannot be proved"),
    "not_red": Reason("judged", "the check passes without the work too: nothing to fix, or no test shows it"),
    "weakened": Reason("judged", "the check passes only with the tests and test set-up as the task changed them"),
    "flaky": Reason("judged", "on the same files the check passed and failed"),
    "unproved": Reason("judged", "in a clean room, with nothing but the work, the check does not pass"),
    "unresolved": Reason("judged", "with the hidden tests of its instance the work does not pass"),
    "tests_not_run": Reason("session", "the hidden tests could not be run; the work is not judged"),
    "no_tests": Reason("judged", "its instance names no tests, so the work cannot be judged"),
    "release_failed": Reason("judged", "its worktree could not be given back; never the reason of a task"),
    "held": Reason("judged", "it waits: a hold keeps it from going on"),
    "paced": Reason("judged", "it waits: for the pause between two starts, or until the machine has less to do"),
    # from the agent's output
    "usage_limit": Reason(
        "outside", "the account's quota or money is used up", "limit", goes_on=True, falls_back=True
    ),
    "rate_limited": Reason(
        "outside", "too many requests at a time (HTTP 429)", "backoff", goes_on=True, falls_back=True
    ),
    "overloaded": Reason(
        "outside", "the provider has no capacity now (HTTP 503, 529)", "backoff", goes_on=True, falls_back=True
    ),
    "auth": Reason("outside", "log-in or permission refused by the model's server", falls_back=True),
    "bad_model": Reason("outside", "there is no such model, or not for this account", falls_back=True),
    "no_conversation": Reason("work", "the conversation that was to go on is not there; it begins anew"),
    "unreachable": Reason("outside", "the model's server cannot be reached", goes_on=True),
    "api_error": Reason("outside", "any other error that the model's server answers"),
    "context_full": Reason("work", "the conversation is too long for the model", falls_back=True),
    "max_turns": Reason("work", "the agent reached its own limit of turns", goes_on=True),
    "refused": Reason("work", "the model or its server declined the request", falls_back=True),
    "denied": Reason("work", "tool calls were refused"),
    "aborted": Reason("work", "the agent says it was interrupted, not by sessionrun", goes_on=True),
    "left_running": Reason("work", "its turn ended, and its work in the background was lost", goes_on=True),
    "incomplete_output": Reason("work", "the output ends before the result, or there is none", goes_on=True),
    "bad_output": Reason("work", "the output is not in the agent's format", goes_on=True),
    "agent_error": Reason("work", "any other failure that the agent reports"),
    "unknown": Reason("work", "the agent failed and does not say why"),
}

WORKSPACE_REASONS: Final[Mapping[str, str]] = {
    "prepare": "workspace_failed",
    "park": "not_parked",
    "release": "release_failed",
}
"""What it is called when a job of a workspace fails, by its phase."""

NO_CONVERSATION: Final = "no_conversation"
LEFT_RUNNING: Final = "left_running"

CONTEXT_FULL: Final = "context_full"

CHECK_NOT_RUN: Final = "check_not_run"
"""No further round follows: an agent would be paid for what it cannot mend."""

NO_PROGRAM: Final[Mapping[int, str]] = {126: "not executable", 127: "not found"}
"""What a shell means by these exit codes."""

EXIT_UNSEEN: Final = "exit_unseen"
LINGERED: Final = "lingered"
"""The only class of a success."""

UNRESOLVED: Final = "unresolved"
NO_TESTS: Final = "no_tests"

OF_WORK: Final = tuple(name for name, reason in REASONS.items() if reason.about in ("work", "outside"))
INFRASTRUCTURE: Final = frozenset(
    name for name, reason in REASONS.items() if reason.about in ("outside", "session")
)
NEVER_RETRIED: Final = frozenset(name for name, reason in REASONS.items() if not reason.retried)
FALLBACK_ON: Final = frozenset(name for name, reason in REASONS.items() if reason.falls_back)


def effect_of(reason_class: str | None) -> Effect:
    """What a class means for other tasks of the same provider."""
    reason = REASONS.get(reason_class or "")
    return reason.effect if reason else "none"


def goes_on(reason_class: str | None) -> bool:
    """Whether a conversation that ended for this class may well go on."""
    reason = REASONS.get(reason_class or "")
    return reason is not None and reason.goes_on


# --- when ---

END_OF_TIME: Final = 253370764800
"""The first time that no calendar has, in seconds since the epoch."""


def is_time(text: str) -> bool:
    """Whether it is a time as status.json spells them, which can be shown in any time zone."""
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return moment.tzinfo is not None and 1970 <= moment.year <= 9998


def format_time(at: float | None) -> str | None:
    """Seconds since the epoch as ISO 8601 in UTC, to the millisecond.

    Raises:
        ValueError: no calendar has that time.
    """
    if at is None:
        return None
    from datetime import datetime, timezone  # most polls show no time

    if not 0 <= at < END_OF_TIME:
        raise ValueError(f"there is no time {at}")
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(at: str) -> float:
    """An ISO time as seconds since the epoch; without an offset it is local time.

    Raises:
        ValueError: it is not an ISO time.
    """
    from datetime import datetime

    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()
