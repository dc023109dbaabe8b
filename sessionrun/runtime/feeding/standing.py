"""Where a task of a session stands for the queue from which it came.  Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sessionrun.engine.mending import find_mender
from sessionrun.engine.state import State
from sessionrun.engine.task import LandEntry, TaskState
from sessionrun.model.feeding import QUEUE_LABEL
from sessionrun.model.spec import RETRY_LOST

UNDONE: Final = "not done by session "
"""What the reason begins with for which a task of the queue was opened again."""

Kind = Literal["going", "held", "done", "undone"]
"""`going`: the session still works on it.  `held`: its work waits for something that only a person can do."""


_ENDS: Final = ("rescued", "cancelled")
"""Why work is held that nothing lands by itself any more."""


class Standing(NamedTuple):
    """A task of the session.

    Attributes:
        queue_id: its id in the queue.
        kind: how it stands.
        reason: why, on one line.
        is_lost: whether nothing is known of its end, so that it may be tried again.
        asked: whether a user has asked more of it after its end.
        branch: of work that was bounced, with the commit that it had then; a person may mend it there.
    """

    queue_id: str
    kind: Kind
    reason: str = ""
    is_lost: bool = False
    branch: tuple[str, str] | None = None
    asked: bool = False


def find_standing(state: State, task: TaskState) -> Standing | None:
    """How a task stands; None: it is not from the queue."""
    queue_id = task.spec.labels.get(QUEUE_LABEL)
    if queue_id is None:
        return None
    is_lost = task.outcome in RETRY_LOST
    return Standing(queue_id, *_judge(state, task), is_lost, _find_bounced(task), bool(task.follow_ups))


def _find_bounced(task: TaskState) -> tuple[str, str] | None:
    place, landing = task.place, task.landing
    if landing is None or landing.status != "bounced" or place is None or not (place.branch and place.commit):
        return None
    return place.branch, place.commit


def _judge(state: State, task: TaskState) -> tuple[Kind, str]:
    outcome, landing = task.outcome, task.landing
    if outcome is None:
        return "going", ""
    where = f"session {state.spec.session_id[:8]}, task {task.spec.id}"
    if outcome != "succeeded":
        return "undone", _word_undone(where, task.reason or outcome)
    if landing is None:
        return "done", f"{_word_success(state, task)} ({where})"
    if landing.status == "landed":
        commit = f" as {landing.commit[:12]}" if landing.commit else ""
        return "done", f"landed{commit} ({where})"
    if landing.status == "bounced":
        return "undone", _word_undone(where, _word_bounced(task, landing, state.spec.session_id[:8]))
    mender = find_mender(state, task.spec.id) if landing.status == "mending" else None
    if mender is not None and mender.landing is not None and mender.landing.status == "held":
        landing = mender.landing  # what mends it waits for a person
    if landing.status == "held" and landing.reason_class in _ENDS:
        return "undone", _word_undone(where, f"its work has not landed: {landing.reason}")
    if landing.status == "held":
        return "held", _word_undone(where, f"its work has not landed: {landing.reason or 'no reason is known'}")
    return "going", ""


def _word_undone(where: str, why: str) -> str:
    return " ".join(f"{UNDONE}{where.removeprefix('session ')}: {why}".split())


def _word_success(state: State, task: TaskState) -> str:
    place = task.place
    if place is None or place.holds_no_work:
        return "done, without a change" if place is not None else "done"
    branch = f"its work is on the branch {place.branch}" if place.branch else "its work was kept"
    return f"done; {branch}: sessionrun merge {state.spec.session_id[:8]}"


def _word_bounced(task: TaskState, landing: LandEntry, session: str) -> str:
    branch = task.place.branch if task.place else None
    how = f"mend it on the branch {branch}, then: sessionrun merge {session} {task.spec.id}"
    return f"its work did not land: {landing.reason or landing.reason_class}" + (f"; {how}" if branch else "")
