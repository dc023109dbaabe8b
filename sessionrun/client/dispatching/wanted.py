"""Tasks of the queue that a dispatch is asked for by their ids."""

from __future__ import annotations

from sessionrun.model.errors import InputError
from sessionrun.queue.feed import Feed
from sessionrun.queue.graph import by_id
from sessionrun.queue.task import QueueTask


def check_wanted(feed: Feed, wanted: tuple[str, ...]) -> None:
    """Refuse ids of tasks that no worker would get.

    Raises:
        InputError: the first of them, and why.
    """
    tasks = by_id(feed.load()) if wanted else {}
    for task_id in wanted:
        if task_id not in tasks:
            raise InputError(f"the queue has no task {task_id!r}; `sessionrun queue list` shows its tasks")
        if (why := _find_obstacle(tasks[task_id], frozenset(wanted))) is not None:
            raise InputError(f"task {task_id} {why}")


def _find_obstacle(task: QueueTask, wanted: frozenset[str]) -> str | None:
    """Why a task would not be worked on; None: it is ready, claimed by a session, or waits for others of `wanted`.

    A claim may be of a session that is gone.
    """
    if task.status == "closed":
        return f"is closed; open it again first (sessionrun queue reopen {task.id})"
    if task.is_group:
        return f"is a group; name the group instead (sessionrun dispatch --group {task.id})"
    if task.status == "deferred":
        return f"is {task.backend_status}"
    waits_for = [one for one in task.blocked_by if one not in wanted]
    return f"waits for {', '.join(waits_for)}; close that first, or name it, too" if waits_for else None
