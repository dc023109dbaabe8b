"""What the taking of follow-ups keeps beside the lock of the queue: files on their way, and what was taken.

    lock     the process that takes follow-ups holds it
    *.txt    a file that was renamed to here: a process that opens it by its old name from then on makes a new one
    taken    a line for each task that was taken: `?` before it goes into the queue, `+` after that

All methods raise OSError if the disk fails.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from sessionrun.queue.place import QueuePlace
from sessionrun.store import locks
from sessionrun.store.files import make_directories, read_regular, replace_file

LIMIT: Final = 1024 * 1024
"""Bytes; a larger file is not taken."""

LOCK_TIMEOUT_S: Final = 60.0

State = Literal["?", "+"]
"""Of a task that was taken: on its way into the queue, or in it."""


class Shelf:
    """The shelf of a queue."""

    def __init__(self, place: QueuePlace) -> None:
        self.folder: Path = place.lock.with_name(place.lock.name.replace("queue.lock", "ingest"))

    def hold(self) -> AbstractContextManager[None]:
        """Let one process at a time take follow-ups.

        Raises:
            StoreError: another process has held it all the time.
        """
        make_directories(self.folder, 0o700)
        return locks.holding(self.folder / "lock", LOCK_TIMEOUT_S)

    def load(self) -> list[Path]:
        """Return the files on the shelf, the oldest first."""
        return sorted(self.folder.glob("*.txt"), key=lambda path: path.stat().st_mtime_ns)

    def take(self, source: Path) -> Path:
        """Move a file onto the shelf, also without the lock; return its new place.

        Raises:
            NotRegular: a link or a directory lies there; OSError: it is too large, or not there.
        """
        content, path = read_regular(source, LIMIT), self.folder / f"{uuid4()}.txt"
        make_directories(self.folder, 0o700)
        try:
            os.rename(source, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            replace_file(path, content, durable=True)
            source.unlink()
        return path

    def settle(self, path: Path, source: Path, rest: Sequence[str]) -> None:
        """Take a file away whose lines are in the queue; a rest of them goes back to where it lay, if it can."""
        if rest:
            content = "".join(f"{line}\n" for line in rest).encode()
            replace_file(path, content, durable=False, mode=0o644)
            try:
                os.link(path, source)  # whole or not at all, and never in the place of another file
            except OSError:
                return
        path.unlink()

    def load_taken(self) -> dict[str, State]:
        """Return the folded titles of tasks that were taken."""
        try:
            lines = read_regular(self.folder / "taken").decode("utf-8", "replace").split("\n")
        except FileNotFoundError:
            return {}
        return {line[1:]: ("+" if line[0] == "+" else "?") for line in lines if line}

    def remember(self, taken: Mapping[str, State], titles: Iterable[str], state: State) -> dict[str, State]:
        """Note tasks as taken, beside those that are known already."""
        now = {**taken, **dict.fromkeys(titles, state)}
        if now != taken:
            content = "".join(f"{state}{title}\n" for title, state in now.items()).encode()
            replace_file(self.folder / "taken", content, durable=False, sweeps=True)
        return now
