"""A session's tasks side by side: groups and cells of a matrix, what came out of each, and how sure that is.

Pure: everything comes out of the object of status.json.

pass@k is the chance that at least one of k runs succeeds.  From n runs of which c succeeded it is estimated
without bias as 1 - C(n-c, k) / C(n, k) (Chen et al. 2021).  Its interval is Wilson's (95 %): for a cell that of c
of n, each end p taken to 1 - (1 - p)^k, which grows with p; for a group, whose estimate is the mean over its
cells, Wilson's for that share of so many cells.  Values between 0 and 1 vary no more than draws of 0 and 1 do, so
the latter is never too narrow.  Of few samples the estimate may lie outside, and the interval is then stretched to
hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import comb, sqrt
from typing import Any, Final

from sessionrun.model.words import JUDGED

AXES: Final = ("model", "task", "agent")
"""Labels by which tasks can be grouped; a task without the label is grouped by `_OWN`."""

_OWN: Final[Mapping[str, str]] = {"model": "model", "task": "id", "agent": "agent"}
_Z: Final = 1.959963984540054
"""Of the normal distribution, for 95 % in the middle."""

_DIFF: Final = ("files", "insertions", "deletions")


def compare_tasks(status: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], by: str) -> dict[str, Any]:
    """The object of `status --by`.

    Args:
        status: the object of status.json.
        tasks: the tasks to compare.
        by: one of `AXES`.
    """
    cells: dict[str, dict[tuple[str, ...], list[Mapping[str, Any]]]] = {}
    several = by == "model" and len({find_place(task, "agent") for task in tasks}) > 1
    for task in tasks:
        place = tuple(find_place(task, axis) for axis in AXES)
        # the same model is another thing in the hands of another agent
        key = f"{find_place(task, 'agent')}/{find_place(task, by)}" if several else find_place(task, by)
        cells.setdefault(key, {}).setdefault(place, []).append(task)
    samples = max((len(runs) for group in cells.values() for runs in group.values()), default=0)
    return {
        "session_id": status["session_id"],
        "by": by,
        "samples": samples,
        "groups": [_describe_group(key, group, samples) for key, group in cells.items()],
    }


def describe_rest(shown: Mapping[str, Any]) -> str:
    """How many runs of a cell or group are open, and how many ended without a verdict; empty if there are none."""
    rest = shown["runs"] - shown["succeeded"] - shown["failed"] - shown["open"]
    open_too = f", {shown['open']} open" if shown["open"] else ""
    return open_too + (f", {rest} without a verdict" if rest else "")


def estimate_pass(runs: int, successes: int, k: int) -> float | None:
    """pass@k without bias; None where there are fewer than `k` runs."""
    if runs < k:
        return None
    return 1.0 - comb(runs - successes, k) / comb(runs, k)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` draws (1 or more) after Wilson."""
    squared = _Z * _Z
    middle = share + squared / (2 * count)
    spread = _Z * sqrt(share * (1 - share) / count + squared / (4 * count * count))
    whole = 1 + squared / count
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


def find_place(task: Mapping[str, Any], axis: str) -> str:
    """Where a task is on one of `AXES`."""
    return str(task["labels"].get(axis) or task[_OWN[axis]] or "default")


def _describe_group(
    key: str, cells: Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]], samples: int
) -> dict[str, Any]:
    described = [_describe_cell(place, runs, samples) for place, runs in cells.items()]
    every = [run for runs in cells.values() for run in runs]
    pass_at = {}
    for k in _depths(samples):
        estimates = [cell["pass_at"][str(k)]["estimate"] for cell in described if str(k) in cell["pass_at"]]
        if estimates:
            mean = sum(estimates) / len(estimates)
            pass_at[str(k)] = _rate(mean, *wilson(mean, len(estimates)))
    return {"key": key, **_add_up(every), "pass_at": pass_at, "cells": described}


def _describe_cell(place: Sequence[str], runs: Sequence[Mapping[str, Any]], samples: int) -> dict[str, Any]:
    added = _add_up(runs)
    judged, successes = added["succeeded"] + added["failed"], added["succeeded"]
    pass_at = {}
    for k in _depths(samples):
        estimate = estimate_pass(judged, successes, k)
        if estimate is not None:
            low, high = wilson(successes / judged, judged)
            pass_at[str(k)] = _rate(estimate, 1 - (1 - low) ** k, 1 - (1 - high) ** k)
    outcome = runs[0]["outcome"] if len(runs) == 1 else None
    return {**dict(zip(AXES, place, strict=True)), **added, "outcome": outcome, "pass_at": pass_at}


def _depths(samples: int) -> Iterable[int]:
    """The k for which pass@k is shown; none for single runs, which say nothing about repetition."""
    return range(1, samples + 1) if samples > 1 else ()


def _rate(estimate: float, low: float, high: float) -> dict[str, float]:
    ends = {"low": min(low, estimate), "high": max(high, estimate)}
    return {"estimate": round(estimate, 6), **{name: round(end, 6) for name, end in ends.items()}}


def _add_up(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    judged = [run for run in runs if run["outcome"] in JUDGED]
    succeeded = sum(run["outcome"] == "succeeded" for run in judged)
    usages = [run["usage"] for run in runs if run["usage"]]
    costs = [usage["cost_usd"] for usage in usages if usage["cost_usd"] is not None]
    proofs = [str(run["proof"]) for run in judged if run.get("proof")]
    checks = [run["check"]["passed"] for run in judged if run["check"]]
    return {
        "runs": len(runs),
        "succeeded": succeeded,
        "failed": len(judged) - succeeded,
        "open": sum(run["status"] != "completed" for run in runs),
        "duration_s": _mean([run["duration_s"] for run in judged if run["duration_s"] is not None]),
        "cost_usd": round(sum(costs), 9) if costs else None,
        "cost_source": _find_source(usages) if costs else None,
        "unpriced_jobs": sum(usage.get("unpriced_jobs", 0) for usage in usages),
        "diff": _mean_diff([run["diff_stat"] for run in judged if run["diff_stat"]]),
        "check": {"passed": checks.count(True), "failed": checks.count(False)} if checks else None,
        "proof": {verdict: proofs.count(verdict) for verdict in sorted(set(proofs))} or None,
    }


def _find_source(usages: Sequence[Mapping[str, Any]]) -> str:
    """Whence the costs are known: from the table of prices if any of them is."""
    return "table" if any(usage.get("cost_source") == "table" for usage in usages) else "agent"


def _mean_diff(stats: Sequence[Mapping[str, int]]) -> dict[str, float | None] | None:
    return {name: _mean([stat[name] for stat in stats]) for name in _DIFF} if stats else None


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
