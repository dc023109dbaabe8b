"""Walks over tasks by what they need.  Pure.  Needs form no circle; what is not among the tasks does not count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter


def walk(begin: Iterable[str], next_of: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """What can be reached from some tasks, each once, a way to its end before the next; not what is begun with."""
    begun, seen = list(begin), set[str]()
    ways = begun[::-1]
    while ways:
        name = ways.pop()
        if name not in seen:
            seen.add(name)
            ways += reversed(next_of(name))
            if name not in begun:
                yield name


def measure_depths(needs: Mapping[str, Collection[str]]) -> dict[str, int]:
    """How many tasks are before each one in its longest chain."""
    depths: dict[str, int] = {}
    known = {name: [need for need in before if need in needs] for name, before in needs.items()}
    for name in TopologicalSorter(known).static_order():
        depths[name] = 1 + max((depths.get(need, -1) for need in needs[name]), default=-1)
    return depths
