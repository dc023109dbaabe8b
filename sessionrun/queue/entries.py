"""The entries of `task_queue.json`: text to entries, entries to tasks and back, and their changes.  Pure.

The file belongs to other programs, too: keys that this version does not know stay as they are, and so do the words
of a status that it does not change.  A function that refuses has changed nothing that counts: the caller then does
not write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sessionrun.input.limits import Breach, plain, quote
from sessionrun.input.strict_json import parse_json
from sessionrun.model.errors import InputError
from sessionrun.model.keys import describe_id_problem
from sessionrun.queue.graph import (
    Tasks,
    by_id,
    find_blockers,
    find_circle,
    find_dependents,
    find_members,
    iterate_groups,
)
from sessionrun.queue.task import MAX_PRIORITY, Changes, Draft, QueueTask, Status, TaskClaim, Worker

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


def find_entry(contents: Contents, task_id: str) -> Entry:
    """Return the entry of a task.

    Raises:
        InputError: there is none.
    """
    entry = contents.find(task_id)
    if entry is None:
        raise InputError(
            f"the queue has no task {plain(task_id)!r}; `sessionrun queue list --all` shows its tasks"
        )
    return entry


def add(contents: Contents, drafts: Sequence[Draft], *, unless_known: bool) -> list[str | None]:
    """Append tasks, and groups that are missing; return their ids.

    Raises:
        InputError: a draft does not fit; see `create` in `feed`.
    """
    known = {_fold(entry["title"]) for entry in contents.entries}
    taken = {entry["id"].casefold() for entry in contents.entries}
    made: list[str | None] = []
    for draft in drafts:
        title = check_title(draft.title)
        if unless_known and title in known:
            made.append(None)
            continue
        known.add(title)
        entry: Entry = {"id": _take_id(contents, taken), "title": title, "status": OPEN}
        contents.entries.append(entry)
        _fill(contents, entry, Changes(None, draft.body, draft.priority, draft.depends, draft.group or ""))
        made.append(entry["id"])
    _check_circles(contents)
    _reopen_groups(contents, made)
    return made


def change(contents: Contents, task_id: str, changes: Changes) -> None:
    """Change an entry.

    Raises:
        InputError: there is none, or the change does not fit.
    """
    entry = find_entry(contents, task_id)
    before = project_tasks(contents.entries)[task_id]
    _fill(contents, entry, changes)
    _check_circles(contents)
    _close_groups(contents, before)
    if entry.get("status", OPEN) == OPEN:
        _reopen_groups(contents, [task_id])


def take_out(contents: Contents, task_id: str) -> QueueTask:
    """Remove an entry; its task.

    Raises:
        InputError: there is none, another task needs it, or it is claimed.
    """
    find_entry(contents, task_id)
    tasks = project_tasks(contents.entries)
    check_removal(tasks, tasks[task_id])
    contents.entries[:] = [entry for entry in contents.entries if entry["id"] != task_id]
    _close_groups(contents, tasks[task_id])
    return tasks[task_id]


def mark_claimed(contents: Contents, task_id: str, worker: Worker, at: str | None) -> bool:
    """Give a task to a worker; false if it is not ready."""
    entry = contents.find(task_id)
    if entry is None or not project_tasks(contents.entries)[task_id].is_ready:
        return False
    entry["status"] = CLAIMED
    entry["claim"] = {"worker": worker.name, "session": worker.session, "at": at}
    return True


def mark_closed(contents: Contents, task_id: str, reason: str | None) -> None:
    """Close a task and the groups that it was the last open task of.

    Raises:
        InputError: it is a group with open tasks.
    """
    find_entry(contents, task_id)
    tasks = project_tasks(contents.entries)
    check_closing(tasks, tasks[task_id])
    if tasks[task_id].status != "closed":
        _set_status(contents, task_id, CLOSED, reason)
        _close_groups(contents, tasks[task_id])


def mark_open(contents: Contents, task_id: str, reason: str | None) -> None:
    """Open a task again, and its groups."""
    entry = find_entry(contents, task_id)
    if entry.get("status", OPEN) != OPEN or "claim" in entry or entry.get("reason") != reason:
        _set_status(contents, task_id, OPEN, reason)
        _reopen_groups(contents, [task_id])


def has_claim(contents: Contents, task_id: str, worker: Worker) -> bool:
    """Whether this worker's claim stands."""
    entry = contents.find(task_id)
    claim = project_claim(entry) if entry is not None and entry.get("status") == CLAIMED else None
    return claim is not None and claim.worker == worker


