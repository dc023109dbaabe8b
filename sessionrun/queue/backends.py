"""The backends of the queue: what each keeps in a repository, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from sessionrun.model.errors import InputError
from sessionrun.queue import file
from sessionrun.queue.feed import Feed
from sessionrun.queue.task import QueuePlace


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
