"""A task of the queue, as every backend shows it, where the queue is, and how its tasks hang together.

A linked worktree has a copy of each file that is committed.  A task that an agent adds in there would be lost with
the worktree, so the queue of a directory is in the top of the main checkout of its repository.

A task waits for what it depends on, and for what its groups depend on.  A group is done when its tasks are.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, Literal, NamedTuple

from sessionrun.input.text import plain
from sessionrun.model.errors import InputError
from sessionrun.model.frozen import frozen
from sessionrun.model.validation import find_cycle

Status = Literal["open", "claimed", "deferred", "closed"]
"""`deferred`: the backend's own word says neither that the task may run nor that it is done."""


@frozen
class Worker:
    """What claims a task: a worker, by a name that its session uses once, and the id of that session."""

    name: str
    session: str


@frozen
class QueueTask:
    """One task.

    A task that others name as their group is a group: no worker gets it, and it closes when they are closed.

    Attributes:
        status: where it stands; `backend_status` is the backend's own word for it.
        priority: bigger goes first; tasks of one priority go in the order of the queue.
        depends: ids of tasks that have to be closed before it may run.
        group: the id of its group.
        worker: what has claimed it, None if that is no worker of ours; `claimed_at` is since when (ISO 8601, UTC;
            None: the backend does not say).
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
    worker: Worker | None = None
    claimed_at: str | None = None
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


def fold_spaces(title: str) -> str:
    return " ".join(title.split())


def show_line(title: str) -> str:
    """Return a title on one line without control characters: it comes into commits, and from there to terminals.

    >>> show_line("Fix \\x1b[31mit")
    'Fix [31mit'
    """
    return fold_spaces("".join(char if char.isprintable() else " " for char in title))


def name_apart(stem: str, taken: Collection[str]) -> str:
    """Return a name that is not `taken` (in lower case): the stem, perhaps with a number behind it."""
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(name for name in names if name.casefold() not in taken)


LOCK_NAME: Final = "sessionrun-queue.lock"


class QueuePlace(NamedTuple):
    """The directory with the queue, and the file whose lock a process holds that changes it."""

    top: Path
    lock: Path


def find_place(cwd: Path) -> QueuePlace:
    """Return the place of the queue for a directory; without a repository that directory itself.

    The lock lies in the git directory, so that it shows in no `git status`.
    """
    start = Path(os.path.abspath(cwd))
    for folder in (start, *start.parents):
        entry = folder / ".git"
        if entry.is_dir():
            return QueuePlace(folder, entry / LOCK_NAME)
        if entry.is_file() and (git_dir := _read_path(entry, "gitdir: ", folder)) is not None:
            common = _read_path(git_dir / "commondir", "", git_dir) or git_dir
            # a submodule, and a worktree of a bare repository, is its own
            is_linked = common != git_dir and common.name == ".git"
            return QueuePlace(common.parent if is_linked else folder, common / LOCK_NAME)
    return QueuePlace(start, start / f".{LOCK_NAME}")


def _read_path(file: Path, prefix: str, base: Path) -> Path | None:
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    if not text.startswith(prefix):
        return None
    return Path(os.path.normpath(base / text[len(prefix) :].rstrip("\n")))


Signature = tuple[tuple[str, int, int, int], ...]

_WRITTEN: Final = ("-wal", ".jsonl", "last-touched")
"""How the names of files end that a program of Beads writes with a change; others it touches to read, too."""


def read_signature(place: Path) -> Signature:
    """Return what differs after a change; nothing if the queue is not there.

    Not every version of a program shows each change in these files: a queue in a directory has to be loaded now
    and then all the same.
    """
    files = [place]
    with suppress(OSError):
        files = sorted(place / name for name in os.listdir(place) if name.endswith(_WRITTEN))
    found = []
    for file in files:
        with suppress(OSError):
            inode = os.stat(file)
            found.append((str(file), inode.st_ino, inode.st_mtime_ns, inode.st_size))
    return tuple(found)


Tasks = Mapping[str, QueueTask]


def iterate_groups(tasks: Tasks, task: QueueTask) -> Iterator[QueueTask]:
    """Yield the groups that a task is in, the innermost first; each once, even if they lie in a circle."""
    seen = {task.id}
    while task.group is not None and task.group not in seen and task.group in tasks:
        seen.add(task.group)
        task = tasks[task.group]
        yield task


def find_blockers(tasks: Tasks, task: QueueTask) -> tuple[str, ...]:
    waiting = (task, *iterate_groups(tasks, task))
    wanted = dict.fromkeys(need for one in waiting for need in one.depends)
    return tuple(need for need in wanted if need not in tasks or tasks[need].status != "closed")


def find_circle(tasks: Tasks) -> list[str] | None:
    """The ids of a circle in which each task waits for the next one, the first also at the end; else None.

    Each task is two moments, its begin and its end: a task begins after its group, a group ends after its tasks.
    So the circle names each group by which one of its tasks waits.
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
    return sorted((task for task in choose_group(tasks, group) if task.is_ready), key=lambda task: -task.priority)


def choose_group(tasks: Tasks, name: str | None) -> list[QueueTask]:
    """A group, by its id or else its title, and all in it and in its groups; None: all tasks.

    Raises:
        InputError: there is no such group.
    """
    if name is None:
        return [*tasks.values()]
    titles = {task.title: task.id for task in tasks.values() if task.is_group}
    group = name if name in tasks else titles.get(name)
    if group is None:
        raise InputError(f"the queue has no group {plain(name)!r}")
    return [
        task for task in tasks.values() if group in (task.id, *(one.id for one in iterate_groups(tasks, task)))
    ]


def by_id(tasks: Iterable[QueueTask]) -> dict[str, QueueTask]:
    return {task.id: task for task in tasks}
