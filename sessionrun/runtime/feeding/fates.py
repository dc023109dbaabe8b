"""What the queue is to be told of a task of the session: close it, or open it again with the reason.  Pure."""

from __future__ import annotations

from sessionrun.engine.state import TaskState
from sessionrun.model.feeds import LABEL
from sessionrun.model.frozen import frozen


@frozen
class Fate:
    """What becomes of the task in the queue; `reason` says why."""

    closes: bool
    reason: str


def find_queue_id(task: TaskState) -> str | None:
    """Which task of the queue a task of the session is; None: none."""
    return task.spec.labels.get(LABEL)


def find_fate(task: TaskState) -> Fate | None:
    """What came of the task for good; None: it is under way, or its work waits to land.

    Work that is held is not done, and must not be done again: `retry` of this session lands it.
    """
    if task.end.outcome is None:
        return None
    if task.end.outcome != "succeeded":
        return Fate(False, task.end.reason or f"it is {task.end.outcome}")
    landing = task.landing
    if landing is None:
        return Fate(
            True, "it succeeded" if task.place is None or task.place.commit is None else _name_branch(task)
        )
    if landing.status == "landed":
        return Fate(True, f"landed as {landing.commit[:12]}" if landing.commit else "landed")
    if landing.status == "bounced":
        return Fate(False, f"its work does not land: {landing.reason}")
    return None


def _name_branch(task: TaskState) -> str:
    branch = task.place.branch if task.place is not None else None
    return f"its work is on {branch}" if branch else "it changed nothing"
