"""The drawings of a page: when jobs ran, what needs what, and tasks times the arms of a matrix.  Pure.

Places along the time are shares of the width, so that letters keep their size however wide a page is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from sessionrun.client.evidence import Run
from sessionrun.client.graph import measure_depths
from sessionrun.client.reading.comparison import (
    compare_tasks,
    conclude,
    count_wins,
    find_place,
    list_figures,
    name_arms,
)
from sessionrun.doors.markup import Markup, Part, cells, picture, table, tag
from sessionrun.model.events import JobFinished, JobLost
from sessionrun.model.wording import clip, short_id, tell_span, tell_word, with_reason
from sessionrun.model.words import BAD, GOOD, SIGNS

Task = Mapping[str, Any]

STEPS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400)
"""How many seconds may lie between two marks of an axis."""

MOST_MARKS: Final = 6
MOST_RIGHT: Final = 95.0
"""A mark at a greater share of the width (per cent) stands left of its line."""

MOST_ROWS: Final = 50
"""With more tasks it is shown what ran side by side, and not each task."""

MOST_SLOTS: Final = 64
BINS: Final = 100
ENDS: Final = 26
"""How high the strip is that shows when tasks ended."""

LEAST_GAP: Final = 0.15
"""Bars of the same kind that are closer (per cent of the width) are one."""

_KINDS: Final = {"work": "work", "check": "check", "prove": "check", "land": "landed"}
LEGEND: Final = {
    "work": "agent at work",
    "succeeded": "succeeded",
    "failed": "failed",
    "dash": "cancelled",
    "check": "check, proof",
    "prepared": "preparing, saving",
    "landed": "landing",
    "bounced": "landing, and did not fit",
    "pause": "held",
}


class Bar(NamedTuple):
    """Something that took from one moment to another (wall time); of a job also its phase."""

    begin: float
    end: float
    kind: str
    label: str
    phase: str = ""


def find_bars(task: Task, runs: Iterable[Run], now: float) -> list[Bar]:
    """When the jobs of a task ran; one that runs still ends now."""
    bars = []
    for run in runs:
        assert run.begin is not None
        event = run.end.event if run.end else None
        verdict = event.verdict if isinstance(event, (JobFinished, JobLost)) else "runs"
        kind = "dash" if verdict == "cancelled" else "failed"
        kind = _KINDS.get(run.key.phase, "prepared") if verdict in ("runs", "passed") else kind
        kind = "bounced" if kind == "landed" and task["word"] in ("bounced", "held") else kind
        begin, end = run.begin.at, run.end.at if run.end else now
        turn = f"attempt {run.key.attempt}, round {run.key.round}"
        label = f"{short_id(task)}: {run.key.phase}, {turn}: {tell_span(end - begin)}"
        bars.append(Bar(begin, max(begin, end), kind, label, run.key.phase))
    return bars


def draw_timeline(
    tasks: Sequence[tuple[Task, Sequence[Bar]]],
    pauses: Sequence[Bar],
    names: Mapping[str, Markup],
    reasons: Mapping[str, str],
) -> tuple[list[Part], str]:
    """When tasks ran, as rows below an axis, and in how much time; nothing if nothing has run.

    `names` are the tasks as they are named in a row, `reasons` why they stand as they do, by id.
    """
    every = [bar for _, bars in tasks for bar in bars]
    if not every:
        return [], ""
    began = min(bar.begin for bar in every)
    span = max(0.001, max(bar.end for bar in every) - began)
    is_many = len(tasks) > MOST_ROWS
    if is_many:
        whole = [
            Bar(bars[0].begin, max(bar.end for bar in bars), _choose_kind(task), "")
            for task, bars in tasks
            if bars
        ]
        rows, drawn_kinds = _draw_slots(whole, began, span), {bar.kind for bar in whole}
    else:
        words = {task["id"]: with_reason(tell_word(task["word"]), reasons[task["id"]]) for task, _ in tasks}
        rows = [_draw_row(names[task["id"]], bars, began, span, words[task["id"]]) for task, bars in tasks]
        drawn_kinds = {bar.kind for bar in every}
    held = [pause._replace(begin=max(began, pause.begin)) for pause in pauses if pause.end > began]
    rows += [_draw_row(bar.label, [bar], began, span) for bar in held]
    drawn_kinds |= {bar.kind for bar in held}
    legend = [
        tag("span", picture(tag("rect", width="11", height="11", class_=kind)), words)
        for kind, words in LEGEND.items()
        if kind in drawn_kinds
    ]
    step = next((step for step in STEPS if span / step <= MOST_MARKS), 86400 * (1 + span // (86400 * MOST_MARKS)))
    marks = [step * number for number in range(int(span / step) + 1)]
    behind = picture(
        *(_draw_bar(bar, began, span, "0", "100%") for bar in held),
        *(tag("line", x1=at, x2=at, y1="0", y2="100%") for at in (f"{_share(mark, span):.2f}%" for mark in marks)),
        class_="behind",
    )
    drawn = tag("div", behind, _draw_axis(marks, span), *rows, class_="timeline slots" if is_many else "timeline")
    return [drawn, tag("p", *legend, class_="legend dim")], f"{tell_span(span)} from the first start"


def _draw_row(name: Part, bars: Sequence[Bar], began: float, span: float, instead: str = "") -> Markup:
    """A row: what an agent did stands out, however little time it took."""
    parts = [
        _draw_bar(bar, began, span, *(("0", "13") if bar.phase == "work" else ("2", "9")))
        for bar in sorted(bars, key=lambda bar: bar.phase == "work")
    ]
    drawn = picture(*parts) if parts else tag("span", instead, class_="dim")
    title = name if isinstance(name, str) and not isinstance(name, Markup) else None
    return tag("div", tag("span", name, title=title), drawn, class_="row")


def _draw_bar(bar: Bar, began: float, span: float, top: str, height: str) -> Markup:
    place = {"x": f"{_share(bar.begin - began, span):.2f}%", "y": top, "height": height}
    width = f"{max(0.2, _share(bar.end - bar.begin, span)):.2f}%"
    return tag("rect", tag("title", bar.label) if bar.label else None, **place, width=width, class_=bar.kind)


def _share(seconds: float, span: float) -> float:
    return min(100.0, max(0.0, 100 * seconds / span))


def _draw_axis(marks: Sequence[float], span: float) -> Markup:
    words = [
        tag(
            "text",
            tell_span(mark) if mark >= 60 else f"{mark:g} s" if mark else "0",
            x=f"{_share(mark, span):.2f}%",
            y="11",
            text_anchor="start" if not mark else "end" if _share(mark, span) > MOST_RIGHT else "middle",
        )
        for mark in marks
    ]
    return tag("div", tag("span"), picture(*words, class_="axis"), class_="row")


def _choose_kind(task: Task) -> str:
    kinds = {**dict.fromkeys(GOOD, "succeeded"), **dict.fromkeys(BAD, "failed"), "running": "work"}
    return kinds.get(task["word"], "bounced" if task["outcome"] == "succeeded" else "dash")


def _draw_slots(whole: Sequence[Bar], began: float, span: float) -> list[Markup]:
    """What ran side by side, in few rows; above them how many tasks ended when, the bad ones on top."""
    slots: list[list[Bar]] = []
    for bar in sorted(whole):
        free = next((slot for slot in slots if slot[-1].end <= bar.begin), None)
        if free is None:
            slots.append([bar])
        elif free[-1].kind == bar.kind and _share(bar.begin - free[-1].end, span) < LEAST_GAP:
            free[-1] = free[-1]._replace(end=bar.end)
        else:
            free.append(bar)
    rows = [_draw_row(f"slot {number}", slot, began, span) for number, slot in enumerate(slots[:MOST_SLOTS], 1)]
    rest = len(slots) - MOST_SLOTS
    more = [tag("p", f"and {rest} more slots", class_="dim")] if rest > 0 else []
    return [_draw_ends(whole, began, span), *rows, *more]


def _draw_ends(bars: Sequence[Bar], began: float, span: float) -> Markup:
    counts = [[0, 0] for _ in range(BINS)]
    for bar in bars:
        if bar.kind not in ("succeeded", "bounced", "failed"):
            continue
        counts[min(BINS - 1, int(BINS * (bar.end - began) / span))][bar.kind == "failed"] += 1
    most = max(1, *(good + bad for good, bad in counts))
    parts: list[Markup] = []
    for place, (good, bad) in enumerate(counts):
        low, high = ENDS * good / most, ENDS * bad / most
        for kind, top, height in (("succeeded", ENDS - low, low), ("failed", ENDS - low - high, high)):
            if height:
                at = {"x": f"{100 * place / BINS:g}%", "width": f"{80 / BINS:g}%"}
                parts.append(tag("rect", y=f"{top:.1f}", height=f"{height:.1f}", class_=kind, **at))
    return tag("div", tag("span", "ended"), picture(*parts), class_="row ends")


# --- needs ---

BOX: Final = (168, 40)
GAP: Final = (56, 14)
MOST_BOXES: Final = 60
"""Of more tasks only those are drawn that failed, with what is before and behind them."""

SWEEPS: Final = 12
WAYS: Final = "green: done and handed on; red, dashed: what failed, and what did not run because of it"

_TINT: Final = {**dict.fromkeys(GOOD, "good"), **dict.fromkeys(BAD, "red"), "bounced": "look", "held": "look"}


def draw_needs(tasks: Sequence[Task], signs: Mapping[str, str]) -> tuple[Markup | None, str]:
    """Tasks from left to right in the order of their needs, and what is drawn; None if none needs another."""
    chosen = _choose_boxes(tasks)
    if not chosen:
        return None, ""
    needs = {name: [need for need in task["needs"] if need in chosen] for name, task in chosen.items()}
    layers, ways = _lay_out(needs)
    layers, crossings = _untangle(layers, ways)
    tallest = max(map(len, layers))
    place = {
        name: (depth * (BOX[0] + GAP[0]), (row + (tallest - len(layer)) / 2) * (BOX[1] + GAP[1]) + 4)
        for depth, layer in enumerate(layers)
        for row, name in enumerate(layer)
    }
    parts = [_draw_way(way, place, chosen) for way in ways]
    for name, task in chosen.items():
        x, y = place[name]
        kind = f"box {_TINT.get(task['word'], '')}".rstrip()
        box = tag("rect", x=f"{x:g}", y=f"{y:g}", width=BOX[0], height=BOX[1], rx=5, class_=kind)
        lines = [f"{signs[task['word']]} {clip(short_id(task), 20)}", clip(task["title"], 25)]
        words = [tag("text", line, x=f"{x + 8:g}", y=f"{y + 17 + 15 * row:g}") for row, line in enumerate(lines)]
        about = tag("title", f"{task['id']}: {task['title']}: {tell_word(task['word'])}")
        parts.append(tag("g", about, box, *words))
    width, height = len(layers) * (BOX[0] + GAP[0]) - GAP[0], tallest * (BOX[1] + GAP[1])
    edges = sum(map(len, needs.values()))
    rest = len(tasks) - len(chosen)
    note = f"{len(chosen)} tasks, {edges} needs" + (f"; {rest} others are not drawn" if rest else "")
    label = f"What each task needs: {note}; {crossings} crossings"
    size = {"viewBox": f"0 0 {width} {height:g}", "width": width}
    return tag("svg", tag("title", label), *parts, class_="graph", role="img", aria_label=label, **size), note


def _choose_boxes(tasks: Sequence[Task]) -> dict[str, Task]:
    by_id = {task["id"]: task for task in tasks}
    edges = [(need, task["id"]) for task in tasks for need in task["needs"] if need in by_id]
    names = {name for edge in edges for name in edge}
    if len(names) > MOST_BOXES:
        bad = {name for name in names if by_id[name]["word"] in BAD}
        names = bad | {other for edge in edges if bad & {*edge} for other in edge}
    return {task["id"]: task for task in tasks if task["id"] in names} if len(names) <= 2 * MOST_BOXES else {}


def _lay_out(needs: Mapping[str, Sequence[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """The names by depth, and each need as a way through all depths between; its places there have names, too."""
    depths = measure_depths(needs)
    layers: list[list[str]] = [[] for _ in range(max(depths.values()) + 1)]
    for name, depth in depths.items():
        layers[depth].append(name)
    ways = []
    for name, wanted in needs.items():
        for need in wanted:
            between = [f"{need}\0{name}\0{depth}" for depth in range(depths[need] + 1, depths[name])]
            for depth, dummy in enumerate(between, depths[need] + 1):
                layers[depth].append(dummy)
            ways.append([need, *between, name])
    return layers, ways


def _untangle(layers: list[list[str]], ways: Sequence[Sequence[str]]) -> tuple[list[list[str]], int]:
    """The layers in an order with few crossings: each name goes to the middle of its neighbours, to and fro."""
    edges = [edge for way in ways for edge in pairwise(way)]
    before: dict[str, list[str]] = {}
    behind: dict[str, list[str]] = {}
    for left, right in edges:
        before.setdefault(right, []).append(left)
        behind.setdefault(left, []).append(right)
    best, fewest = [list(layer) for layer in layers], _count_crossings(layers, edges)
    for sweep in range(SWEEPS):
        near = behind if sweep % 2 else before
        rows = {name: row for layer in layers for row, name in enumerate(layer)}
        for layer in reversed(layers) if sweep % 2 else layers:
            middle = {
                name: sum(rows[other] for other in near[name]) / len(near[name]) if name in near else rows[name]
                for name in layer
            }
            layer.sort(key=lambda name: middle[name])
            rows.update((name, row) for row, name in enumerate(layer))
        if (crossings := _count_crossings(layers, edges)) < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    return best, fewest


def _count_crossings(layers: Sequence[Sequence[str]], edges: Sequence[tuple[str, str]]) -> int:
    row = {name: place for layer in layers for place, name in enumerate(layer)}
    depth = {name: place for place, layer in enumerate(layers) for name in layer}
    count = 0
    for place, (left, right) in enumerate(edges):
        for other_left, other_right in edges[place + 1 :]:
            if depth[left] == depth[other_left]:
                count += (row[left] - row[other_left]) * (row[right] - row[other_right]) < 0
    return count


def _draw_way(way: Sequence[str], place: Mapping[str, tuple[float, float]], chosen: Mapping[str, Task]) -> Markup:
    x, y = place[way[0]]
    path = [f"M{x + BOX[0]:g} {y + BOX[1] / 2:g}"]
    for name in way[1:]:
        to_y = place[name][1]
        path.append(f"c{GAP[0] / 2:g} 0 {GAP[0] / 2:g} {to_y - y:g} {GAP[0]} {to_y - y:g}")
        path += [f"h{BOX[0]}"] if name != way[-1] else []
        y = to_y
    word = chosen[way[0]]["word"]
    kind = "good" if word in GOOD else "red" if word in (*BAD, "skipped", "cancelled") else ""
    return tag("path", d="".join(path), class_=f"edge {kind}".rstrip())


# --- a matrix ---


def make_grid(view: Mapping[str, Any], tasks: Sequence[Task], base: str) -> tuple[list[Part], str]:
    """A row for each task and a column for each arm, the best first; below them the paired differences; how many.

    A run is at `base` and the number of its task.
    """
    record = compare_tasks(view, tasks, "model")
    groups: Sequence[Mapping[str, Any]] = record["groups"]
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
    rows += [cells(parts, tag("th", head, scope="row")) for head, parts in figures]
    grid = tag("div", table(["", *(group["key"] for group in groups)], rows, class_="grid"), class_="wide")
    counts = ((len(titles), "task"), (len(groups), "arm"), (record["samples"], "sample"))
    note = ", ".join(f"{number} {word}{'s' if number != 1 else ''}" for number, word in counts)
    concluded = " ".join(conclude(record))
    verdict = tag("p", tag("strong", concluded)) if concluded else None
    return [verdict, grid, *_compare(groups)], f"{note}; the best arm first"


def _tell_cell(runs: Sequence[Task], base: str) -> Markup:
    if not runs:
        return tag("td", "-")
    good = sum(task["outcome"] == "succeeded" for task in runs)
    kind = "all" if good == len(runs) else "some" if good else "none"
    signs = []
    for task in runs:
        looks = {"class_": task["word"], "title": tell_word(task["word"])}
        signs.append(tag("a", SIGNS[task["word"]], href=f"{base}{task['num']}", **looks))
    took = [task["duration_s"] for task in runs if task["duration_s"] is not None]
    mean = tag("div", tell_span(sum(took) / len(took)), class_="dim") if took else None
    is_open = any(task["status"] != "completed" for task in runs)
    return tag("td", tag("strong", f"{good} of {len(runs)} "), *signs, mean, class_=None if is_open else kind)


def _tell_rate(rate: Mapping[str, float], least: float) -> Part:
    def at(share: float) -> float:
        return 100 * (min(1.0, max(least, share)) - least) / (1 - least)

    low, high, middle = at(rate["low"]), at(rate["high"]), at(rate["estimate"])
    drawn = picture(
        tag("line", x1="0", x2="100%", y1="5", y2="5"),
        tag("rect", x=f"{low:.1f}%", width=f"{max(0.5, high - low):.1f}%", y="3", height="4"),
        tag("rect", x=f"{max(0.0, middle - 1):.1f}%", width="2%", y="0", height="10", class_="at"),
        class_="interval",
    )
    sign = "" if least == 0 else "+"
    words = f"{100 * rate['low']:{sign}.0f} to {100 * rate['high']:{sign}.0f}".replace("-", "−")
    estimate = f"{rate['estimate']:.0%}" if least == 0 else None
    return [tag("strong", estimate), drawn, tag("div", words, class_="dim")]


def _compare(groups: Sequence[Mapping[str, Any]]) -> list[Part]:
    """How many points each other arm is behind the first one, task by task."""
    first, *others = groups or [{}]
    measured = [group for group in others if group["behind"]]
    if not measured:
        return []
    rows = []
    for group in measured:
        behind = group["behind"]
        points = f"{100 * behind['estimate']:+.0f} points".replace("-", "−")
        wins = ", ".join(f"{count} {word}" for word, count in count_wins(first, group).items())
        parts = [points, _tell_rate(behind, -1.0), wins, tell_word(behind["verdict"])]
        rows.append(cells([f"{first['key']} − {group['key']}", *parts]))
    heads = ("Arms", "Difference", "95 % interval, points", "Tasks", "The other arm is")
    return [
        tag("h3", f"Paired by task, against {first['key']}"),
        table(heads, rows),
        tag("p", "Intervals count tasks, not runs.", class_="dim"),
    ]
