"""Tasks times arms of a matrix: what came out of each cell, how sure that is, and the arms compared.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessionrun.client.reading.comparison import (
    compare_tasks,
    conclude,
    count_wins,
    find_place,
    list_figures,
    name_arms,
)
from sessionrun.doors.markup import Markup, Part, cells, table, tag
from sessionrun.model.wording import tell_span, tell_word
from sessionrun.model.words import SIGNS

Task = Mapping[str, Any]
Group = Mapping[str, Any]


def make_grid(view: Mapping[str, Any], tasks: Sequence[Task], base: str) -> tuple[list[Part], str]:
    """A row for each task and a column for each arm, the best first; below them the paired differences; how many.

    A run is at `base` and the number of its task.
    """
    record = compare_tasks(view, tasks, "model")
    groups: Sequence[Group] = record["groups"]
    arms = name_arms(tasks)
    runs: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        runs.setdefault((find_place(task, "task"), arms[task["id"]]), []).append(task)
    titles = {find_place(task, "task"): task["labels"].get("name") for task in tasks}
    rows = [
        tag(
            "tr",
            tag("th", name, tag("span", f" {title}", class_="dim") if title else None, scope="row"),
            *(_tell_cell(runs.get((name, group["key"]), ()), base) for group in groups),
        )
        for name, title in titles.items()
    ]
    rates = [group["pass_at"].get("1") for group in groups]
    figures: list[tuple[str, Sequence[Part]]] = [
        ("pass@1, 95 % interval", [None if rate is None else _tell_rate(rate, 0.0) for rate in rates]),
        *list_figures(record),
    ]
    rows += [
        tag("tr", tag("th", head, scope="row"), *(tag("td", part) for part in parts)) for head, parts in figures
    ]
    grid = tag("div", table(["", *(group["key"] for group in groups)], rows, class_="grid"), class_="wide")
    counts = ((len(titles), "task"), (len(groups), "arm"), (record["samples"], "sample"))
    note = ", ".join(f"{number} {word}{'s' if number != 1 else ''}" for number, word in counts)
    concluded = " ".join(conclude(record))
    return [
        tag("p", tag("strong", concluded)) if concluded else None,
        grid,
        *_compare(groups),
    ], f"{note}; the best arm first"


def _tell_cell(runs: Sequence[Task], base: str) -> Markup:
    if not runs:
        return tag("td", "-")
    good = sum(task["outcome"] == "succeeded" for task in runs)
    kind = "all" if good == len(runs) else "some" if good else "none"
    signs = [
        tag(
            "a",
            SIGNS[task["word"]],
            href=f"{base}{task['num']}",
            class_=task["word"],
            title=tell_word(task["word"]),
        )
        for task in runs
    ]
    took = [task["duration_s"] for task in runs if task["duration_s"] is not None]
    mean = tag("div", tell_span(sum(took) / len(took)), class_="dim") if took else None
    is_open = any(task["status"] != "completed" for task in runs)
    return tag("td", tag("strong", f"{good} of {len(runs)} "), *signs, mean, class_=None if is_open else kind)


def _tell_rate(rate: Mapping[str, float], least: float) -> Part:

    def at(share: float) -> float:
        return 100 * (min(1.0, max(least, share)) - least) / (1 - least)

    low, high, middle = at(rate["low"]), at(rate["high"]), at(rate["estimate"])
    drawn = tag(
        "svg",
        tag("line", x1="0", x2="100%", y1="5", y2="5"),
        tag("rect", x=f"{low:.1f}%", width=f"{max(0.5, high - low):.1f}%", y="3", height="4"),
        tag("rect", x=f"{max(0.0, middle - 1):.1f}%", width="2%", y="0", height="10", class_="at"),
        class_="interval",
        aria_hidden="true",
    )
    sign = "" if least == 0 else "+"
    words = f"{100 * rate['low']:{sign}.0f} to {100 * rate['high']:{sign}.0f}".replace("-", "−")
    return [
        tag("strong", f"{rate['estimate']:.0%}" if least == 0 else None),
        drawn,
        tag("div", words, class_="dim"),
    ]


def _compare(groups: Sequence[Group]) -> list[Part]:
    """How many points each other arm is behind the first one, task by task."""
    first, *others = groups or [{}]
    measured = [group for group in others if group["behind"]]
    if not measured:
        return []
    rows = [
        cells(
            [
                f"{first['key']} − {group['key']}",
                f"{100 * group['behind']['estimate']:+.0f} points".replace("-", "−"),
                _tell_rate(group["behind"], -1.0),
                ", ".join(f"{count} {word}" for word, count in count_wins(first, group).items()),
                tell_word(group["behind"]["verdict"]),
            ]
        )
        for group in measured
    ]
    heads = ("Arms", "Difference", "95 % interval, points", "Tasks", "The other arm is")
    return [
        tag("h3", f"Paired by task, against {first['key']}"),
        table(heads, rows),
        tag("p", "Intervals count tasks, not runs.", class_="dim"),
    ]
