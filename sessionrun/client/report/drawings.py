"""The drawings of a report as SVG: when tasks ran, what needs what, how tasks ended, what models cost.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.client.graph import measure_depths
from sessionrun.client.report.gathering import Hold, Shown
from sessionrun.client.report.markup import Markup, drawing, tag

WIDTH: Final = 960
LABEL: Final = 230
ROW: Final = 18
BOX: Final = (150, 24)
MOST_BOXES: Final = 200
"""With more tasks the drawing of their needs says nothing."""

Task = Mapping[str, Any]


def draw_timeline(tasks: Sequence[Shown], began: float, ended: float, holds: Sequence[Hold] = ()) -> Markup | None:
    """A bar for each job, in the colour of its phase, below them one for each hold; None if there is neither."""
    rows = [shown for shown in tasks if shown.runs]
    if not rows and not holds:
        return None
    scale = (WIDTH - LABEL - 10) / max(0.001, ended - began)
    bars: list[Markup] = []

    def draw(row: int, begin: float, end: float, label: str, kind: str) -> None:
        x, width = LABEL + (begin - began) * scale, max(1.0, (end - begin) * scale)
        place = {"x": f"{x:.1f}", "y": row * ROW + 3, "width": f"{width:.1f}", "height": ROW - 6}
        bars.append(tag("rect", tag("title", label), class_=f"phase {kind}", **place))

    for row, shown in enumerate(rows):
        bars.append(_word(0, row * ROW + 13, f"{shown.task['num']} {shown.task['title']}"))
        for run in shown.runs:
            begin, end = run.begin.at if run.begin else began, run.end.at if run.end else ended
            label = f"{shown.task['id']}: {run.key.phase}, attempt {run.key.attempt}, round {run.key.round}"
            draw(row, begin, end, f"{label}: {end - begin:.1f} s", run.key.phase)
    for row, hold in enumerate(holds, len(rows)):
        name = f"held: {hold.resource}"
        bars.append(_word(0, row * ROW + 13, name))
        draw(row, hold.begin, ended if hold.end is None else hold.end, f"{name}: {hold.reason}", "hold")
    height = (len(rows) + len(holds)) * ROW + 4
    return drawing(f"When {len(rows)} tasks ran, in {ended - began:.1f} seconds", WIDTH, height, bars)


def draw_needs(tasks: Sequence[Task]) -> Markup | None:
    """Boxes for tasks, from left to right in the order of their needs; None if none needs another one."""
    if not any(task["needs"] for task in tasks) or len(tasks) > MOST_BOXES:
        return None
    depths = measure_depths({task["id"]: task["needs"] for task in tasks})
    columns: dict[int, list[Task]] = {}
    for task in tasks:
        columns.setdefault(depths[task["id"]], []).append(task)
    step = max(BOX[0] + 40, WIDTH // max(1, len(columns)))
    places = {
        task["id"]: (depth * step, row * (BOX[1] + 12) + 4)
        for depth, column in columns.items()
        for row, task in enumerate(column)
    }
    parts: list[Markup] = []
    for task in tasks:
        x, y = places[task["id"]]
        for need in task["needs"]:
            if need in places:
                from_x, from_y = places[need][0] + BOX[0], places[need][1] + BOX[1] // 2
                parts.append(tag("line", x1=from_x, y1=from_y, x2=x, y2=y + BOX[1] // 2, class_="need"))
    for task in tasks:
        x, y = places[task["id"]]
        box = tag("rect", x=x, y=y, width=BOX[0], height=BOX[1], rx=4, class_=f"box {task['word']}")
        label = _word(x + 6, y + 16, f"{task['num']} {task['title']}", 22)
        parts.append(tag("g", tag("title", f"{task['id']}: {task['word']}"), box, label))
    height = max(y for _, y in places.values()) + BOX[1] + 8
    return drawing("What each task needs", max(WIDTH, len(columns) * step), height, parts)


def draw_outcomes(tasks: Sequence[Task]) -> Markup | None:
    """One bar of all tasks by how they stand."""
    counts = Counter(str(task["word"]) for task in tasks)
    parts: list[Markup] = []
    x = 0.0
    for name, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        width = WIDTH * count / max(1, len(tasks))
        bar = tag("rect", x=f"{x:.1f}", y=0, width=f"{width:.1f}", height=24, class_=f"box {name}")
        label = f"{name.replace('_', ' ')}: {count}"
        word = _word(x + 6, 16, label) if width > 8 * len(label) else None
        parts.append(tag("g", tag("title", label), bar, word))
        x += width
    label = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.most_common())
    return drawing(f"How tasks ended: {label}", WIDTH, 26, parts) if tasks else None


def draw_costs(usage: Mapping[str, Mapping[str, Any]] | None) -> Markup | None:
    """A bar for each model whose cost is known."""
    costs = {name: float(used["cost_usd"]) for name, used in (usage or {}).items() if used.get("cost_usd")}
    if not costs:
        return None
    parts: list[Markup] = []
    for number, (name, cost) in enumerate(sorted(costs.items(), key=lambda pair: -pair[1])):
        y, width = number * 24, (WIDTH - LABEL - 120) * cost / max(costs.values())
        parts.append(_word(0, y + 16, name))
        parts.append(tag("rect", x=LABEL, y=y + 2, width=f"{width:.1f}", height=18, class_="phase work"))
        parts.append(_word(LABEL + width + 8, y + 16, f"${cost:.4f}"))
    return drawing("Cost by model", WIDTH, 24 * len(costs) + 4, parts)


def _word(x: float, y: float, text: str, most: int = 34) -> Markup:
    return tag("text", text if len(text) <= most else text[: most - 3] + "...", x=f"{x:.1f}", y=y)
