"""The shape of `task_queue.json`: text to entries, entries to tasks and back.

The file belongs to other programs, too: keys that this version does not know stay as they are, and so do the words
of a status that it does not change.  Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sessionrun.dialects.limits import Breach, quote
from sessionrun.dialects.strict_json import parse_json
from sessionrun.model.errors import InputError
from sessionrun.model.keys import describe_id_problem
from sessionrun.queue.graph import by_id, find_blockers
from sessionrun.queue.task import MAX_PRIORITY, QueueTask, Status, TaskClaim, Worker

Entry = dict[str, Any]
"""A task as it stands in the file."""

OPEN: Final = "pending"
CLAIMED: Final = "in_progress"
CLOSED: Final = "done"
WORDS: Final[Mapping[str, Status]] = {
    OPEN: "open",
    "open": "open",
    CLAIMED: "claimed",
    CLOSED: "closed",
    "closed": "closed",
    "completed": "closed",
}
"""What the file's words for a status mean; any other word means `deferred`."""

GROUP: Final = "group"
"""The `kind` of an entry that is a group even when no task is in it."""

_TEXTS: Final = ("id", "title", "status", "description", "parent", "kind", "reason")


@dataclass
class Contents:
    """The whole file: its top-level object, whose list `tasks` is `entries`."""

    record: dict[str, Any]
    entries: list[Entry]

    def find(self, task_id: str) -> Entry | None:
        """Return the entry of a task."""
        return next((entry for entry in self.entries if entry["id"] == task_id), None)


def make_empty() -> Contents:
    """Return a queue without tasks."""
    entries: list[Entry] = []
    return Contents({"tasks": entries, "next_id": 1}, entries)


def parse_contents(content: bytes, source: str) -> Contents:
    """Read the file.

    Raises:
        InputError: it is damaged: one line with the place.
    """
    try:
        record = parse_json(content.decode("utf-8-sig"))
        return _check(record)
    except UnicodeDecodeError:
        problem = "is not UTF-8"
    except (Breach, ValueError) as error:
        problem = str(error)
    raise InputError(f"{source}: {problem}; mend the file or put it aside, nothing was changed")


def format_contents(contents: Contents) -> bytes:
    """Write the file as people can edit it.

    Raises:
        InputError: a text that came in is not UTF-8.
    """
    try:
        return json.dumps(contents.record, indent=2, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        raise InputError("a title, text or reason is not UTF-8") from None


def _check(record: Any) -> Contents:
    """Find what does not fit; raises ValueError."""
    if not isinstance(record, dict):
        raise ValueError('is not an object with "tasks"')
    entries = record.setdefault("tasks", [])
    if not isinstance(entries, list):
        raise ValueError('"tasks" is not a list')
    next_id = record.setdefault("next_id", 1)
    if not isinstance(next_id, int) or isinstance(next_id, bool) or next_id < 0:
        raise ValueError('"next_id" is not a whole number')
    seen: set[str] = set()
    for place, entry in enumerate(entries):
        problem = _describe_problem(entry)
        if problem is None and entry["id"] in seen:
            problem = f"the id {quote(entry['id'])} is given twice"
        if problem is not None:
            raise ValueError(f"tasks[{place}]: {problem}")
        seen.add(entry["id"])
    return Contents(record, entries)


def _describe_problem(entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return "is not an object"
    for key in ("id", "title"):
        if not isinstance(entry.get(key), str):
            return f'"{key}" is missing, or is not text'
    problem = describe_id_problem(entry["id"])
    if problem is not None:
        return f"the id {quote(entry['id'])} {problem}"
    for key in _TEXTS:
        if not isinstance(entry.get(key), (str, type(None))):
            return f'"{key}" is not text'
    priority = entry.get("priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MAX_PRIORITY:
        return f'"priority" is not a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}'
    depends = entry.get("depends_on", [])
    if not isinstance(depends, list) or not all(isinstance(need, str) for need in depends):
        return '"depends_on" is not a list of ids'
    return None


def project_tasks(entries: Iterable[Entry]) -> dict[str, QueueTask]:
    """Return the tasks of the file by id, in its order."""
    entries = list(entries)
    parents = {entry.get("parent") for entry in entries}
    tasks = by_id(_project(entry, is_group=entry["id"] in parents) for entry in entries)
    blocked = {name: blockers for name, task in tasks.items() if (blockers := find_blockers(tasks, task))}
    return tasks | {name: replace(tasks[name], blocked_by=blockers) for name, blockers in blocked.items()}


def _project(entry: Entry, *, is_group: bool) -> QueueTask:
    word = entry.get("status") or OPEN
    status = WORDS.get(word, "deferred")
    return QueueTask(
        id=entry["id"],
        title=entry["title"],
        body=entry.get("description") or "",
        status=status,
        backend_status=word,
        priority=entry.get("priority", 0),
        depends=tuple(entry.get("depends_on", ())),
        group=entry.get("parent") or None,
        is_group=is_group or entry.get("kind") == GROUP,
        claim=project_claim(entry) if status == "claimed" else None,
        reason=entry.get("reason") or None,
    )


def project_claim(entry: Entry) -> TaskClaim | None:
    """Return a worker's claim; None if the entry has none, or another program's."""
    claim = entry.get("claim")
    if not isinstance(claim, dict):
        return None
    worker, session, at = (claim.get(key) for key in ("worker", "session", "at"))
    if not isinstance(worker, str) or not isinstance(session, str):
        return None
    return TaskClaim(Worker(worker, session), at if isinstance(at, str) else None)
