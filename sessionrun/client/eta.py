"""Estimates how long a session still needs, from the durations of its tasks so far; no clock is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any, Final

OVERDUE_SHARE: Final = 0.25
"""A task that runs longer than any before it is taken to need this share of its time so far again."""


def estimate_left(tasks: Sequence[Mapping[str, Any]], elapsed: Mapping[str, float]) -> float | None:
    """How many seconds the tasks need that have not ended; None if none has ended or none runs.

    Tasks that wait take the mean of what others took, each in the slot that is free first.  There are as many
    slots as tasks that run now.  A task that runs for longer than the mean counts, too, as if it was about to end.

    Args:
        tasks: of the session, as in status.json.
        elapsed: for how many seconds each running task has run, by id.
    """
    known = [float(task["duration_s"]) for task in tasks if task["duration_s"] is not None and task["outcome"]]
    waiting = len([task for task in tasks if task["status"] == "pending"])
    if not known or not elapsed:
        return None
    mean: float = sum(known) / len(known)
    known += [seconds * (1 + OVERDUE_SHARE) for seconds in elapsed.values() if seconds > mean]
    mean = sum(known) / len(known)
    free_at: list[float] = [_left_of(seconds, known, mean) for seconds in elapsed.values()]
    rounds, rest = divmod(waiting, len(free_at))
    heapify(free_at)
    for _ in range(rest):
        heapreplace(free_at, free_at[0] + mean)
    return max(free_at) + rounds * mean


def _left_of(seconds: float, known: Sequence[float], mean: float) -> float:
    """What a running task still needs: the mean, or the mean of those that took longer than it has already."""
    if seconds <= mean:
        return mean - seconds
    longer = [one for one in known if one > seconds]
    return sum(longer) / len(longer) - seconds if longer else seconds * OVERDUE_SHARE
