"""The queue and its rules, whatever keeps it: what may be claimed, closed, changed, removed, and what groups do.

A backend is a module with a `Feed`, which gives the `Contents` of its queue: to a reader as they are, to a writer
under the lock.  Contents read and change one task, and know no rule.  Each method of a feed sees the queue as it
is at that moment: other programs and people change it, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final, Literal, Protocol

from sessionrun.input.text import plain
from sessionrun.model.errors import InputError
from sessionrun.queue.task import Changes, Draft, QueueTask, Worker, fold_spaces, iterate_groups

ALL_CLOSED: Final = "all its tasks are closed"
"""Why a group is closed."""


class Contents(Protocol):
    """What a backend does with its tasks.  It raises what `Feed` does."""

    def load(self, ids: Collection[str] | None = None, *, for_claims: bool = True) -> dict[str, QueueTask]:
        """Return all tasks in the order of the queue, or those of these ids that there are.

        If it is not `for_claims`, a task may seem open that the backend defers: to ask for that may be dear.
        """

    def take(self, task: QueueTask, worker: Worker) -> QueueTask | None:
        """Claim a task that was ready; None: it is not any more."""

    def mark(self, task: QueueTask, status: Literal["open", "closed"], reason: str | None) -> None:
        """Make a task open or closed; its claim ends."""

    def make(self, draft: Draft) -> str:
        """Make a task, whose group is an id; return its id."""

    def change(self, task: QueueTask, changes: Changes) -> None:
        """Change a task; its group is an id."""

    def delete(self, task: QueueTask) -> None: ...

    def find_group(self, name: str) -> QueueTask | None: ...

    def make_group(self, name: str) -> str:
        """Make a group of a name that means none; return its id."""


class Feed(ABC):
    """A queue of tasks.

    All methods raise InputError if the queue is damaged, an argument does not fit it, or the backend's program
    refuses; the task is unchanged then.  They raise OSError or StoreError if the disk fails, the lock is held for
    too long, or the program does not run.

    Attributes:
        name: which backend it is, such as ``file``.
        priorities: the smallest and the biggest that it can hold.
        place: the file or directory that changes when the queue changes.
    """

    name: ClassVar[str]
    priorities: ClassVar[tuple[int, int]]
    place: Path

    @abstractmethod
    def _read(self) -> Contents:
        """The contents for a reader."""

    @abstractmethod
    def _hold(self) -> AbstractContextManager[Contents]:
        """The contents for a writer, who alone has them; an exception leaves a task as it was."""

    def sync(self) -> bool:
        """Let the backend exchange its tasks with other places; false if it has nothing of the kind."""
        return False

    def load(self) -> list[QueueTask]:
        """Return all tasks, in the order of the queue."""
        return [*self._read().load().values()]

    def show(self, task_id: str) -> QueueTask:
        return _look(self._read(), task_id, for_claims=True)

    def claim(self, task_id: str, worker: Worker) -> QueueTask | None:
        """Let one worker have a task, and no other.  None: it is not ready (any more).

        A worker that has the task already gets it again, so that it may ask after a crash.
        """
        with self._hold() as contents:
            task = contents.load([task_id]).get(task_id)
            if task is None or task.worker == worker:
                return task
            return contents.take(task, worker) if task.is_ready else None

    def close(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        """Mark a task as done, and each group whose last open task it was.

        With `worker` only if that worker's claim still stands; None: it does not, and nothing was changed.
        """
        with self._hold() as contents:
            task = _look(contents, task_id)
            if worker is not None and task.worker != worker:
                return None
            tasks = contents.load(for_claims=False).values() if task.is_group else ()
            left = [one.id for one in tasks if one.group == task.id and one.status != "closed"]
            if left:
                why = f"it is a group, which closes by itself; open in it: {', '.join(left)}"
                raise InputError(f"{task.id}: {why}")
            if task.status != "closed":
                contents.mark(task, "closed", reason)
            settle_groups(contents, task.group)
            return _look(contents, task_id, for_claims=True)

    def reopen(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        """Make a task open again that is claimed, deferred or closed, and its groups; `worker` as in `close`.

        Of a task that is open the reason alone changes.
        """
        with self._hold() as contents:
            task = _look(contents, task_id)
            if worker is not None and task.worker != worker:
                return None
            contents.mark(task, "open", reason)
            settle_groups(contents, task.group)
            return _look(contents, task_id, for_claims=True)

    def create(self, drafts: Sequence[Draft], *, unless_known: bool = False) -> list[QueueTask | None]:
        """Make tasks.  They cannot depend on each other: their ids are not known before.

        With `unless_known`, a draft whose title a task of the queue (or an earlier draft) has is left out: None.
        """
        drafts = [replace(draft, title=_check_title(draft.title)) for draft in drafts]
        with self._hold() as contents:
            before = contents.load(for_claims=False) if unless_known else {}
            known = {fold_spaces(task.title) for task in before.values()}
            made: dict[int, str] = {}
            looked: set[str] = set()
            groups: dict[str, str] = {}
            for number, draft in enumerate(drafts):
                if unless_known and draft.title in known:
                    continue
                known.add(draft.title)
                self._check(contents, draft, looked)
                group = draft.group or ""
                if group and group not in groups:
                    groups[group] = _provide_group(contents, group)
                made[number] = contents.make(replace(draft, group=groups.get(group)))
            settle_groups(contents, *groups.values())
            tasks = contents.load(made.values())
            return [tasks[made[number]] if number in made else None for number in range(len(drafts))]

    def edit(self, task_id: str, changes: Changes) -> QueueTask:
        """Change a task; return it as it is then."""
        if changes.title is not None:
            changes = replace(changes, title=_check_title(changes.title))
        with self._hold() as contents:
            task = _look(contents, task_id)
            self._check(contents, changes, set())
            if changes.group:
                changes = replace(changes, group=_provide_group(contents, changes.group))
            contents.change(task, changes)
            if changes.group is not None:
                settle_groups(contents, task.group, changes.group)
            return _look(contents, task_id, for_claims=True)

    def remove(self, task_id: str) -> QueueTask:
        """Take a task out of the queue on which no other depends, and which no worker has; return it."""
        with self._hold() as contents:
            task = _look(contents, task_id)
            tasks = contents.load(for_claims=False).values()
            dependents = [one.id for one in tasks if task.id in one.depends]
            members = [one.id for one in tasks if one.group == task.id]
            if dependents:
                names = f"{', '.join(dependents)} depend{'s' * (len(dependents) == 1)}"
                raise InputError(f"{task.id}: {names} on it; change that first (queue edit --depends)")
            if members:
                raise InputError(f"{task.id}: it is the group of {', '.join(members)}; remove those first")
            if task.status == "claimed":
                raise InputError(f"{task.id}: it is claimed; close or reopen it first")
            contents.delete(task)
            settle_groups(contents, task.group)
            return task

    def _check(self, contents: Contents, asked: Draft | Changes, looked: set[str]) -> None:
        """Refuse a priority or a need that there is not; `looked` are needs that there are."""
        least, most = self.priorities
        if asked.priority is not None and not least <= asked.priority <= most:
            known = f"priorities from {least} to {most}"
            raise InputError(f"the queue ({self.name}) has {known}, not {asked.priority}")
        for need in asked.depends or ():
            if need not in looked:
                _look(contents, need)
                looked.add(need)


def _provide_group(contents: Contents, name: str) -> str:
    """Return the id of a group, which is open then; it is made if there is none."""
    group = contents.find_group(name)
    if group is None:
        return contents.make_group(name)
    if group.status == "claimed":
        raise InputError(f"{group.id}: it is claimed, so it cannot become a group; close or reopen it first")
    if group.status == "closed":  # before: a program may refuse tasks of a group that is closed
        contents.mark(group, "open", None)
    return group.id


def _look(contents: Contents, task_id: str, *, for_claims: bool = False) -> QueueTask:
    task = contents.load([task_id], for_claims=for_claims).get(task_id)
    if task is None:
        raise InputError(
            f"the queue has no task {plain(task_id)!r}; `sessionrun queue list --all` shows its tasks"
        )
    return task


def _check_title(title: str) -> str:
    line = fold_spaces(title)
    if not line:
        raise InputError("a task needs a title")
    return line


def settle_groups(contents: Contents, *names: str | None) -> None:
    """Close these groups, and those around them, if all in them is closed; open them if something is not."""
    for name in dict.fromkeys(filter(None, names)):
        tasks = contents.load(for_claims=False)
        groups = [tasks[name], *iterate_groups(tasks, tasks[name])] if name in tasks else []
        for group in groups:
            members = {task.status for task in tasks.values() if task.group == group.id}
            is_done = members == {"closed"}
            if members and is_done != (group.status == "closed"):
                status: Literal["open", "closed"] = "closed" if is_done else "open"
                contents.mark(group, status, ALL_CLOSED if is_done else None)
                tasks[group.id] = replace(group, status=status)
