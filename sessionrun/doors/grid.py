"""Tasks times arms of a matrix: what came out of each cell, how sure that is, and the arms compared.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sessionrun.client.reading.comparison import LEAST_TASKS, compare_tasks, find_place, name_arms
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
    rows += [
        tag("tr", tag("th", head, scope="row"), *(tag("td", part) for part in parts))
        for head, parts in _figures(record)
    ]
    grid = tag("div", table(["", *(group["key"] for group in groups)], rows, class_="grid"), class_="wide")
    counts = ((len(titles), "task"), (len(groups), "arm"), (record["samples"], "sample"))
    note = ", ".join(f"{number} {word}{'s' if number != 1 else ''}" for number, word in counts)
    return [_tell_best(groups), grid, *_compare(groups)], f"{note}; the best arm first"


def _tell_best(groups: Sequence[Group]) -> Markup | None:
    """Which arm solves most, and whether that is told apart from the others."""
    if len(groups) < 2 or not groups[0]["pass_at"]:
        return None
    best, measured = groups[0], [group for group in groups[1:] if group["behind"]]
    rate = best["pass_at"]["1"]["estimate"]
    alike = [group["key"] for group in groups if group["pass_at"].get("1", {}).get("estimate") == rate]
    judged = best["succeeded"] + best["failed"]
    apart = [group["key"] for group in measured if group["behind"]["verdict"] == "worse"]
    verdict = f"better than {', '.join(apart)}" if apart else "not told apart from any other"
    return tag(
        "p",
        tag("strong", f"Best: {' and '.join(alike)}, {best['succeeded']} of {judged} runs"),
        tag("span", f"; {verdict}", class_="dim") if measured else None,
    )


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


def _figures(record: Mapping[str, Any]) -> Iterator[tuple[str, list[Part]]]:
    groups, samples = record["groups"], record["samples"]
    rates = [group["pass_at"].get("1") for group in groups]
    yield "pass@1, 95 % interval", [None if rate is None else _tell_rate(rate, 0.0) for rate in rates]
    if samples > 1:
        deepest = [group["pass_at"].get(str(samples)) for group in groups]
        yield f"pass@{samples}", [None if rate is None else f"{rate['estimate']:.0%}" for rate in deepest]
    yield "cost of a success", [_tell_price(group) for group in groups]


def _tell_price(group: Group) -> str:
    price = group["cost_per_success"]
    return "unknown" if price is None or price["estimate"] is None else f"${price['estimate']:.4f}"


def _tell_rate(rate: Mapping[str, float], least: float) -> Part:
    """A share with its interval, drawn from `least` to 1."""

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
                tell_word(group["behind"]["verdict"]),
            ]
        )
        for group in measured
    ]
    tasks = max(group["behind"]["tasks"] for group in measured)
    few = f"{tasks} tasks are too few to tell; {LEAST_TASKS} are needed." if tasks < LEAST_TASKS else ""
    return [
        tag("h3", f"Paired by task, against {first['key']}"),
        table(("Arms", "Difference", "95 % interval, points", "The other arm is"), rows),
        tag("p", f"Intervals count tasks, not runs. {few}".rstrip(), class_="dim"),
    ]
