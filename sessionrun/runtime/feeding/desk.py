"""What is to be asked of the queue next, from the state of the session alone.  No thread, no file, no clock.

The queue is asked for as many tasks as could begin now.  It is told of each task that the session took once, and
once more when the fate of that task changes: a `retry` may land later what was opened again.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Tell the queue what became of a task: its id in the session, and in the queue.

    `again`: the session has opened it again before, so it may not have the claim any more.
    """

    name: str
    queue_id: str
    fate: Fate
    again: bool = False


class Desk:
    """Remembers what the queue is being asked, and whether it has more."""

    def __init__(self, *, watch: bool) -> None:
        self._watch = watch
        self._open: dict[str, str] = {}
        self._telling: set[str] = set()
        self._seen = (0, 0)
        self._fetching = False
        self._dry = False

    def next_calls(self, state: State) -> list[Fetch | Settle]:
        """What to ask of the queue now; each is answered by `settled`, `fetched` or `failed`."""
        self._look_at(state)
        calls: list[Fetch | Settle] = list(self._find_untold(state))
        self._telling |= {call.name for call in calls if isinstance(call, Settle)}
        count = self._count_wanted(state)
        if count and not (self._fetching or self._telling or self._dry):  # what was told of is not to come again
            self._fetching = True
            calls.append(Fetch(count, frozenset(state.tasks), _list_given_up(state)))
        return calls

    def settled(self, call: Settle) -> None:
        """The queue was told; that may have made other tasks ready."""
        self._telling.discard(call.name)
        self._dry = False

    def fetched(self, call: Fetch, count: int) -> None:
        """The queue gave `count` tasks."""
        self._fetching = False
        self._dry = count < call.count

    def failed(self, call: Fetch | Settle) -> None:
        """The queue could not be asked: it is asked again."""
        if isinstance(call, Fetch):
            self._fetching = False
        else:
            self._telling.discard(call.name)

    def changed(self) -> None:
        """The queue has changed."""
        self._dry = False

    def is_done(self, state: State) -> bool:
        """Whether the feed may be closed: nothing runs, nothing is ready, and the queue knows all."""
        if self._watch or not state.feed_open or state.held is not None or not self._dry:
            return False
        busy = self._fetching or self._telling or state.completed < len(state.tasks) or is_landing(state)
        return not busy and not any(self._find_untold(state))

    def _look_at(self, state: State) -> None:
        """Find the tasks that are new; after a request any may have begun anew."""
        seen = (len(state.tasks), len(state.requests))
        if seen == self._seen:
            return
        first = self._seen[0] if seen[1] == self._seen[1] else 0
        for task in islice(state.tasks.values(), first, None):
            queue_id = find_queue_id(task)
            if queue_id is not None:
                self._open[task.spec.id] = queue_id
        self._seen = seen

    def _find_untold(self, state: State) -> Iterator[Settle]:
        """Of which tasks the queue is to be told; those that are closed there are not looked at again."""
        for name, queue_id in list(self._open.items()):
            told, fate = state.tasks[name].told, find_fate(state.tasks[name])
            if fate is None or name in self._telling:
                continue
            if told is None or (told.closes, told.reason) != (fate.closes, fate.reason):
                yield Settle(name, queue_id, fate, again=told is not None and not told.closes)
            elif told.closes:
                del self._open[name]

    def _count_wanted(self, state: State) -> int:
        if not state.feed_open or state.ended is not None or state.held is not None or SLOT in state.holds:
            return 0
        waiting = len(state.tasks) - state.completed
        width = state.spec.resources.get(SLOT)
        return ANY if width is None else max(0, width - waiting)


def _list_given_up(state: State) -> tuple[tuple[str, str], ...]:
    given_up = {}
    for task in state.tasks.values():
        queue_id = find_queue_id(task)
        if queue_id is not None and task.told is not None and not task.told.closes:
            given_up[queue_id] = task.told.reason
    return tuple(given_up.items())
