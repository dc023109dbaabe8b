"""Notices that something changed, by looking at files: once for all that watch, and never asking a supervisor."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any, Final

LOOK_S: Final = 0.4
ALIVE_S: Final = 15.0
"""How long a stream says nothing before it says that it is there still."""


def stamp(*paths: str | os.PathLike[str]) -> Hashable:
    """What changes when one of these files or directories does."""
    found: list[Hashable] = []
    for path in paths:
        try:
            seen = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
    return tuple(found)


class Watch:
    """Tells all who follow a name when its stamp changes; a name that is followed is looked at once for all.

    Args:
        look: the stamp of a name.
        pause: how long to wait at least between two looks at a name (seconds); never less than `LOOK_S`.
    """

    def __init__(self, look: Callable[[str], Hashable], pause: Callable[[str], float] = lambda name: 0.0) -> None:
        self._look, self._pause = look, pause
        self._seen: dict[str, tuple[float, int, Hashable]] = {}

    def version(self, name: str) -> int:
        """A number that grows when the name's stamp changes."""
        at, number, seen = self._seen.get(name, (0.0, 0, None))
        now = time.monotonic()
        if now - at >= max(LOOK_S, self._pause(name)):
            found = self._look(name)
            number += found != seen
            self._seen[name] = now, number, found
        return number

    async def follow(self, name: str, is_over: Callable[[], Any]) -> AsyncIterator[bytes]:
        """Server-sent events: a message for each change, from the first on, until `is_over`."""
        sent, at = -1, time.monotonic()
        while not is_over():
            number = self.version(name)
            if number != sent:
                sent, at = number, time.monotonic()
                yield b"data: %d\n\n" % number
            elif time.monotonic() - at >= ALIVE_S:
                at = time.monotonic()
                yield b": here\n\n"
            await asyncio.sleep(LOOK_S)
