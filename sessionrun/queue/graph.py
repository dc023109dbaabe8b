"""How tasks of a queue hang together: groups, what blocks a task, circles, and which task comes first.

Pure.  A task waits for what it depends on, and for what its groups depend on.  A group is done when its tasks are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from sessionrun.input.limits import plain
from sessionrun.model.errors import InputError
from sessionrun.model.validation import find_cycle
from sessionrun.queue.task import QueueTask

Tasks = Mapping[str, QueueTask]

ALL_CLOSED: Final = "all its tasks are closed"
"""Why a group is closed."""


def iterate_groups(tasks: Tasks, task: QueueTask) -> Iterator[QueueTask]:
    """Yield the groups that a task is in, the innermost first; each once, even if they lie in a circle."""
    seen = {task.id}
    while task.group is not None and task.group not in seen and task.group in tasks:
        seen.add(task.group)
        task = tasks[task.group]
        yield task


def find_blockers(tasks: Tasks, task: QueueTask) -> tuple[str, ...]:
    """Return the ids that a task waits for."""
    if not task.depends and task.group is None:
        return ()
    wanted = dict.fromkeys(task.depends)
    for group in iterate_groups(tasks, task):
        wanted |= dict.fromkeys(group.depends)
    return tuple(need for need in wanted if need not in tasks or tasks[need].status != "closed")


def find_circle(tasks: Tasks) -> list[str] | None:
    """Return the ids of a circle in which each task waits for the next one, the first also at the end; else None.

    Each task is two moments, its begin and its end: a task begins after its group, a group ends after its tasks.
    """
    moments: dict[str, list[str]] = {f">{task.id}": [f"<{task.id}"] for task in tasks.values()}
    for task in tasks.values():
        moments[f"<{task.id}"] = [f">{need}" for need in task.depends if need in tasks]
        if task.group in tasks:
            moments[f"<{task.id}"].append(f"<{task.group}")
            moments[f">{task.group}"].append(f">{task.id}")
    circle = find_cycle({moment: tuple(needs) for moment, needs in moments.items()})
    if circle is None:
        return None
    names = [moment[1:] for moment in circle]
    path = [name for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
    return path if len(path) > 1 else path * 2


def choose_ready(tasks: Tasks, group: str | None = None) -> list[QueueTask]:
    """The tasks that may be claimed, bigger priority first, then in the order of the queue; see `choose_group`."""
    among = tasks.values() if group is None else choose_group(tasks, group)
    return sorted((task for task in among if task.is_ready), key=lambda task: -task.priority)


def find_settled(tasks: Tasks, name: str | None) -> Iterator[tuple[str, bool]]:
    """Yield the groups around a task that close (true: all in them is closed), or that open."""
    known, seen = dict(tasks), set[str]()
    while (group := known.get(name or "")) is not None and group.id not in seen:
        seen.add(group.id)
        members = {one.status for one in known.values() if one.group == group.id}
        is_done = members == {"closed"}
        if members and is_done != (group.status == "closed"):
            yield group.id, is_done
            known[group.id] = replace(group, status="closed" if is_done else "open")
        name = group.group


def choose_group(tasks: Tasks, name: str) -> list[QueueTask]:
    """A group, by its id or else its title, and all in it and in its groups; InputError: there is none."""
    titles = {task.title: task.id for task in tasks.values() if task.is_group}
    group = name if name in tasks else titles.get(name)
    if group is None:
        raise InputError(f"the queue has no group {plain(name)!r}")
    return [
        task for task in tasks.values() if group in (task.id, *(one.id for one in iterate_groups(tasks, task)))
    ]


def check_removal(tasks: Tasks, task: QueueTask) -> None:
    """Refuse to remove what other tasks name, or what a worker has.  InputError: which tasks, and what to do."""
    dependents = [one.id for one in tasks.values() if task.id in one.depends]
    members = [one.id for one in tasks.values() if one.group == task.id]
    if dependents:
        names = f"{', '.join(dependents)} depend{'s' * (len(dependents) == 1)}"
        raise InputError(f"{task.id}: {names} on it; change that first (queue edit --depends)")
    if members:
        raise InputError(f"{task.id}: it is the group of {', '.join(members)}; remove those first")
    if task.status == "claimed":
        raise InputError(f"{task.id}: it is claimed; close or reopen it first")


def check_closing(tasks: Tasks, task: QueueTask) -> None:
    """Refuse to close a group with open tasks.  InputError: which tasks are open."""
    left = [one.id for one in tasks.values() if one.group == task.id and one.status != "closed"]
    if left:
        raise InputError(f"{task.id}: it is a group, which closes by itself; open in it: {', '.join(left)}")


def by_id(tasks: Iterable[QueueTask]) -> dict[str, QueueTask]:
    """Return the tasks by their ids."""
    return {task.id: task for task in tasks}
