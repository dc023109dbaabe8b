"""A session's tasks side by side: groups and cells of a matrix, what came out of each, and how sure that is.

Attempts at the same thing are a group: the runs of a matrix, by their task.

pass@k is the chance that at least one of k runs succeeds.  Its interval is Wilson's: for a cell that of c of n,
each end p taken to 1 - (1 - p)^k, which grows with p; for a group, whose estimate is the mean over its cells,
Wilson's for that share of so many tasks.  Of few samples the estimate may lie outside, and the interval is then
stretched to hold it.

The group that solves most stands first.  The others are measured against it task by task: so it does not count
that one task is harder than another.  A task counts once, however often it was run: its runs are alike.  All
intervals are of 95 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import atan2, comb, cos, inf, pi, sin, sqrt
from typing import Any, Final, Literal, TypeAlias

from sessionrun.model.usage import Usage, describe_cost
from sessionrun.model.wording import Task, short_id, tell_span
from sessionrun.model.words import AXES, JUDGED, is_matrix

_OWN: Final[Mapping[str, str]] = {"model": "model", "task": "id", "agent": "agent"}
_DIFF: Final = ("files", "insertions", "deletions")

LEAST_TASKS: Final = 8
"""Of fewer tasks that two groups have in common nothing is concluded."""

MOST_NAMES: Final = 3

Told: TypeAlias = Literal["better", "worse", "not_told_apart"]


def compare_tasks(status: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], by: str) -> dict[str, Any]:
    """The object of `status --by`."""
    cells: dict[str, dict[tuple[str, ...], list[Mapping[str, Any]]]] = {}
    arms = name_arms(tasks)
    for task in tasks:
        place = tuple(find_place(task, axis) for axis in AXES)
        key = arms[task["id"]] if by == "model" else find_place(task, by)
        cells.setdefault(key, {}).setdefault(place, []).append(task)
    samples = max((len(runs) for group in cells.values() for runs in group.values()), default=0)
    groups = [_describe_group(key, group, samples, by) for key, group in cells.items()]
    groups = groups if by == "task" else _rank(groups)
    return {"session_id": status["session_id"], "by": by, "samples": samples, "groups": groups}


def _rank(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, the best first, and of each other one how many more runs of a task the first one solves."""

    def rank(group: Mapping[str, Any]) -> tuple[float, float]:
        rate, price = group["pass_at"].get("1"), group["cost_per_success"]
        return -rate["estimate"] if rate else 1.0, inf if price is None else price

    ranked = sorted(groups, key=rank)
    for group in ranked[1:]:
        ahead, runs = _compare_by_task(ranked[0], group)
        found = estimate_difference(ahead, runs / (2 * len(ahead))) if ahead else None
        rounded = found and {key: round(value, 6) for key, value in found.items()}
        group["behind"] = rounded and {"tasks": len(ahead), **rounded}
    measured = [group["behind"] for group in ranked if group["behind"]]
    for behind, chance in zip(measured, correct_chances([one["p"] for one in measured]), strict=True):
        behind["p"] = round(chance, 6)
        told_apart: Told = "worse" if behind["estimate"] > 0 else "better"
        is_sure = behind["tasks"] >= LEAST_TASKS and behind["p"] < DOUBT
        behind["verdict"] = told_apart if is_sure else "not_told_apart"
    return ranked


