"""Walks over tasks by what they need.  Pure.  Needs form no circle; what is not among the tasks does not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from math import ceil
from typing import Any


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


def estimate_left(
    tasks: Sequence[Mapping[str, Any]], elapsed: Mapping[str, float], slots: int | None = None
) -> float | None:
    """How many seconds the tasks need that have not ended; None where that cannot be known.

    A task that runs takes what those took that ran longer than it has already; if none did, nothing is known.
    Tasks that wait come in waves, by how many before them wait, too, and take the mean of what others took.

    Args:
        elapsed: for how many seconds each running task has run, by id.
        slots: how many tasks may run at once; None: all.  If a task is kept waiting that needs no other one, there
            are only as many slots as tasks that run.
    """
    known = [float(task["duration_s"]) for task in tasks if task["duration_s"] is not None and task["outcome"]]
    left = [[took - seconds for took in known if took > seconds] for seconds in elapsed.values()]
    if not left or not all(left):
        return None
    pending = {task["id"]: task["needs"] for task in tasks if task["status"] == "pending"}
    width = slots or len(tasks)
    if any(not any(need in pending or need in elapsed for need in needs) for needs in pending.values()):
        width = len(elapsed)
    waves = Counter(measure_depths(pending).values())
    running = max(sum(each) / len(each) for each in left)
    return running + sum(known) / len(known) * sum(ceil(count / width) for count in waves.values())
