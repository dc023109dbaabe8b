"""The backend `file`: `task_queue.json` in the top of the repository.

Every change is made under one lock: read, change, write beside, rename.  A reader takes no lock, since it sees the
file before or after a change.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionrun.model.times import format_time
from sessionrun.queue import entries
from sessionrun.queue.entries import Contents, format_contents, make_empty, parse_contents, project_tasks
from sessionrun.queue.graph import choose_ready
from sessionrun.queue.place import QueuePlace
from sessionrun.queue.task import Changes, Draft, QueueTask, Worker
from sessionrun.store import locks
from sessionrun.store.files import read_regular, replace_file

NAME: Final = "file"
PLACE: Final = "task_queue.json"

LOCK_TIMEOUT_S: Final = 60.0
_MODE: Final = 0o644


class FileFeed:
    """The queue in a file, which the first change makes; see `feed.Feed` for the methods."""

    name = NAME

    def __init__(self, place: QueuePlace, now: Callable[[], float] = time.time) -> None:
        self.place: Path = place.top / PLACE
        self._lock = place.lock
        self._now = now

    def load(self) -> list[QueueTask]:
        """See `Feed`."""
        return [*self._tasks().values()]

    def ready(self, group: str | None = None) -> list[QueueTask]:
        """See `Feed`."""
        return choose_ready(self._tasks(), group)

    def show(self, task_id: str) -> QueueTask:
        """See `Feed`."""
        contents = self._read()
        entries.find_entry(contents, task_id)
        return project_tasks(contents.entries)[task_id]

    def claim(self, task_id: str, worker: Worker) -> QueueTask | None:
        """See `Feed`."""
        with self._changing() as contents:
            has_it = entries.has_claim(contents, task_id, worker)
            if not (has_it or entries.mark_claimed(contents, task_id, worker, format_time(self._now()))):
                return None
            return project_tasks(contents.entries)[task_id]

    def close(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        """See `Feed`."""
        return self._settle(entries.mark_closed, task_id, reason, worker)

    def reopen(self, task_id: str, *, reason: str | None = None, worker: Worker | None = None) -> QueueTask | None:
        """See `Feed`."""
        return self._settle(entries.mark_open, task_id, reason, worker)

    def create(self, drafts: Sequence[Draft], *, unless_known: bool = False) -> list[QueueTask | None]:
        """See `Feed`."""
        with self._changing() as contents:
            ids = entries.add(contents, drafts, unless_known=unless_known)
            tasks = project_tasks(contents.entries)
            return [None if task_id is None else tasks[task_id] for task_id in ids]

    def edit(self, task_id: str, changes: Changes) -> QueueTask:
        """See `Feed`."""
        with self._changing() as contents:
            entries.change(contents, task_id, changes)
            return project_tasks(contents.entries)[task_id]

    def remove(self, task_id: str) -> QueueTask:
        """See `Feed`."""
        with self._changing() as contents:
            return entries.take_out(contents, task_id)

    def sync(self) -> bool:
        """See `Feed`."""
        return False

    def _settle(
        self,
        mark: Callable[[Contents, str, str | None], None],
        task_id: str,
        reason: str | None,
        worker: Worker | None,
    ) -> QueueTask | None:
        with self._changing() as contents:
            if worker is not None and not entries.has_claim(contents, task_id, worker):
                return None
            mark(contents, task_id, reason)
            return project_tasks(contents.entries)[task_id]

    def _tasks(self) -> dict[str, QueueTask]:
        return project_tasks(self._read().entries)

    def _read(self) -> Contents:
        try:
            content = read_regular(self.place)
        except FileNotFoundError:
            return make_empty()
        return parse_contents(content, str(self.place))

    @contextmanager
    def _changing(self) -> Iterator[Contents]:
        """Hold the lock, and give the contents; the file is written if they are changed and nothing is raised."""
        with locks.holding(self._lock, LOCK_TIMEOUT_S):
            contents = self._read()
            before = format_contents(contents)
            yield contents
            after = format_contents(contents)
            if after != before:
                self._write(after)

    def _write(self, content: bytes) -> None:
        try:
            mode = stat.S_IMODE(os.stat(self.place).st_mode)
        except FileNotFoundError:
            mode = _MODE
        replace_file(self.place, content, durable=True, mode=mode)
