"""A task of the queue, as every backend shows it, and what is asked for when one is made or changed.

Pure.  A backend has further words for a status; here there are four.
"""

from __future__ import annotations

from typing import Final, Literal

from sessionrun.model.errors import InputError
from sessionrun.model.frozen import frozen

Status = Literal["open", "claimed", "deferred", "closed"]
"""`deferred`: the backend's own word says neither that the task may run nor that it is done."""

MAX_PRIORITY: Final = 1_000_000
"""Bigger goes first; 0 is usual; the smallest is the negative of this."""


@frozen
class Worker:
    """What claims a task: a worker, by a name that its session uses once, and the id of that session."""

    name: str
    session: str


@frozen
class TaskClaim:
    """Which worker has a task, and since when (ISO 8601, UTC; None: the backend does not say)."""

    worker: Worker
    at: str | None = None


@frozen
class QueueTask:
    """One task.

    A task that others name as their group is a group: no worker gets it, and it closes when they are closed.

    Attributes:
        status: where it stands; `backend_status` is the backend's own word for it.
        priority: bigger goes first; tasks of one priority go in the order of the queue.
        depends: ids of tasks that have to be closed before it may run.
        group: the id of its group.
        claim: of a claimed task; None if something else than a worker of ours has it.
        reason: why it was closed, or why it had to be opened again.
        blocked_by: the ids it waits for: what it or its groups depend on and is not closed, or does not exist.
    """

    id: str
    title: str
    body: str = ""
    status: Status = "open"
    backend_status: str = ""
    priority: int = 0
    depends: tuple[str, ...] = ()
    group: str | None = None
    is_group: bool = False
    claim: TaskClaim | None = None
    reason: str | None = None
    blocked_by: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether a worker may claim it."""
        return self.status == "open" and not self.is_group and not self.blocked_by


@frozen
class Draft:
    """A task to be made; fields as in `QueueTask`.  A group of that name is made if there is none."""

    title: str
    body: str = ""
    priority: int = 0
    depends: tuple[str, ...] = ()
    group: str | None = None


@frozen
class Changes:
    """What to change of a task; None leaves it as it is, and an empty `group` takes the task out of its group."""

    title: str | None = None
    body: str | None = None
    priority: int | None = None
    depends: tuple[str, ...] | None = None
    group: str | None = None


def check_title(title: str) -> str:
    """Return a title on one line.

    Raises:
        InputError: it is empty.
    """
    line = fold_spaces(title)
    if not line:
        raise InputError("a task needs a title")
    return line


def fold_spaces(title: str) -> str:
    """Return a title on one line."""
    return " ".join(title.split())
