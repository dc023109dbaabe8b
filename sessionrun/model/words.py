"""The word for how a task stands, and the counts and the state of a session that follow from the words.  Pure.

Here alone it is decided.  The writer of status.json asks, and so do readers that know what no supervisor wrote:
that the processes are gone, or that a later `merge` landed the work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

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
    from sessionrun.model.asked import QUEUE_LABEL  # here: a poll does without the records of that module

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


SCHEMA_VERSION: Final = 1
"""The `schema_version` of spec.json, status.json and the summary."""

OUTPUT_VERSION: Final = 2
"""The `schema_version` of each object that a verb prints with `--json`."""


def is_matrix(tasks: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the same tasks were given to several arms, or several times to one."""
    given: dict[str, int] = {}
    for task in tasks:
        if {"task", "model"} <= task["labels"].keys():
            given[task["labels"]["task"]] = given.get(task["labels"]["task"], 0) + 1
    return max(given.values(), default=0) > 1


LandWord = Literal["ready", "landing", "waiting", "landed", "bounced", "mending", "held"]
