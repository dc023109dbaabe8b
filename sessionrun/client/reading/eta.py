"""Estimates how long a session still needs, from the durations of its tasks so far; no clock is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final

OVERDUE_SHARE: Final = 0.25
"""A task that runs longer than any before it is taken to need this share of its time so far again."""


def estimate_left(
    tasks: Sequence[Mapping[str, Any]], elapsed: Mapping[str, float], slots: int | None = None
) -> float | None:
    """How many seconds the tasks need that have not ended; None if none has ended or none runs.

    Tasks that wait take the mean of what others took, each in the slot that is free first, and none begins before
    those that it needs have ended.  A task that runs for longer than the mean counts as if it was about to end.

    Args:
        elapsed: for how many seconds each running task has run, by id.
        slots: how many tasks may run at once; None: all.  If a task is kept waiting that needs no other one, there
            are only as many slots as tasks that run.
    """
    known = [float(task["duration_s"]) for task in tasks if task["duration_s"] is not None and task["outcome"]]
    if not known or not elapsed:
        return None
    mean: float = sum(known) / len(known)
    known += [seconds * (1 + OVERDUE_SHARE) for seconds in elapsed.values() if seconds > mean]
    mean = sum(known) / len(known)
    ends = {name: _left_of(seconds, known, mean) for name, seconds in elapsed.items()}
    unmet, free_at = _lay_out(tasks, ends, slots)
    _schedule(unmet, ends, free_at, mean)
    return max(ends.values())


def is_overtaken(tasks: Sequence[Mapping[str, Any]], elapsed: Mapping[str, float]) -> bool:
    """Whether a task runs longer than any that has ended: then what is left is a guess."""
    known = [float(task["duration_s"]) for task in tasks if task["duration_s"] is not None and task["outcome"]]
    return bool(known) and max(elapsed.values(), default=0.0) > max(known)


def _lay_out(
    tasks: Sequence[Mapping[str, Any]], ends: Mapping[str, float], slots: int | None
) -> tuple[dict[str, set[str]], list[float]]:
    """What each pending task needs of tasks that have not ended, and when each slot is free."""
    pending = {task["id"]: task["needs"] for task in tasks if task["status"] == "pending"}
    unmet = {name: {need for need in needs if need in pending or need in ends} for name, needs in pending.items()}
    free_at = list(ends.values())
    if all(unmet.values()) or not ends:
        free_at += [0.0] * ((len(tasks) if slots is None else slots) - len(free_at))
    return unmet, free_at


def _schedule(unmet: dict[str, set[str]], ends: dict[str, float], free_at: list[float], seconds: float) -> None:
    """Add the ends of waiting tasks to `ends`, each of which takes so many seconds in the slot that is free first.

    They begin in the order in which their needs end; `unmet` and `free_at` are used up.
    """
    waiting: dict[str, list[str]] = {}
    for name, needs in unmet.items():
        for need in needs:
            waiting.setdefault(need, []).append(name)
    heapify(free_at)
    ready = [(0.0, name) for name, needs in unmet.items() if not needs]
    ended = [(end, name) for name, end in ends.items()]
    heapify(ready)
    heapify(ended)
    while ready or ended:
        if ended and (not ready or ended[0][0] <= ready[0][0]):
            at, over = heappop(ended)
            for name in waiting.get(over, ()):
                unmet[name].discard(over)
                if not unmet[name]:
                    heappush(ready, (at, name))
            continue
        at, name = heappop(ready)
        ends[name] = max(at, free_at[0]) + seconds
        heapreplace(free_at, ends[name])
        heappush(ended, (ends[name], name))


def _left_of(seconds: float, known: Sequence[float], mean: float) -> float:
    """What a running task still needs: the mean, or the mean of those that took longer than it has already."""
    if seconds <= mean:
        return mean - seconds
    longer = [one for one in known if one > seconds]
    return sum(longer) / len(longer) - seconds if longer else seconds * OVERDUE_SHARE
