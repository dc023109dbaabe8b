"""What a queue can do, whatever keeps it: the protocol that a backend fulfils.

A backend is a module with `find` and a class with these methods, and a row in `BACKENDS`.  Each method sees the
queue as it is at that moment: other programs and people change it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from sessionrun.model.errors import InputError
from sessionrun.queue import file
from sessionrun.queue.task import Changes, Draft, QueuePlace, QueueTask, Worker


class Feed(Protocol):
    """A queue of tasks.

    All methods raise InputError if the queue is damaged, an argument does not fit it, or the backend's program
    refuses; the task is unchanged then.  They raise OSError or StoreError if the disk fails, the lock is held for
    too long, or the program does not run.
    """

    @property
    def name(self) -> str:
        """Which backend it is, such as ``file``."""

    @property
    def place(self) -> Path:
        """The file or directory that changes when the queue changes."""

    def load(self) -> list[QueueTask]:
        """Return all tasks, in the order of the queue."""

    def show(self, task_id: str) -> QueueTask:
        """Return one task."""

    def claim(self, task_id: str, worker: Worker) -> QueueTask | None:
        """Let one worker have a task, and no other.  None: it is not ready (any more).

        A worker that has the task already gets it again, so that it may ask after a crash.
        """

    def close(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        """Mark a task as done, and each group whose last open task it was.

        With `worker` only if that worker's claim still stands; None: it does not, and nothing was changed.
        """

    def reopen(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        """Make a task open again that is claimed, deferred or closed, and its groups; `worker` as in `close`.

        Of a task that is open the reason alone changes.
        """

    def create(self, drafts: Sequence[Draft], *, unless_known: bool = False) -> list[QueueTask | None]:
        """Make tasks.  They cannot depend on each other: their ids are not known before.

        With `unless_known`, a draft whose title a task of the queue (or an earlier draft) has is left out: None.
        """

    def edit(self, task_id: str, changes: Changes) -> QueueTask:
        """Change a task; return it as it is then."""

    def remove(self, task_id: str) -> QueueTask:
        """Take a task out of the queue on which no other depends, and which no worker has; return it."""

    def sync(self) -> bool:
        """Let the backend exchange its tasks with other places; false if it has nothing of the kind."""


class Backend(NamedTuple):
    """What a backend keeps in the top of a repository, and what opens it; that finds None: it cannot be used."""

    keeps: str
    find: Callable[[QueuePlace], Feed | None]


def _find_beads(place: QueuePlace) -> Feed | None:
    from sessionrun.queue import beads  # which starts programs: dear to import where there are none

    return beads.find(place)


BEADS: Final = "beads"

BACKENDS: Final[Mapping[str, Backend]] = {
    BEADS: Backend(".beads", _find_beads),
    file.NAME: Backend(file.PLACE, file.FileFeed),
}
"""The last one is taken where there is no other: it makes what it keeps."""


def open_feed(place: QueuePlace, backend: str | None = None) -> Feed:
    """Return the queue of a place: the first backend that is in use there, or the one that is named.

    Raises:
        InputError: there is no such backend, or the one that is named is not in use there.
    """
    if backend is not None and backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r} of the queue; there are: {', '.join(sorted(BACKENDS))}")
    *first, last = BACKENDS
    found = [name for name in first if (place.top / BACKENDS[name].keeps).exists()]
    for name in (backend,) if backend is not None else (*found, last):
        feed = BACKENDS[name].find(place)
        if feed is not None:
            return feed
    raise InputError(f"{place.top}: there is no queue of {backend} here")
