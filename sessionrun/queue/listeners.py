"""Who listens for changes of a queue: a file beside its lock, with a path on each line.

A process that changes the queue wakes those that are named.  A path of which nothing is left means nothing.  This
module must not know what the paths lead to.
"""

from __future__ import annotations

import os
from pathlib import Path

from sessionrun.queue.place import QueuePlace
from sessionrun.store import locks
from sessionrun.store.files import read_regular, replace_file

_TIMEOUT_S = 10.0


def load_listeners(place: QueuePlace) -> list[Path]:
    """Return the paths, those that are gone too."""
    try:
        lines = read_regular(_file(place)).split(b"\n")
    except OSError:
        return []
    return [Path(os.fsdecode(line)) for line in lines if line]


def change_listeners(place: QueuePlace, path: Path, *, listens: bool) -> None:
    """Add a path or take it out; those that are gone go, too.

    Raises:
        OSError: it cannot be written.
    """
    fd = locks.hold(_file(place).with_suffix(".lock"), timeout_s=_TIMEOUT_S)
    try:
        known = [one for one in load_listeners(place) if one != path and one.exists()]
        kept = [*known, path] if listens else known
        content = b"".join(os.fsencode(one) + b"\n" for one in kept)
        replace_file(_file(place), content, durable=False, sweeps=True)
    finally:
        if fd is not None:
            os.close(fd)


def drop_listeners(place: QueuePlace) -> None:
    """Remove the file and its lock if no path is left that means anything."""
    file = _file(place)
    if not any(path.exists() for path in load_listeners(place)):
        file.unlink(missing_ok=True)
        locks.remove_free(file.with_suffix(".lock"))


def _file(place: QueuePlace) -> Path:
    return place.lock.with_name(place.lock.name.replace("queue.lock", "feeds"))
