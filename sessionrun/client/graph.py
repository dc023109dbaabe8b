"""Walks over tasks by what they need.  Pure.  Needs form no circle; what is not among the tasks does not count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from math import ceil
from typing import Any, Final


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


OVERDUE_SHARE: Final = 0.25
"""A task that runs longer than any before it is taken to need this share of its time so far again."""


def estimate_left(
    tasks: Sequence[Mapping[str, Any]], elapsed: Mapping[str, float], slots: int | None = None
) -> float | None:
    """How many seconds the tasks need that have not ended; None if none has ended or none runs.

    Tasks that wait come in waves, by how many before them wait, too, and take the mean of what others took.

    Args:
        elapsed: for how many seconds each running task has run, by id.
        slots: how many tasks may run at once; None: all.  If a task is kept waiting that needs no other one, there
            are only as many slots as tasks that run.
    """
    known = _list_durations(tasks)
    if not known or not elapsed:
        return None
    mean: float = sum(known) / len(known)
    known += [seconds * (1 + OVERDUE_SHARE) for seconds in elapsed.values() if seconds > mean]
    mean = sum(known) / len(known)
    pending = {task["id"]: task["needs"] for task in tasks if task["status"] == "pending"}
    width = slots or len(tasks)
    if any(not any(need in pending or need in elapsed for need in needs) for needs in pending.values()):
        width = len(elapsed)
    waves = Counter(measure_depths(pending).values())
    running = max(_left_of(seconds, known, mean) for seconds in elapsed.values())
    return running + mean * sum(ceil(count / width) for count in waves.values())


def is_overtaken(tasks: Sequence[Mapping[str, Any]], elapsed: Mapping[str, float]) -> bool:
    """Whether a task runs longer than any that has ended: then what is left is a guess."""
    known = _list_durations(tasks)
    return bool(known) and max(elapsed.values(), default=0.0) > max(known)


def _list_durations(tasks: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(task["duration_s"]) for task in tasks if task["duration_s"] is not None and task["outcome"]]


def _left_of(seconds: float, known: Sequence[float], mean: float) -> float:
    """What a running task still needs: the mean, or the mean of those that took longer than it has already."""
    if seconds <= mean:
        return mean - seconds
    longer = [one for one in known if one > seconds]
    return sum(longer) / len(longer) - seconds if longer else seconds * OVERDUE_SHARE
