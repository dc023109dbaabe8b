"""`status --by`: the tasks of a matrix side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.cli.money import describe_cost
from sessionrun.cli.render import duration, print_json, print_table, terminal_width
from sessionrun.client.reading.comparison import AXES, compare_tasks, describe_rest
from sessionrun.model.usage import Usage

NARROW: Final = 76
"""A terminal with fewer columns has no room for all of a row."""
NARROW_COLUMNS: Final = 3
"""So many are shown there beside the axes: the group, how many succeeded, and the time."""

Shown = Mapping[str, Any]


def print_comparison(view: Shown, tasks: Sequence[Shown], by: str, *, as_json: bool) -> None:
    """Print groups and their cells as a table, or as JSON."""
    record = compare_tasks(view, tasks, by)
    if as_json:
        print_json(record)
        return
    groups = record["groups"]
    axes = [axis for axis in AXES if axis != by and (axis != "agent" or _differ(groups, axis))]
    depths = sorted({1, record["samples"]}) if record["samples"] > 1 else []
    proved = any(group["proof"] for group in groups)
    rows: list[list[object]] = []
    for group in groups:
        rows.append([group["key"], *[""] * len(axes), *_figures(group, depths, proved=proved)])
        cells = group["cells"]
        rows += [["", *(cell[axis] for axis in axes), *_figures(cell, depths, proved=proved)] for cell in cells]
    heads = [by.upper(), *(axis.upper() for axis in axes), "RUNS", "TIME", "COST", "CHANGED", "CHECK"]
    heads += ["PROVED"] if proved else []
    heads += [f"PASS@{k}" for k in depths]
    shown = len(heads) if terminal_width() >= NARROW else len(axes) + NARROW_COLUMNS
    print_table(heads[:shown], [row[:shown] for row in rows])


def _differ(groups: Sequence[Shown], axis: str) -> bool:
    return len({cell[axis] for group in groups for cell in group["cells"]}) > 1


def _figures(shown: Shown, depths: Sequence[int], *, proved: bool) -> list[object]:
    used = Usage(None, None, shown["cost_usd"], None, shown["cost_source"], shown["unpriced_jobs"])
    has_cost = shown["cost_usd"] is not None or shown["unpriced_jobs"]
    check = shown["check"]
    return [
        _runs(shown),
        "-" if shown["duration_s"] is None else duration(shown["duration_s"]),
        describe_cost(used) if has_cost else "-",
        _changed(shown["diff"]),
        "-" if check is None else f"{check['passed']}/{check['passed'] + check['failed']}",
        *([_proved(shown["proof"])] if proved else []),
        *(_rate(shown["pass_at"].get(str(k))) for k in depths),
    ]


def _proved(proof: Shown | None) -> str:
    return "-" if proof is None else f"{proof.get('proved', 0)}/{sum(proof.values())}"


def _runs(shown: Shown) -> str:
    if shown.get("outcome"):
        return str(shown["outcome"]).replace("_", " ")
    return f"{shown['succeeded']}/{shown['succeeded'] + shown['failed']}{describe_rest(shown)}"


def _changed(diff: Shown | None) -> str:
    if diff is None:
        return "-"
    files, added, removed = (f"{diff[name]:g}" for name in ("files", "insertions", "deletions"))
    return f"{files} {'file' if files == '1' else 'files'} +{added} -{removed}"


def _rate(rate: Shown | None) -> str:
    if rate is None:
        return "-"
    return f"{rate['estimate']:.0%} ({rate['low']:.0%} to {rate['high']:.0%})"
