"""The backend `file`: `task_queue.json` in the top of the repository.

Every change is made under one lock: read, change, write beside, rename.  A reader takes no lock, since it sees the
file before or after a change.  The file belongs to other programs, too: keys that this version does not know stay
as they are, and so do the words of a status that it does not change.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from sessionrun.client.findings import Findings
from sessionrun.input.text import Breach, parse_json, plain, quote
from sessionrun.model.errors import InputError
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.places import Repository
from sessionrun.model.words import format_time
from sessionrun.queue.feed import Contents, Feed
from sessionrun.queue.task import (
    LOCK_NAME,
    Changes,
    Draft,
    QueuePlace,
    QueueTask,
    Status,
    Worker,
    by_id,
    find_blockers,
    find_circle,
)
from sessionrun.store import locks
from sessionrun.store.files import read_regular, replace_file

NAME: Final = "file"
PLACE: Final = "task_queue.json"

MAX_PRIORITY: Final = 1_000_000
LOCK_TIMEOUT_S: Final = 60.0
_MODE: Final = 0o644

Entry = dict[str, Any]
"""A task as it stands in the file."""

OPEN: Final = "pending"
CLAIMED: Final = "in_progress"
CLOSED: Final = "done"
WORDS: Final[dict[str, Status]] = {
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


def find(place: QueuePlace) -> FileFeed:
    return FileFeed(place)


class FileFeed(Feed):
    """The queue in a file, which the first change makes."""

    name = NAME
    priorities = (-MAX_PRIORITY, MAX_PRIORITY)

    def __init__(self, place: QueuePlace, now: Callable[[], float] = time.time) -> None:
        self.place = place.top / PLACE
        self._lock = place.lock
        self._now = now

    def _read(self) -> FileContents:
        try:
            record = _check(parse_json(read_regular(self.place).decode("utf-8-sig")))
        except FileNotFoundError:
            record = {"tasks": [], "next_id": 1}
        except (Breach, ValueError) as error:
            problem = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
            raise InputError(
                f"{self.place}: {problem}; mend the file or put it aside, nothing was changed"
            ) from None
        return FileContents(record, self._now)

    @contextmanager
    def _hold(self) -> Iterator[FileContents]:
        """Hold the lock, and give the contents; the file is written if they are changed and nothing is raised."""
        with locks.hold_lock(self._lock, 0o600, LOCK_TIMEOUT_S):
            contents = self._read()
            before = contents.format()
            yield contents
            if contents.is_rewired and (circle := find_circle(contents.load())) is not None:
                raise InputError(f"tasks would wait for each other in a circle: {' -> '.join(circle)}")
            after = contents.format()
            if after != before:
                mode = stat.S_IMODE(os.stat(self.place).st_mode) if self.place.exists() else _MODE
                replace_file(self.place, after, durable=True, mode=mode)


# --- the contents of the file ---


class FileContents(Contents):
    """The whole file: its top-level object, whose list `tasks` is `entries`.  Nothing is written here."""

    def __init__(self, record: dict[str, Any], now: Callable[[], float] = time.time) -> None:
        self._record = record
        self._now = now
        self.is_rewired = False
        self.entries: list[Entry] = record["tasks"]

    def format(self) -> bytes:
        """Write the file as people can edit it; refuse a text that is not UTF-8."""
        try:
            return json.dumps(self._record, indent=2, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:
            raise InputError("a title, text or reason is not UTF-8") from None

    def load(self, ids: Collection[str] | None = None, *, for_claims: bool = True) -> dict[str, QueueTask]:
        parents = {entry.get("parent") for entry in self.entries}
        tasks = by_id(_project(entry, is_group=entry["id"] in parents) for entry in self.entries)
        found = tasks.values() if ids is None else [tasks[name] for name in ids if name in tasks]
        return by_id(replace(task, blocked_by=find_blockers(tasks, task)) for task in found)

    def take(self, task: QueueTask, worker: Worker) -> QueueTask:
        claim = {"worker": worker.name, "session": worker.session, "at": format_time(self._now())}
        self._get(task.id).update(status=CLAIMED, claim=claim)
        return self.load([task.id])[task.id]

    def mark(self, task: QueueTask, status: Literal["open", "closed"], reason: str | None) -> None:
        entry = self._get(task.id)
        if _status(entry) != status:
            entry["status"] = OPEN if status == "open" else CLOSED
        entry.pop("claim", None)
        _set(entry, "reason", reason)

    def make(self, draft: Draft) -> str:
        taken = {entry["id"].casefold() for entry in self.entries}
        number = next(number for number in count(self._record["next_id"]) if f"task-{number}" not in taken)
        self._record["next_id"] = number + 1
        entry: Entry = {"id": f"task-{number}", "title": draft.title, "status": OPEN}
        self.entries.append(entry)
        self._fill(entry, draft)
        return str(entry["id"])

    def change(self, task: QueueTask, changes: Changes) -> None:
        self._fill(self._get(task.id), changes)

    def delete(self, task: QueueTask) -> None:
        self.entries.remove(self._get(task.id))

    def find_group(self, name: str) -> QueueTask | None:
        return self.load([name]).get(name)

    def make_group(self, name: str) -> str:
        problem = describe_id_problem(name)
        if problem is not None:
            raise InputError(f"the name of a group, {plain(name)!r}, {problem}")
        self.entries.append({"id": name, "title": name, "status": OPEN, "kind": GROUP})
        return name

    def _get(self, task_id: str) -> Entry:
        return next(entry for entry in self.entries if entry["id"] == task_id)

    def _fill(self, entry: Entry, changes: Draft | Changes) -> None:
        """Set what is given; keys that would say nothing are left out, as in other programs' entries."""
        depends = None if changes.depends is None else list(dict.fromkeys(changes.depends))
        values = {
            "title": changes.title,
            "description": changes.body,
            "priority": changes.priority,
            "depends_on": depends,
            "parent": changes.group,
        }
        for key, value in values.items():
            if value is not None:
                _set(entry, key, value)
        self.is_rewired |= bool(changes.depends or changes.group)


