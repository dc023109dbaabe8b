"""Which node a session's next job goes to: of those that can be used, the one with most room.

Each look costs no more the more nodes there are: the nodes lie in a heap, with entries that may be out of date.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush


class Placement:
    """The nodes that can be used, with their slots, and how many jobs of the session each has."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._slots: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self._heap: list[tuple[float, str]] = []
        for node in used:
            self._used[node] = self._used.get(node, 0) + 1

    def set_nodes(self, slots: Mapping[str, int]) -> None:
        """These can be used now, and have so many slots."""
        for node in self._slots.keys() | slots.keys():
            if self._slots.get(node) != slots.get(node):
                self._slots.pop(node, None)
                if slots.get(node, 0) > 0:
                    self._slots[node] = slots[node]
                    self._push(node)

    @property
    def total(self) -> int:
        """How many slots there are."""
        return sum(self._slots.values())

    @property
    def count(self) -> int:
        """How many nodes."""
        return len(self._slots)

    def choose(self, without: Collection[str] = ()) -> str | None:
        """The node with most room for its size, but for those `without`; None: none can be used."""
        if without:
            fit = [(self._load(node) or 0.0, node) for node in self._slots if node not in without]
            return min(fit)[1] if fit else None
        while self._heap:
            load, node = self._heap[0]
            if load == self._load(node):
                return node
            heappop(self._heap)
        return None

    def take(self, node: str) -> None:
        """A job goes there."""
        self._used[node] = self._used.get(node, 0) + 1
        self._push(node)

    def give(self, node: str) -> None:
        """A job there has ended."""
        self._used[node] -= 1
        if not self._used[node]:
            del self._used[node]
        self._push(node)

    def _load(self, node: str) -> float | None:
        return self._used.get(node, 0) / self._slots[node] if node in self._slots else None

    def _push(self, node: str) -> None:
        load = self._load(node)
        if load is not None:
            heappush(self._heap, (load, node))
