"""Which node a session's next job goes to: of those that can be used, the one with most room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping


class Placement:
    """The nodes that can be used, with their slots, and how many jobs of the session each has."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._slots: dict[str, int] = {}
        self._used = Counter(used)

    def set_nodes(self, slots: Mapping[str, int]) -> None:
        """These can be used now, and have so many slots."""
        self._slots = {node: count for node, count in slots.items() if count > 0}

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
        fit = [(self._used[node] / slots, node) for node, slots in self._slots.items() if node not in without]
        return min(fit)[1] if fit else None

    def take(self, node: str) -> None:
        """A job goes there."""
        self._used[node] += 1

    def give(self, node: str) -> None:
        """A job there has ended."""
        self._used[node] -= 1
