"""What the queue has to know of a session: how its tasks stand, and how many more it may have.

The supervisor's thread makes a board from the state whenever that has changed; the thread that visits the queue
reads it.  Only what is new stands on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.engine.tokens import find_limit
from sessionrun.model.feeding import QUEUE_LABEL, UNCLAIMED
from sessionrun.model.spec import SLOT
from sessionrun.runtime.feeding.standing import Standing, find_standing

UNLIMITED: Final = 1_000_000


class Board(NamedTuple):
    """How the session stands.

    Attributes:
        number: counts the boards.
        news: by task, how each stands that was not on an earlier board or stands otherwise now.
        others: the ids of tasks that are not from the queue and were not on an earlier board.
        waiting: tasks that wait until they are claimed again.
        free: for how many tasks more there are slots.
        takes: whether it takes more tasks at all.
        is_open: whether its feed is open.
    """

    number: int
    news: Mapping[str, Standing]
    others: frozenset[str]
    waiting: frozenset[str]
    free: int
    takes: bool
    is_open: bool


class Boards:
    """Makes boards, each from the state and what stood on those before."""

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._others: frozenset[str] = frozenset()
        self._seen = 0
        self._requests = 0
        self._last: tuple[frozenset[str], int, bool, bool] | None = None
        self.number = 0

    def find_reborn(self, state: State) -> list[str]:
        """The tasks that may begin and may have no claim any more; to be asked before `make`.

        These are the tasks that a request tries again.  For a new supervisor these are all: while the session had
        none, its claims may have been taken back.
        """
        if not self.number:
            known = [name for name, task in state.tasks.items() if QUEUE_LABEL in task.spec.labels]
        elif len(state.requests) == self._requests:
            return []
        else:
            known = [name for name, one in self._standings.items() if one.kind != "going"]
        return [name for name in known if _can_begin(state.tasks[name])]

    def make(self, state: State) -> Board | None:
        """Return the board as of now; None: nothing on it has changed."""
        found = self._look(state)
        others = frozenset(name for name, one in found if one is None) - self._others
        self._others |= others
        news = {name: one for name, one in found if one is not None and self._standings.get(name) != one}
        self._standings |= news
        limit = find_limit(state, state.spec.resources.get(SLOT, 0))
        width = UNLIMITED if limit is None else limit
        stops = state.cancelled or state.halted or state.held is not None or state.ended is not None
        going = [name for name, one in self._standings.items() if one.kind == "going"]
        waiting = frozenset(name for name in going if state.tasks[name].held == UNCLAIMED)
        free = width - len(state.tasks) + state.completed
        last = (waiting, free, state.feed_open and not stops, state.feed_open)
        if not (news or others) and last == self._last:
            return None
        self._last = last
        self.number += 1
        return Board(self.number, news, others, *last)

    def _look(self, state: State) -> list[tuple[str, Standing | None]]:
        """The tasks that may stand otherwise: those that were at no end, new ones, and after a request all."""
        names = [name for name, standing in self._standings.items() if standing.kind in ("going", "held")]
        names += islice(state.tasks, self._seen, None)
        if len(state.requests) != self._requests:
            names = list(state.tasks)
        self._seen, self._requests = len(state.tasks), len(state.requests)
        return [(name, find_standing(state, state.tasks[name])) for name in names]


def _can_begin(task: TaskState) -> bool:
    return task.known_outcome is None and task.job is None and task.held is None


def join_boards(first: Board, second: Board) -> Board:
    """The second board with what was new on the first."""
    return second._replace(news={**first.news, **second.news}, others=first.others | second.others)
