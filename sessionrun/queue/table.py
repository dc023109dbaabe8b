"""The backends of the queue: the one list of them, in the order in which they are looked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sessionrun.model.errors import InputError
from sessionrun.queue import beads, file
from sessionrun.queue.feed import Feed
from sessionrun.queue.place import Place

BACKENDS: Final[Mapping[str, Callable[[Place], Feed | None]]] = {
    beads.NAME: beads.find,
    file.NAME: file.find,
}
"""What opens each backend at a place; None: it is not in use there."""


def open_feed(place: Place, backend: str | None = None) -> Feed:
    """Return the queue of a place: the first backend that is in use there, or the one that is named.

    Raises:
        InputError: the one that is named is not in use there.
    """
    for name in (backend,) if backend is not None else BACKENDS:
        feed = BACKENDS[name](place)
        if feed is not None:
            return feed
    raise InputError(f"{place.top}: there is no queue of {backend} here")
