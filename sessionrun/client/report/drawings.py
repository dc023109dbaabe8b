"""The drawings of a report as SVG: when tasks ran, what needs what, how tasks ended, what models cost.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.client.report.gathering import Hold, Shown
from sessionrun.client.report.markup import Markup, tag

WIDTH: Final = 960
LABEL: Final = 230
ROW: Final = 18
BOX: Final = (150, 24)
MOST_BOXES: Final = 200
"""With more tasks the drawing of their needs says nothing."""

Task = Mapping[str, Any]


def draw_timeline(tasks: Sequence[Shown], began: float, ended: float, holds: Sequence[Hold] = ()) -> Markup | None:
    """A bar for each job, in the colour of its phase, below them one for each hold; None if there is neither."""
    rows = [shown for shown in tasks if shown.spans]
    if not rows and not holds:
        return None
    scale = (WIDTH - LABEL - 10) / max(0.001, ended - began)
    bars: list[Markup] = []
    for number, shown in enumerate(rows):
        y = number * ROW
        name = f"{shown.task['num']} {shown.task['title']}"
        bars.append(_word(0, y + 13, name if len(name) <= 34 else name[:31] + "..."))
        for span in shown.spans:
            end = ended if span.end is None else span.end
            label = f"{shown.task['id']}: {span.phase}, attempt {span.attempt}, round {span.round}"
            label += f": {end - span.begin:.1f} s"
            x, width = LABEL + (span.begin - began) * scale, max(1.0, (end - span.begin) * scale)
            place = {"x": f"{x:.1f}", "y": y + 3, "width": f"{width:.1f}", "height": ROW - 6}
            bars.append(tag("rect", tag("title", label), class_=f"phase {span.phase}", **place))
    for number, hold in enumerate(holds, len(rows)):
        y, end = number * ROW, ended if hold.end is None else hold.end
        name = f"held: {hold.resource}"
        bars.append(_word(0, y + 13, name if len(name) <= 34 else name[:31] + "..."))
        x, width = LABEL + (hold.begin - began) * scale, max(1.0, (end - hold.begin) * scale)
        place = {"x": f"{x:.1f}", "y": y + 3, "width": f"{width:.1f}", "height": ROW - 6}
        bars.append(tag("rect", tag("title", f"{name}: {hold.reason}"), class_="phase hold", **place))
    height = (len(rows) + len(holds)) * ROW + 4
    return _svg(f"When {len(rows)} tasks ran, in {ended - began:.1f} seconds", height, bars)


def draw_needs(tasks: Sequence[Task]) -> Markup | None:
    """Boxes for tasks, from left to right in the order of their needs; None if none needs another one."""
    if not any(task["needs"] for task in tasks) or len(tasks) > MOST_BOXES:
        return None
    depths = _find_depths(tasks)
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
        name = f"{task['num']} {task['title']}"
        label = _word(x + 6, y + 16, name if len(name) <= 22 else name[:19] + "...")
        parts.append(tag("g", tag("title", f"{task['id']}: {task['word']}"), box, label))
    height = max(y for _, y in places.values()) + BOX[1] + 8
    return _svg("What each task needs", height, parts, width=max(WIDTH, len(columns) * step))


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
    return _svg(f"How tasks ended: {label}", 26, parts) if tasks else None


def draw_costs(usage: Mapping[str, Mapping[str, Any]] | None) -> Markup | None:
    """A bar for each model whose cost is known."""
    costs = {name: float(used["cost_usd"]) for name, used in (usage or {}).items() if used.get("cost_usd")}
    if not costs:
        return None
    parts: list[Markup] = []
    for number, (name, cost) in enumerate(sorted(costs.items(), key=lambda pair: -pair[1])):
        y, width = number * 24, (WIDTH - LABEL - 120) * cost / max(costs.values())
        parts.append(_word(0, y + 16, name if len(name) <= 34 else name[:31] + "..."))
        parts.append(tag("rect", x=LABEL, y=y + 2, width=f"{width:.1f}", height=18, class_="phase work"))
        parts.append(_word(LABEL + width + 8, y + 16, f"${cost:.4f}"))
    return _svg("Cost by model", 24 * len(costs) + 4, parts)


def _find_depths(tasks: Sequence[Task]) -> dict[str, int]:
    """How many tasks are before each one in its longest chain."""
    depths = {task["id"]: 0 for task in tasks}
    for _ in tasks:
        changed = False
        for task in tasks:
            depth = 1 + max((depths.get(need, -1) for need in task["needs"]), default=-1)
            changed, depths[task["id"]] = changed or depth != depths[task["id"]], depth
        if not changed:
            break
    return depths


def _word(x: float, y: float, text: str) -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=y)


def _svg(label: str, height: int, parts: Sequence[Markup], *, width: int = WIDTH) -> Markup:
    return tag(
        "svg",
        tag("title", label),
        *parts,
        role="img",
        aria_label=label,
        viewBox=f"0 0 {width} {height}",
        width=width,
    )