def _compare_by_task(first: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[list[float], int]:
    """Of each task of both, how much larger the share is that the first one solves; and the runs of both."""
    ours, theirs = _share_tasks(first), _share_tasks(group)
    common = [task for task in ours if task in theirs]
    ahead = [ours[task][0] / ours[task][1] - theirs[task][0] / theirs[task][1] for task in common]
    return ahead, sum(ours[task][1] + theirs[task][1] for task in common)


def _share_tasks(group: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """How many runs of each task succeeded, and how many were judged."""
    solved, judged = Counter[str](), Counter[str]()
    for cell in group["cells"]:
        solved[cell["task"]] += cell["succeeded"]
        judged[cell["task"]] += cell["succeeded"] + cell["failed"]
    return {task: (solved[task], count) for task, count in judged.items() if count}


def list_figures(record: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """What is known of each group in sum beside its share of successes; what is known of none is left out."""
    groups, samples = record["groups"], record["samples"]
    if samples > 1:
        deepest = [group["pass_at"].get(str(samples)) for group in groups]
        yield f"pass@{samples}", ["-" if rate is None else f"{rate['estimate']:.0%}" for rate in deepest]
    if any(group["cost_usd"] is not None or group["unpriced_jobs"] for group in groups):
        yield "a success costs", [describe_cost(_price(group)) if group["succeeded"] else "-" for group in groups]
    if any(group["duration_s"] is not None for group in groups):
        spans = [group["duration_s"] for group in groups]
        yield "a run takes", ["-" if seconds is None else tell_span(seconds) for seconds in spans]
    proofs = [group["proof"] or {} for group in groups]
    if any(proofs):
        counts = [f"{proof.get('proved', 0)}/{sum(proof.values())}" for proof in proofs]
        yield "proved", [count if proof else "-" for count, proof in zip(counts, proofs, strict=True)]


def _price(group: Mapping[str, Any]) -> Usage:
    return Usage(None, None, group["cost_per_success"], None, group["cost_source"], 0)


def conclude(record: Mapping[str, Any]) -> Iterator[str]:
    """Which groups are told apart from the one that stands first, each in a sentence."""
    first, *others = record["groups"] or [{}]
    measured = [group for group in others if group["behind"]]
    words = {"worse": "solves more than", "better": "solves less than", "not_told_apart": "is not told apart from"}
    for verdict, word in words.items():
        names = [group["key"] for group in measured if group["behind"]["verdict"] == verdict]
        if names:
            whom = "any other" if len(names) == len(others) > MOST_NAMES else ", ".join(names)
            yield f"{first['key']} {word} {whom}."
    tasks = max((group["behind"]["tasks"] for group in measured), default=LEAST_TASKS)
    if tasks < LEAST_TASKS:
        yield f"{tasks} tasks are too few to tell; {LEAST_TASKS} are needed."


def count_wins(first: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, int]:
    """On how many tasks of both the first group solves more than the other one, as much, and less."""
    ahead, _ = _compare_by_task(first, group)
    return {"won": sum(one > 0 for one in ahead), "even": ahead.count(0), "lost": sum(one < 0 for one in ahead)}


def find_place(task: Mapping[str, Any], axis: str) -> str:
    """Where a task is on one of `AXES`."""
    return str(task["labels"].get(axis) or task[_OWN[axis]] or "default")


def name_arms(tasks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The arm of each task by its id: its model, which is another thing in the hands of another agent."""
    axes = ("agent", "model") if len({find_place(task, "agent") for task in tasks}) > 1 else ("model",)
    return {task["id"]: "/".join(find_place(task, axis) for axis in axes) for task in tasks}


def name_each(tasks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a person calls each task: its id, and of a cell of a matrix its row, its arm, and which run it is."""
    if not is_matrix(tasks):
        return {task["id"]: short_id(task) for task in tasks}
    arms, runs = name_arms(tasks), Counter[str]()
    names = {}
    for task in tasks:
        cell = f"{find_place(task, 'task')} · {arms[task['id']]}"
        runs[cell] += 1
        names[task["id"]] = cell, runs[cell]
    return {key: f"{cell} #{number}" if runs[cell] > 1 else cell for key, (cell, number) in names.items()}


def _describe_group(
    key: str, cells: Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]], samples: int, by: str
) -> dict[str, Any]:
    described = [_describe_cell(place, runs, samples) for place, runs in cells.items()]
    every = [run for runs in cells.values() for run in runs]
    pass_at = {}
    for k in map(str, range(1, samples + 1)):
        known = [cell for cell in described if k in cell["pass_at"]]
        if known:
            mean = sum(cell["pass_at"][k]["estimate"] for cell in known) / len(known)
            # runs of one task are alike, whatever else differs between them
            count = len(known if by == "task" else {cell["task"] for cell in known})
            pass_at[k] = _rate(mean, *wilson(mean, count))
    return {
        "key": key,
        **_add_up(every),
        "pass_at": pass_at,
        "cost_per_success": _find_price(every),
        "behind": None,
        "cells": described,
    }


def _find_price(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """What a success costs, all runs being paid; None if some cost is not known, or nothing succeeded."""
    cost = 0.0
    for run in runs:
        used = run["usage"]
        if used is None and run["started_at"] is None:
            continue
        if used is None or used["cost_usd"] is None or used["unpriced_jobs"]:
            return None
        cost += used["cost_usd"]
    solved = sum(run["outcome"] == "succeeded" for run in runs)
    return round(cost / solved, 9) if solved else None


def _describe_cell(place: Sequence[str], runs: Sequence[Mapping[str, Any]], samples: int) -> dict[str, Any]:
    added = _add_up(runs)
    judged, successes = added["succeeded"] + added["failed"], added["succeeded"]
    pass_at = {}
    for k in range(1, samples + 1):
        estimate = estimate_pass(judged, successes, k)
        if estimate is not None:
            low, high = wilson(successes / judged, judged)
            pass_at[str(k)] = _rate(estimate, 1 - (1 - low) ** k, 1 - (1 - high) ** k)
    outcome = runs[0]["outcome"] if len(runs) == 1 else None
    words = [run["word"] for run in runs]
    return {**dict(zip(AXES, place, strict=True)), **added, "outcome": outcome, "words": words, "pass_at": pass_at}


def _rate(estimate: float, low: float, high: float) -> dict[str, float]:
    ends = {"low": min(low, estimate), "high": max(high, estimate)}
    return {"estimate": round(estimate, 6), **{name: round(end, 6) for name, end in ends.items()}}


def _add_up(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    judged = [run for run in runs if run["outcome"] in JUDGED]
    succeeded = sum(run["outcome"] == "succeeded" for run in judged)
    usages = [run["usage"] for run in runs if run["usage"]]
    costs = [usage["cost_usd"] for usage in usages if usage["cost_usd"] is not None]
    stats = [run["diff_stat"] for run in judged if run["diff_stat"]]
    proofs = [str(run["proof"]) for run in judged if run.get("proof")]
    checks = [run["check"]["passed"] for run in judged if run["check"]]
    source = "table" if any(usage["cost_source"] == "table" for usage in usages) else "agent"
    return {
        "runs": len(runs),
        "succeeded": succeeded,
        "failed": len(judged) - succeeded,
        "open": sum(run["status"] != "completed" for run in runs),
        "duration_s": _mean([run["duration_s"] for run in judged if run["duration_s"] is not None]),
        "cost_usd": round(sum(costs), 9) if costs else None,
        "cost_source": source if costs else None,
        "unpriced_jobs": sum(usage["unpriced_jobs"] for usage in usages),
        "diff": {name: _mean([stat[name] for stat in stats]) for name in _DIFF} if stats else None,
        "check": {"passed": checks.count(True), "failed": checks.count(False)} if checks else None,
        "proof": {verdict: proofs.count(verdict) for verdict in sorted(set(proofs))} or None,
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def rank_attempts(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """The ids of tasks by group, which are those of ``status --by task``, in each the best one first.

    That is one whose check or proof passed; then the one with the smallest diff; then the cheapest one, and
    one whose cost is not known is the dearest; then the first one.
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(find_place(task, "task"), []).append(task)
    return {group: [task["id"] for task in sorted(attempts, key=_rank_run)] for group, attempts in groups.items()}


def _rank_run(task: Task) -> tuple[float, ...]:
    stat, usage = task.get("diff_stat"), task.get("usage") or {}
    lines = stat["insertions"] + stat["deletions"] if stat else inf
    cost = usage.get("cost_usd")
    check, proof = task.get("check"), task.get("proof")
    passes = ([check["passed"]] if check else []) + ([proof == "proved"] if proof else [])
    verdict = 1 if not passes else 0 if all(passes) else 2  # one that failed counts more than one that passed
    return verdict, lines, inf if cost is None else cost, task["num"]


DOUBT: Final = 0.05

_Z: Final = 1.959963984540054
"""Of the normal distribution, for 95 % in the middle."""


def estimate_pass(runs: int, successes: int, k: int) -> float | None:
    """The chance that at least one of k runs succeeds, without bias; None where there are fewer than `k` runs.

    1 - C(n-c, k) / C(n, k) after Chen et al. 2021.
    """
    if runs < k:
        return None
    return 1.0 - comb(runs - successes, k) / comb(runs, k)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The interval of a share of `count` draws (1 or more) after Wilson.

    Values between 0 and 1 vary no more than draws of 0 and 1 do: so for their mean it is never too narrow.
    """
    squared = _Z * _Z
    middle = share + squared / (2 * count)
    spread = _Z * sqrt(share * (1 - share) / count + squared / (4 * count * count))
    whole = 1 + squared / count
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


def estimate_difference(by_task: Sequence[float], samples: float) -> dict[str, float] | None:
    """The mean difference over tasks like these, its interval, and how likely so much is by chance (`p`).

    None of fewer than two tasks.  Student's t over tasks, with 1/(2 samples) added to the sum of squares.  Without
    that, tasks that all came out alike would give an interval without width, and of few it would be too narrow.

    Args:
        by_task: of each task, the share of runs that one arm solved less that of the other.
        samples: how many runs of each arm a task has, on average.
    """
    count = len(by_task)
    if count < 2:
        return None
    mean = sum(by_task) / count
    squares = sum((value - mean) ** 2 for value in by_task) + 1 / (2 * samples)
    error = sqrt(squares / (count - 1) / count)
    spread = find_t(DOUBT, count - 1) * error
    chance = find_chance(abs(mean) / error, count - 1)
    return {"estimate": mean, "low": max(-1.0, mean - spread), "high": min(1.0, mean + spread), "p": chance}


def correct_chances(chances: Sequence[float]) -> list[float]:
    """The same chances where several comparisons are made at once, after Holm."""
    corrected, least = [0.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda place: chances[place])):
        least = min(1.0, max(least, chances[place] * (len(chances) - rank)))
        corrected[place] = least
    return corrected


@cache
def find_t(chance: float, df: int) -> float:
    """The number that Student's t with `df` degrees of freedom exceeds, up or down, with this chance."""
    low, high = 0.0, 1.0
    while find_chance(high, df) > chance:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if find_chance(middle, df) > chance else (low, middle)
    return high


def find_chance(t: float, df: int) -> float:
    """The chance that Student's t with `df` degrees of freedom is farther from 0 than `t`.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = atan2(t, sqrt(df))
    odd = df % 2
    term, total = cos(angle) if odd else 1.0, 0.0
    for number in range(1, df // 2 + 1):
        total += term
        term *= cos(angle) ** 2 * (2 * number - 1 + odd) / (2 * number + odd)
    within = sin(angle) * total
    return 1 - (2 / pi * (angle + within) if odd else within)
