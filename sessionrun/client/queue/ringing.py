"""A queue whose changes are told at once to the sessions that are fed from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sessionrun.queue.feed import Feed
from sessionrun.queue.listeners import load_listeners
from sessionrun.queue.place import QueuePlace
from sessionrun.queue.task import Changes, Draft, QueueTask, Worker
from sessionrun.store.inbox import ring
from sessionrun.store.session import SessionDir

_Made = TypeVar("_Made")


class RingingFeed:
    """A queue as it is, but for the bell; see `queue.feed.Feed` for the methods."""

    def __init__(self, feed: Feed, place: QueuePlace) -> None:
        self._feed, self._where = feed, place

    @property
    def name(self) -> str:
        """See `Feed`."""
        return self._feed.name

    @property
    def place(self) -> Path:
        """See `Feed`."""
        return self._feed.place

    def load(self) -> list[QueueTask]:
        """See `Feed`."""
        return self._feed.load()

    def ready(self, group: str | None = None) -> list[QueueTask]:
        """See `Feed`."""
        return self._feed.ready(group)

    def show(self, task_id: str) -> QueueTask:
        """See `Feed`."""
        return self._feed.show(task_id)

    def claim(self, task_id: str, worker: Worker) -> QueueTask | None:
        """See `Feed`."""
        return self._feed.claim(task_id, worker)

    def close(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        """See `Feed`."""
        return self._tell(lambda: self._feed.close(task_id, reason=reason, worker=worker))

    def reopen(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        """See `Feed`."""
        return self._tell(lambda: self._feed.reopen(task_id, reason=reason, worker=worker))

    def create(self, drafts: Sequence[Draft], *, unless_known: bool = False) -> list[QueueTask | None]:
        """See `Feed`."""
        return self._tell(lambda: self._feed.create(drafts, unless_known=unless_known))

    def edit(self, task_id: str, changes: Changes) -> QueueTask:
        """See `Feed`."""
        return self._tell(lambda: self._feed.edit(task_id, changes))

    def remove(self, task_id: str) -> QueueTask:
        """See `Feed`."""
        return self._tell(lambda: self._feed.remove(task_id))

    def sync(self) -> bool:
        """See `Feed`."""
        return self._feed.sync()

    def _tell(self, change: Callable[[], _Made]) -> _Made:
        made = change()
        for path in load_listeners(self._where):
            ring(SessionDir(path))
        return made
