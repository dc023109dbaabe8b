"""Which tasks could start next, found without looking at all of them.

`ReadyQueue` is an index over the scheduler's state, not a part of it: entries may be stale or doubled, and
the code that pops one checks it.  A task that lacks a token is parked under that token's name, so that 10,000
waiting tasks cost nothing while they wait.  A token given back offers itself to the first task parked under
it; a task that takes up that offer passes on what is left (`unpark` again), also when its entry proved stale: an
offer that ended with a stale entry would leave the tasks behind it waiting for ever.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final, TypeAlias

CONTINUING: Final = 0
"""Rank of a task that has begun: it goes before those that have not."""

NEW: Final = 1

Ready: TypeAlias = tuple[int, str, str]
"""What orders it (see `TaskState.order`), task id, and the resource that was offered to it (empty: none)."""


class ReadyQueue:
    """Heaps of task ids: ready now, parked under a token, waiting for a time; and what is to be told."""

    __slots__ = ("_delayed", "_parked", "_ready", "_timers", "decided", "stops")

    def __init__(self) -> None:
        self._ready: tuple[list[Ready], list[Ready]] = ([], [])
        self._parked: dict[str, list[tuple[int, int, str]]] = {}
        self._delayed: list[tuple[float, int, int, str]] = []
        self._timers: list[tuple[float, int, str]] = []
        self.stops: deque[str] = deque()
        self.decided: deque[str] = deque()

    def push(self, rank: int, num: int, task: str) -> None:
        """A task may have a job to start; the smaller `num` (see `TaskState.order`) goes first."""
        heappush(self._ready[rank], (num, task, ""))

    def pop(self, ranks: int) -> tuple[int, int, str, str] | None:
        """Take the first entry of the first `ranks` ranks: rank, place, task, offered resource; or None."""
        for rank in range(ranks):
            if self._ready[rank]:
                return rank, *heappop(self._ready[rank])
        return None

    def is_ready(self, ranks: int) -> bool:
        """Whether `pop` would find an entry, be it a stale one."""
        return any(self._ready[rank] for rank in range(ranks))

    def is_parked(self, resource: str) -> bool:
        """Whether an entry waits for `resource`."""
        return bool(self._parked.get(resource))

    def park(self, resource: str, rank: int, num: int, task: str) -> None:
        """Set a task aside until `resource` is offered to it."""
        heappush(self._parked.setdefault(resource, []), (rank, num, task))

    def unpark(self, resource: str) -> None:
        """Offer `resource` to the first task parked under it: that one becomes ready."""
        parked = self._parked.get(resource)
        if parked:
            rank, num, task = heappop(parked)
            heappush(self._ready[rank], (num, task, resource))

    def drain(self, resource: str) -> list[tuple[int, int, str]]:
        """Take out all that are parked under `resource`: rank, place, task."""
        return self._parked.pop(resource, [])

    def unpark_all(self, resource: str) -> None:
        """Make ready all that are parked under `resource`."""
        for rank, num, task in self.drain(resource):
            self.push(rank, num, task)

    def delay(self, until: float, num: int, task: str, rank: int = NEW) -> None:
        """A task that may start again at monotonic time `until`."""
        heappush(self._delayed, (until, rank, num, task))

    def undelay(self, now: float) -> None:
        """Make ready whose time has come."""
        while self._delayed and self._delayed[0][0] <= now:
            _, rank, num, task = heappop(self._delayed)
            self.push(rank, num, task)

    def set_timer(self, deadline: float, num: int, task: str) -> None:
        """A running job of this task is to end by `deadline` (monotonic)."""
        heappush(self._timers, (deadline, num, task))

    def first_timer(self) -> tuple[float, str] | None:
        """The earliest deadline and its task; it may be stale."""
        return (self._timers[0][0], self._timers[0][2]) if self._timers else None

    def drop_timer(self) -> None:
        """Forget the earliest deadline."""
        heappop(self._timers)

    def next_time(self) -> float | None:
        """The earliest monotonic time at which something here becomes due."""
        times = [heap[0][0] for heap in (self._delayed, self._timers) if heap]
        return min(times) if times else None
