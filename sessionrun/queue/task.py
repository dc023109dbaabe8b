"""A task of the queue, as every backend shows it, what is asked for when one is made, and where the queue is.

The queue of a directory is in the top of the main checkout of its repository.

A linked worktree has a copy of each file that is committed.  A task that an agent adds in there would be lost with
the worktree, so the queue is that of the main checkout.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

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
    """Return a title on one line.  InputError: it is empty."""
    line = fold_spaces(title)
    if not line:
        raise InputError("a task needs a title")
    return line


def fold_spaces(title: str) -> str:
    """Return a title on one line."""
    return " ".join(title.split())


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
            return _find_main(folder, git_dir)
    return QueuePlace(start, start / f".{LOCK_NAME}")


def _find_main(folder: Path, git_dir: Path) -> QueuePlace:
    """The main checkout of a linked worktree; a submodule, and a worktree of a bare repository, is its own."""
    common = _read_path(git_dir / "commondir", "", git_dir) or git_dir
    is_linked = common != git_dir and common.name == ".git"
    return QueuePlace(common.parent if is_linked else folder, common / LOCK_NAME)


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
