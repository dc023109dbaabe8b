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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sessionrun.input.limits import Breach, plain, quote
from sessionrun.input.strict import parse_json
from sessionrun.model.errors import InputError
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.units import format_time
from sessionrun.queue.task import (
    ALL_CLOSED,
    MAX_PRIORITY,
    Changes,
    Draft,
    QueuePlace,
    QueueTask,
    Status,
    TaskClaim,
    Worker,
    by_id,
    check_closing,
    check_removal,
    check_title,
    find_blockers,
    find_circle,
    find_settled,
    fold_spaces,
)
from sessionrun.store import locks
from sessionrun.store.files import read_regular, replace_file

NAME: Final = "file"
PLACE: Final = "task_queue.json"

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


class FileFeed:
    """The queue in a file, which the first change makes; see `feed.Feed` for the methods."""

    name = NAME

    def __init__(self, place: QueuePlace, now: Callable[[], float] = time.time) -> None:
        self.place: Path = place.top / PLACE
        self._lock = place.lock
        self._now = now

    def load(self) -> list[QueueTask]:
        return [*self._read().project().values()]

    def show(self, task_id: str) -> QueueTask:
        return self._read().show(task_id)

    def claim(self, task_id: str, worker: Worker) -> QueueTask | None:
        with self._changing() as contents:
            entry = contents.find(task_id)
            if entry is None or not (_has_claim(entry, worker) or contents.show(task_id).is_ready):
                return None
            if not _has_claim(entry, worker):
                claim = {"worker": worker.name, "session": worker.session, "at": format_time(self._now())}
                entry.update(status=CLAIMED, claim=claim)
            return contents.show(task_id)

    def close(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        with self._changing() as contents:
            entry = contents.get(task_id)
            if worker is not None and not _has_claim(entry, worker):
                return None
            check_closing(contents.project(), contents.show(task_id))
            if _status(entry) != "closed":
                _set_status(entry, CLOSED, reason)
                contents.settle_groups(entry.get("parent"))
            return contents.show(task_id)

    def reopen(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        with self._changing() as contents:
            entry = contents.get(task_id)
            if worker is not None and not _has_claim(entry, worker):
                return None
            if entry.get("status", OPEN) != OPEN or "claim" in entry or entry.get("reason") != reason:
                _set_status(entry, OPEN, reason)
                contents.settle_groups(entry.get("parent"))
            return contents.show(task_id)

    def create(self, drafts: Sequence[Draft], *, unless_known: bool = False) -> list[QueueTask | None]:
        with self._changing() as contents:
            ids = contents.add(drafts, unless_known=unless_known)
            tasks = contents.project()
            return [None if task_id is None else tasks[task_id] for task_id in ids]

    def edit(self, task_id: str, changes: Changes) -> QueueTask:
        with self._changing() as contents:
            entry = contents.get(task_id)
            group = entry.get("parent")
            contents.fill(entry, changes)
            contents.check_circles()
            if entry.get("parent") != group:
                contents.settle_groups(group, entry.get("parent"))
            return contents.show(task_id)

    def remove(self, task_id: str) -> QueueTask:
        with self._changing() as contents:
            task, entry = contents.show(task_id), contents.get(task_id)
            check_removal(contents.project(), task)
            contents.entries.remove(entry)
            contents.settle_groups(entry.get("parent"))
            return task

    def sync(self) -> bool:
        return False

    def _read(self) -> Contents:
        try:
            return parse_contents(read_regular(self.place), str(self.place))
        except FileNotFoundError:
            return Contents({"tasks": [], "next_id": 1})

    @contextmanager
    def _changing(self) -> Iterator[Contents]:
        """Hold the lock, and give the contents; the file is written if they are changed and nothing is raised."""
        with locks.hold_lock(self._lock, 0o600, LOCK_TIMEOUT_S):
            contents = self._read()
            before = contents.format()
            yield contents
            after = contents.format()
            if after != before:
                self._write(after)

    def _write(self, content: bytes) -> None:
        try:
            mode = stat.S_IMODE(os.stat(self.place).st_mode)
        except FileNotFoundError:
            mode = _MODE
        replace_file(self.place, content, durable=True, mode=mode)


# --- the contents of the file; pure ---


class Contents:
    """The whole file: its top-level object, whose list `tasks` is `entries`.

    A method that refuses, by an InputError, has changed nothing that counts: the caller then does not write.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record
        self.entries: list[Entry] = record["tasks"]

    def format(self) -> bytes:
        """Write the file as people can edit it; refuse a text that is not UTF-8."""
        try:
            return json.dumps(self._record, indent=2, ensure_ascii=False).encode() + b"\n"
        except UnicodeEncodeError:
            raise InputError("a title, text or reason is not UTF-8") from None

    def project(self) -> dict[str, QueueTask]:
        """Return the tasks by id, in the order of the file."""
        parents = {entry.get("parent") for entry in self.entries}
        tasks = by_id(_project(entry, is_group=entry["id"] in parents) for entry in self.entries)
        blocked = {name: blockers for name, task in tasks.items() if (blockers := find_blockers(tasks, task))}
        return tasks | {name: replace(tasks[name], blocked_by=blockers) for name, blockers in blocked.items()}

    def show(self, task_id: str) -> QueueTask:
        """Return one task, or refuse."""
        self.get(task_id)
        return self.project()[task_id]

    def find(self, task_id: str) -> Entry | None:
        """Return the entry of a task."""
        return next((entry for entry in self.entries if entry["id"] == task_id), None)

    def get(self, task_id: str) -> Entry:
        """Return the entry of a task, or refuse."""
        entry = self.find(task_id)
        if entry is None:
            raise InputError(
                f"the queue has no task {plain(task_id)!r}; `sessionrun queue list --all` shows its tasks"
            )
        return entry

    def add(self, drafts: Sequence[Draft], *, unless_known: bool) -> list[str | None]:
        """Append tasks, and groups that are missing; return their ids; see `create` in `feed`."""
        known = {fold_spaces(entry["title"]) for entry in self.entries}
        taken = {entry["id"].casefold() for entry in self.entries}
        made: list[str | None] = []
        for draft in drafts:
            title = check_title(draft.title)
            if unless_known and title in known:
                made.append(None)
                continue
            known.add(title)
            entry: Entry = {"id": self._take_id(taken), "title": title, "status": OPEN}
            self.entries.append(entry)
            self.fill(entry, Changes(None, draft.body, draft.priority, draft.depends, draft.group or ""))
            made.append(entry["id"])
        self.check_circles()
        self.settle_groups(*{draft.group for draft, name in zip(drafts, made, strict=True) if name is not None})
        return made

    def _take_id(self, taken: set[str]) -> str:
        number = self._record["next_id"]
        while f"task-{number}" in taken:
            number += 1
        self._record["next_id"] = number + 1
        return f"task-{number}"

    def fill(self, entry: Entry, changes: Changes) -> None:
        """Set what is given; keys that would say nothing are left out, as in other programs' entries."""
        if changes.title is not None:
            entry["title"] = check_title(changes.title)
        if changes.body is not None:
            _set(entry, "description", changes.body)
        if changes.priority is not None:
            if abs(changes.priority) > MAX_PRIORITY:
                raise InputError(f"a priority lies within {MAX_PRIORITY} of 0")
            _set(entry, "priority", changes.priority)
        if changes.depends is not None:
            for need in changes.depends:
                self.get(need)
            _set(entry, "depends_on", list(dict.fromkeys(changes.depends)))
        if changes.group is not None:
            _set(entry, "parent", self._find_group(changes.group) if changes.group else None)

    def _find_group(self, name: str) -> str:
        """Return the id of a group; it is made if no entry has this id."""
        entry = self.find(name)
        if entry is None:
            problem = describe_id_problem(name)
            if problem is not None:
                raise InputError(f"the name of a group, {plain(name)!r}, {problem}")
            self.entries.append({"id": name, "title": name, "status": OPEN, "kind": GROUP})
        elif entry.get("status") == CLAIMED:
            raise InputError(f"{name}: it is claimed, so it cannot become a group; close or reopen it first")
        return name

    def check_circles(self) -> None:
        """Refuse tasks that would wait for each other."""
        circle = find_circle(self.project())
        if circle is not None:
            raise InputError(f"tasks would wait for each other in a circle: {' -> '.join(circle)}")

    def settle_groups(self, *names: str | None) -> None:
        """Close these groups, and those around them, if all in them is closed; open them if something is not."""
        for name in names:
            for group, is_done in find_settled(self.project(), name):
                _set_status(self.get(group), CLOSED if is_done else OPEN, ALL_CLOSED if is_done else None)


def _project(entry: Entry, *, is_group: bool) -> QueueTask:
    status = _status(entry)
    return QueueTask(
        id=entry["id"],
        title=entry["title"],
        body=entry.get("description") or "",
        status=status,
        backend_status=entry.get("status") or OPEN,
        priority=entry.get("priority", 0),
        depends=tuple(entry.get("depends_on", ())),
        group=entry.get("parent") or None,
        is_group=is_group or entry.get("kind") == GROUP,
        claim=_project_claim(entry) if status == "claimed" else None,
        reason=entry.get("reason") or None,
    )


def _status(entry: Entry) -> Status:
    return WORDS.get(entry.get("status") or OPEN, "deferred")


def _project_claim(entry: Entry) -> TaskClaim | None:
    """A worker's claim; None if the entry has none, or another program's."""
    claim = entry.get("claim")
    if not isinstance(claim, dict):
        return None
    worker, session, at = (claim.get(key) for key in ("worker", "session", "at"))
    if not isinstance(worker, str) or not isinstance(session, str):
        return None
    return TaskClaim(Worker(worker, session), at if isinstance(at, str) else None)


def _has_claim(entry: Entry, worker: Worker) -> bool:
    claim = _project_claim(entry) if entry.get("status") == CLAIMED else None
    return claim is not None and claim.worker == worker


def _set_status(entry: Entry, word: str, reason: str | None) -> None:
    entry["status"] = word
    entry.pop("claim", None)
    _set(entry, "reason", reason)


def _set(entry: Entry, key: str, value: object) -> None:
    if value:
        entry[key] = value
    else:
        entry.pop(key, None)


def parse_contents(content: bytes, source: str) -> Contents:
    """Read the file.  InputError: it is damaged: one line with the place."""
    try:
        return _check(parse_json(content.decode("utf-8-sig")))
    except UnicodeDecodeError:
        problem = "is not UTF-8"
    except (Breach, ValueError) as error:
        problem = str(error)
    raise InputError(f"{source}: {problem}; mend the file or put it aside, nothing was changed")


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
    return Contents(record)


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
