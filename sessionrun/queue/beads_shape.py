"""What Beads prints about a bead, as a task.  Pure.

A bead's priority is 0 (most urgent) to 4, usually 2; ours is bigger for what goes first, usually 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from sessionrun.model.errors import InputError
from sessionrun.queue.task import QueueTask, Status, TaskClaim, Worker

Bead = dict[str, Any]
"""An issue in the JSON of `bd show` or `bd list`."""

EPIC: Final = "epic"
NOTE: Final = "sessionrun: "
"""What a comment begins with that says why a bead is open again."""

_USUAL: Final = 2
_LAST: Final = 4
_CLOSED: Final = ("closed", "tombstone")
_ACTOR: Final = "sessionrun/"
_BLOCKING: Final = ("blocks", "conditional-blocks", "waits-for")
_PARENT: Final = "parent-child"


def format_actor(worker: Worker) -> str:
    """Return the assignee of what a worker claims."""
    return f"{_ACTOR}{worker.session}/{worker.name}"


def parse_actor(assignee: str) -> Worker | None:
    """Return the worker that is meant; None: somebody else."""
    session, slash, name = assignee.removeprefix(_ACTOR).partition("/")
    return Worker(name, session) if assignee.startswith(_ACTOR) and slash else None


def format_priority(priority: int) -> int:
    """Return a priority as Beads counts it.

    Raises:
        InputError: Beads has no such priority.
    """
    if not 0 <= _USUAL - priority <= _LAST:
        raise InputError(
            f"Beads has priorities from {_USUAL - _LAST} to {_USUAL} (P{_LAST} to P0), not {priority}"
        )
    return _USUAL - priority


def is_visible(bead: Bead) -> bool:
    """Whether a bead is a task: deleted ones leave a tombstone."""
    return bead.get("status") != "tombstone"


def project(bead: Bead, ready: Collection[str]) -> QueueTask:
    """Return the task that a bead is.

    Args:
        bead: as `show` prints it, with its dependencies and dependents.
        ready: the ids that the program calls ready.
    """
    assignee = str(bead.get("assignee") or "")
    blockers = [one for one in _iterate(bead, "dependencies", _BLOCKING) if one.get("status") not in _CLOSED]
    is_group = bead.get("issue_type") == EPIC or any(_iterate(bead, "dependents", (_PARENT,)))
    status = _status(bead, is_free=not assignee and (bool(blockers) or is_group or bead["id"] in ready))
    worker = parse_actor(assignee) if status == "claimed" else None
    parents = [str(one["id"]) for one in _iterate(bead, "dependencies", (_PARENT,))]
    return QueueTask(
        id=str(bead["id"]),
        title=str(bead.get("title") or ""),
        body=str(bead.get("description") or ""),
        status=status,
        backend_status=str(bead.get("status")),
        priority=_USUAL - int(bead.get("priority", _USUAL)),
        depends=tuple(str(one["id"]) for one in _iterate(bead, "dependencies", _BLOCKING)),
        group=parents[0] if parents else None,
        is_group=is_group,
        claim=None if worker is None else TaskClaim(worker),
        reason=_read_reason(bead, status),
        blocked_by=tuple(str(one["id"]) for one in blockers),
    )


def _status(bead: Bead, *, is_free: bool) -> Status:
    word = bead.get("status")
    if word in _CLOSED:
        return "closed"
    if word == "in_progress":
        return "claimed"
    return "open" if word == "open" and is_free else "deferred"


def _read_reason(bead: Bead, status: Status) -> str | None:
    if status == "closed":
        return str(bead.get("close_reason") or "") or None
    notes = [str(one.get("text") or "") for one in bead.get("comments") or ()]
    ours = [note.removeprefix(NOTE) for note in notes if note.startswith(NOTE)]
    return ours[-1] if ours else None


def _iterate(bead: Bead, key: str, kinds: Collection[str]) -> Iterator[Bead]:
    for one in bead.get(key) or ():
        if one.get("dependency_type", "blocks") in kinds:
            yield one
