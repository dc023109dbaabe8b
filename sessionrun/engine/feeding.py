"""What the queue means for a session that takes its tasks from it: which of them decide its end, what is shown."""

from __future__ import annotations

from typing import Any, Final

from sessionrun.engine.state import State, TaskState
from sessionrun.model.feeding import QUEUE_LABEL

TROUBLE: Final = "feed"
"""The hold of this name says what is wrong with the queue; no task waits for it."""


def project_feed(state: State) -> dict[str, Any] | None:
    """Where the tasks come from, and whether more may come; null for a session with all its tasks."""
    feed = state.spec.feed
    if feed is None:
        return None
    return {
        "queue": state.spec.source,
        "backend": feed.backend,
        "group": feed.group,
        "tasks": list(feed.chosen) or None,
        "watch": feed.watch,
        "open": state.feed_open,
        "held": state.held,
    }


def list_decisive(state: State) -> list[TaskState]:
    """The tasks that decide the outcome: no mends, and for each task of the queue the last attempt."""
    last: dict[tuple[bool, str], TaskState] = {}
    for task in state.tasks.values():
        if task.spec.mend is None:
            queue_id = task.spec.labels.get(QUEUE_LABEL) if state.spec.feed is not None else None
            last[queue_id is not None, queue_id or task.spec.id] = task
    return [*last.values()]
