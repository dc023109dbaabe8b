"""What the queue has to know of a session: how its tasks stand, and how many more it may have.

The supervisor's thread makes a board from the state whenever that has changed; the thread that visits the queue
reads it.  Only what is new stands on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from sessionrun.engine.state import State
from sessionrun.model.spec import SLOT
from sessionrun.runtime.feeding.standing import Standing, find_standing

UNLIMITED = 1_000_000


class Board(NamedTuple):
    """How the session stands.

    Attributes:
        number: counts the boards.
        news: by task, how each stands that was not on an earlier board or stands otherwise now.
        free: for how many tasks more there are slots.
        takes: whether it takes more tasks at all.
        is_open: whether its feed is open.
    """

    number: int
    news: Mapping[str, Standing]
    free: int
    takes: bool
    is_open: bool


class Boards:
    """Makes boards, each from the state and what stood on those before."""

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._seen = 0
        self._requests = 0
        self._last: tuple[int, bool, bool] | None = None
        self.number = 0

    def make(self, state: State) -> Board | None:
        """Return the board as of now; None: nothing on it has changed."""
        news = {name: standing for name, standing in self._look(state) if self._standings.get(name) != standing}
        self._standings |= news
        width = state.spec.resources.get(SLOT, UNLIMITED)
        stops = state.cancelled or state.halted or state.held is not None or state.ended is not None
        last = (width - len(state.tasks) + state.completed, state.feed_open and not stops, state.feed_open)
        if not news and last == self._last:
            return None
        self._last = last
        self.number += 1
        return Board(self.number, news, *last)

    def _look(self, state: State) -> list[tuple[str, Standing]]:
        """The tasks that may stand otherwise: those that were at no end, new ones, and after a request all."""
        names = [name for name, standing in self._standings.items() if standing.kind in ("going", "held")]
        names += islice(state.tasks, self._seen, None)
        if len(state.requests) != self._requests:
            names = list(state.tasks)
        self._seen, self._requests = len(state.tasks), len(state.requests)
        found = [(name, find_standing(state, state.tasks[name])) for name in names]
        return [(name, standing) for name, standing in found if standing is not None]
