"""What is to be asked of the queue next, from the state of the session alone.  No thread, no file, no clock.

The queue is asked for as many tasks as could begin now.  Each task of the queue that the session took is told of
once more when its fate changes: a `retry` may land later what was opened again.  After a crash all of them are
told of again, which changes nothing where it was told before.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from sessionrun.engine.landing import is_landing
from sessionrun.engine.state import State
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import SLOT
from sessionrun.runtime.feeding.fates import Fate, find_fate, find_queue_id

ANY: Final = 100
"""How many tasks are fetched at once for a session without a limit of tasks that run."""


@frozen
class Fetch:
    """Claim up to `count` tasks.

    Attributes:
        count: how many.
        names: the ids of the tasks that the session has.
        given_up: by the id in the queue, with which reason the session opened a task again: not to be taken again
            while that reason stands.
    """

    count: int
    names: frozenset[str]
    given_up: tuple[tuple[str, str], ...] = ()


@frozen
class Settle:
    """Tell the queue what became of a task: its id in the session, and in the queue."""

    name: str
    queue_id: str
    fate: Fate


class Desk:
    """Remembers what the queue was asked for and what it answered."""

    def __init__(self, *, watch: bool) -> None:
        self._watch = watch
        self._open: dict[str, str] = {}
        self._fates: dict[str, Fate] = {}
        self._told: dict[str, Fate] = {}
        self._seen = (0, 0)
        self._fetching = False
        self._dry = False
        self._looked = False

    def next_calls(self, state: State) -> list[Fetch | Settle]:
        """What to ask of the queue now; each is answered by `settled` or `fetched`."""
        self._look_at(state)
        calls: list[Fetch | Settle] = []
        for name, queue_id in self._open.items():
            fate = find_fate(state.tasks[name])
            if fate is not None and self._fates.get(name) != fate:
                self._fates[name] = fate
                calls.append(Settle(name, queue_id, fate))
        count = self._count_wanted(state)
        if count and not self._fetching and not self._dry:
            self._fetching = True
            calls.append(Fetch(count, frozenset(state.tasks), self._list_given_up(state)))
        return calls

    def settled(self, call: Settle) -> None:
        """The queue was told; that may have made other tasks ready."""
        self._told[call.name] = call.fate
        if self._fates.get(call.name) == call.fate:
            self._open.pop(call.name, None)
        self._dry = False

    def fetched(self, call: Fetch, count: int) -> None:
        """The queue gave `count` tasks."""
        self._fetching, self._looked = False, True
        self._dry = count < call.count

    def failed(self, call: Fetch | Settle) -> None:
        """The queue could not be asked: it is asked again."""
        if isinstance(call, Fetch):
            self._fetching = False
        else:
            self._fates.pop(call.name, None)

    def changed(self) -> None:
        """The queue has changed."""
        self._dry = False

    def is_done(self, state: State) -> bool:
        """Whether the feed may be closed: nothing runs, nothing is ready, and the queue knows all."""
        if self._watch or not state.feed_open or state.held is not None or not (self._dry and self._looked):
            return False
        if self._fetching or state.completed < len(state.tasks) or is_landing(state):
            return False
        return all(self._told.get(name) == self._fates[name] for name in self._fates)

    def _look_at(self, state: State) -> None:
        """Find the tasks that are new; after a request all may have begun anew."""
        seen = (len(state.tasks), len(state.requests))
        if seen == self._seen:
            return
        first = self._seen[0] if seen[1] == self._seen[1] else 0
        for task in islice(state.tasks.values(), first, None):
            queue_id = find_queue_id(task)
            if queue_id is not None:
                self._open[task.spec.id] = queue_id
        self._seen = seen

    def _count_wanted(self, state: State) -> int:
        if not state.feed_open or state.ended is not None or state.held is not None or SLOT in state.holds:
            return 0
        waiting = len(state.tasks) - state.completed
        width = state.spec.resources.get(SLOT)
        return ANY if width is None else max(0, width - waiting)

    def _list_given_up(self, state: State) -> tuple[tuple[str, str], ...]:
        given_up = {}
        for name, fate in self._fates.items():
            queue_id = find_queue_id(state.tasks[name])
            if not fate.closes and queue_id is not None:
                given_up[queue_id] = fate.reason
        return tuple(given_up.items())
