"""Groups the tasks of a session that are attempts at the same thing: the runs of a matrix, by their task.

Pure: everything comes out of the object of status.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

from sessionrun.client.reading.comparison import find_place

Task = Mapping[str, Any]

_PASSED: Final = 0
_UNKNOWN: Final = 1
_FAILED: Final = 2


def name_group(task: Task) -> str:
    """The group of a task; as in ``status --by task`` it is the label `task`, else the task alone."""
    return find_place(task, "task")


def rank_attempts(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """The ids of tasks by group, in each the best one first.

    That is one whose check or proof passed; then the one with the smallest diff; then the cheapest one, and
    one whose cost is not known is the dearest; then the first one.
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(name_group(task), []).append(task)
    return {group: [task["id"] for task in sorted(attempts, key=_rank)] for group, attempts in groups.items()}


def _rank(task: Task) -> tuple[float, ...]:
    stat, usage = task.get("diff_stat"), task.get("usage") or {}
    lines = stat["insertions"] + stat["deletions"] if stat else inf
    cost = usage.get("cost_usd")
    return _find_verdict(task), lines, inf if cost is None else cost, task["num"]


def _find_verdict(task: Task) -> int:
    """What check and proof say together: one that failed counts more than one that passed."""
    check, proof = task.get("check"), task.get("proof")
    passes = [check["passed"]] if check else []
    passes += [proof == "proved"] if proof else []
    if not passes:
        return _UNKNOWN
    return _PASSED if all(passes) else _FAILED
