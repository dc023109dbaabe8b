"""Changes of the entries of `task_queue.json`.  Pure: the caller reads before and writes after.

A function that refuses has changed nothing that counts: the caller then does not write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sessionrun.dialects.limits import plain
from sessionrun.model.errors import InputError
from sessionrun.model.keys import describe_id_problem
from sessionrun.queue.graph import Tasks, find_circle, find_dependents, find_members, iterate_groups
from sessionrun.queue.shape import CLAIMED, CLOSED, GROUP, OPEN, Contents, Entry, project_claim, project_tasks
from sessionrun.queue.task import MAX_PRIORITY, Changes, Draft, QueueTask, Worker


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


def take_out(contents: Contents, task_id: str) -> None:
    """Remove an entry.

    Raises:
        InputError: there is none, another task needs it, or it is claimed.
    """
    find_entry(contents, task_id)
    tasks = project_tasks(contents.entries)
    check_removal(tasks, tasks[task_id])
    contents.entries[:] = [entry for entry in contents.entries if entry["id"] != task_id]
    _close_groups(contents, tasks[task_id])


def mark_claimed(contents: Contents, task_id: str, worker: Worker, at: str | None) -> bool:
    """Give a task to a worker; false if it is not ready."""
    entry = contents.find(task_id)
    if entry is None or not project_tasks(contents.entries)[task_id].is_ready:
        return False
    entry["status"] = CLAIMED
    entry["claim"] = {"worker": worker.name, "session": worker.session, "at": at}
    return True


def mark_closed(contents: Contents, task_id: str, reason: str | None) -> bool:
    """Close a task and the groups that it was the last open task of; false if it was closed.

    Raises:
        InputError: it is a group with open tasks.
    """
    find_entry(contents, task_id)
    tasks = project_tasks(contents.entries)
    check_closing(tasks, tasks[task_id])
    if tasks[task_id].status == "closed":
        return False
    _set_status(contents, task_id, CLOSED, reason)
    _close_groups(contents, tasks[task_id])
    return True


def mark_open(contents: Contents, task_id: str, reason: str | None) -> bool:
    """Open a task again, and its groups; false if it was open, for the same reason."""
    entry = find_entry(contents, task_id)
    if entry.get("status", OPEN) == OPEN and "claim" not in entry and entry.get("reason") == reason:
        return False
    _set_status(contents, task_id, OPEN, reason)
    _reopen_groups(contents, [task_id])
    return True


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