def check_title(title: str) -> str:
    """Return a title on one line.

    Raises:
        InputError: it is empty.
    """
    line = _fold(title)
    if not line:
        raise InputError("a task needs a title")
    return line


def check_removal(tasks: Tasks, task: QueueTask) -> None:
    """Refuse to remove what other tasks name, or what a worker has.

    Raises:
        InputError: which tasks, and what to do.
    """
    if dependents := find_dependents(tasks, task.id):
        raise InputError(f"{task.id}: {_name(dependents)} on it; change that first (queue edit --depends)")
    if members := find_members(tasks, task.id):
        raise InputError(
            f"{task.id}: it is the group of {', '.join(one.id for one in members)}; remove those first"
        )
    if task.status == "claimed":
        raise InputError(f"{task.id}: it is claimed; close or reopen it first")


def check_closing(tasks: Tasks, task: QueueTask) -> None:
    """Refuse to close a group with open tasks.

    Raises:
        InputError: which tasks are open.
    """
    left = [one.id for one in find_members(tasks, task.id) if one.status != "closed"]
    if left:
        raise InputError(f"{task.id}: it is a group, which closes by itself; open in it: {', '.join(left)}")


def _name(dependents: list[str]) -> str:
    return f"{', '.join(dependents)} depend{'s' * (len(dependents) == 1)}"


def _fold(title: str) -> str:
    return " ".join(title.split())


def _take_id(contents: Contents, taken: set[str]) -> str:
    number = contents.record["next_id"]
    while f"task-{number}" in taken:
        number += 1
    contents.record["next_id"] = number + 1
    return f"task-{number}"


def _fill(contents: Contents, entry: Entry, changes: Changes) -> None:
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
            find_entry(contents, need)
        _set(entry, "depends_on", list(dict.fromkeys(changes.depends)))
    if changes.group is not None:
        _set(entry, "parent", _find_group(contents, changes.group) if changes.group else None)


def _set(entry: Entry, key: str, value: object) -> None:
    if value:
        entry[key] = value
    else:
        entry.pop(key, None)


def _find_group(contents: Contents, name: str) -> str:
    """Return the id of a group; it is made if no entry has this id."""
    entry = contents.find(name)
    if entry is None:
        problem = describe_id_problem(name)
        if problem is not None:
            raise InputError(f"the name of a group, {plain(name)!r}, {problem}")
        contents.entries.append({"id": name, "title": name, "status": OPEN, "kind": GROUP})
    elif entry.get("status") == CLAIMED:
        raise InputError(f"{name}: it is claimed, so it cannot become a group; close or reopen it first")
    return name


def _check_circles(contents: Contents) -> None:
    circle = find_circle(project_tasks(contents.entries))
    if circle is not None:
        raise InputError(f"tasks would wait for each other in a circle: {' -> '.join(circle)}")


def _set_status(contents: Contents, task_id: str, word: str, reason: str | None) -> None:
    entry = find_entry(contents, task_id)
    entry["status"] = word
    entry.pop("claim", None)
    _set(entry, "reason", reason)


def _close_groups(contents: Contents, task: QueueTask) -> None:
    """Close the groups of a task as far as all in them is closed."""
    tasks = project_tasks(contents.entries) if task.group is not None else {}
    for group in iterate_groups(tasks, task):
        members = find_members(tasks, group.id)
        if not members or any(member.status != "closed" for member in members):
            return
        _set_status(contents, group.id, CLOSED, "all its tasks are closed")
        tasks[group.id] = replace(group, status="closed")


def _reopen_groups(contents: Contents, task_ids: Sequence[str | None]) -> None:
    tasks = project_tasks(contents.entries)
    groups = {group for name in task_ids if name is not None for group in iterate_groups(tasks, tasks[name])}
    for group in groups:
        if group.status == "closed":
            _set_status(contents, group.id, OPEN, None)