def _project(entry: Entry, *, is_group: bool) -> QueueTask:
    claim = entry.get("claim")
    claim = claim if _status(entry) == "claimed" and isinstance(claim, dict) else {}
    name, session, at = (claim.get(key) for key in ("worker", "session", "at"))
    # None: no worker has the task, or another program
    worker = Worker(name, session) if isinstance(name, str) and isinstance(session, str) else None
    return QueueTask(
        id=entry["id"],
        title=entry["title"],
        body=entry.get("description") or "",
        status=_status(entry),
        backend_status=entry.get("status") or OPEN,
        priority=entry.get("priority", 0),
        depends=tuple(entry.get("depends_on", ())),
        group=entry.get("parent") or None,
        is_group=is_group or entry.get("kind") == GROUP,
        reason=entry.get("reason") or None,
        worker=worker,
        claimed_at=at if worker is not None and isinstance(at, str) else None,
    )


def _status(entry: Entry) -> Status:
    return WORDS.get(entry.get("status") or OPEN, "deferred")


def _set(entry: Entry, key: str, value: object) -> None:
    if value:
        entry[key] = value
    else:
        entry.pop(key, None)


def _check(record: Any) -> dict[str, Any]:
    """The top-level object of the file.  ValueError: what does not fit, with its place."""
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
    return record


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


# --- what `clean` finds of a queue: its lock, in the directory of a repository's git ---


def sweep_repository(repository: Repository) -> None:
    """Remove the lock of the queue, if no process holds it."""
    locks.remove_free(Path(repository.common_dir, LOCK_NAME))


FINDINGS: Final = Findings(sweep_repository=sweep_repository)
