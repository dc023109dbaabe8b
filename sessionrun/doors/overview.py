"""A page over all sessions: how often each agent and model succeeded, what that took and cost, by day.  Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from sessionrun.client.reading.comparison import wilson
from sessionrun.client.reading.money import describe_cost, read_usage, sum_usages
from sessionrun.doors.markup import Markup, Part, cells, document, section, table, tag
from sessionrun.model.times import parse_time
from sessionrun.model.usage import Usage
from sessionrun.model.wording import name_session
from sessionrun.model.words import BAD, JUDGED, tell_counts

DAYS: Final = 30
"""So many days are drawn, the newest ones on which something ended."""

WIDTH: Final = 14
HEIGHT: Final = 36

Key = tuple[str, str]
"""An agent and its model; ``default`` if the agent chose it."""


Task = Mapping[str, Any]
Days = Mapping[Key, Mapping[str, Sequence[Task]]]
"""The tasks of an agent and model that ended by themselves, by day."""


def sort_tasks(views: Iterable[Mapping[str, Any]]) -> Days:
    """The tasks by agent, model and day."""
    days: dict[Key, dict[str, list[Task]]] = {}
    for task in (task for view in views for task in view["tasks"]):
        if task["outcome"] in JUDGED and task["ended_at"]:
            date = time.strftime("%Y-%m-%d", time.localtime(parse_time(task["ended_at"])))
            days.setdefault((task["agent"], task["model"] or "default"), {}).setdefault(date, []).append(task)
    return days


def make_overview_page(views: Sequence[Mapping[str, Any]]) -> str:
    """The whole page over these sessions; those that need somebody are named."""
    days = sort_tasks(views)
    dates = sorted({date for known in days.values() for date in known})[-DAYS:]
    keys = sorted(days, key=lambda key: -sum(map(len, days[key].values())))
    line = (
        f"{len(dates)} days on which tasks ended, {dates[0]} to {dates[-1]}" if dates else "No task has ended yet."
    )
    needy = [view for view in views if needs_somebody(view)]
    body = [
        tag("h1", "All sessions"),
        tag("p", line, class_="dim"),
        section("needy", "Sessions that need somebody", *([_list_sessions(needy)] if needy else [])),
        section("arms", "By agent and model", _make_table(days, keys) if keys else None),
        section("success", "Success, day by day", _draw_all(days, keys, dates, "success")),
        section("cost", "Cost, day by day", _draw_all(days, keys, dates, "cost")),
        section("time", "Time of a task (median), day by day", _draw_all(days, keys, dates, "time")),
    ]
    return document("All sessions", tag("main", *body, id="content"))


def needs_somebody(view: Mapping[str, Any]) -> bool:
    """Whether a session waits for a person, or came to an end that one has to look at."""
    counts = view["counts"]
    needy = any(counts.get(word) for word in (*BAD, "bounced", "changed_nothing", "held"))
    return bool(needy or view["state"] == "stopped")


def _list_sessions(views: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [cells([name_session(view), view["state"], tell_counts(view["counts"])]) for view in views]
    return table(("Session", "State", "Tasks"), rows)


def _make_table(days: Days, keys: Sequence[Key]) -> Markup:
    heads = ("Agent", "Model", "Tasks", "Succeeded", "Time (median)", "Cost")
    rows: list[Part] = []
    for agent, model in keys:
        whole = [task for tasks in days[agent, model].values() for task in tasks]
        share, took = _measure(whole, "success") or 0.0, _measure(whole, "time")
        low, high = wilson(share, len(whole))
        row = [
            agent,
            model,
            str(len(whole)),
            f"{share:.0%} ({low:.0%} to {high:.0%})",
            "" if took is None else f"{took:.1f} s",
            _tell_cost(whole),
        ]
        rows.append(cells(row))
    return table(heads, rows)


def _tell_cost(tasks: Sequence[Task]) -> str:
    """What tasks cost; a task that says nothing of it may have cost something."""
    used = sum_usages(read_usage(task["usage"]) if task["usage"] else Usage(unpriced_jobs=1) for task in tasks)
    return describe_cost(used) if used and used.cost_usd is not None else ""


def _draw_all(days: Days, keys: Sequence[Key], dates: Sequence[str], what: str) -> Markup | None:
    """A row of bars for each agent and model, all of one scale; None without any figure."""
    figures = {key: [_measure(days[key].get(date, ()), what) for date in dates] for key in keys}
    top = max((found for row in figures.values() for found in row if found is not None), default=0.0)
    top = 1.0 if what == "success" else top or 1.0
    rows = [
        (name := f"{agent}, {model}", _draw(name, row, dates, top, what))
        for (agent, model), row in figures.items()
        if any(found is not None for found in row)
    ]
    return table(("Agent and model", "Each day"), map(cells, rows)) if rows else None


def _measure(tasks: Sequence[Task], what: str) -> float | None:
    """A figure of tasks; None: it is not known of any."""
    if what == "success":
        return sum(task["outcome"] == "succeeded" for task in tasks) / len(tasks) if tasks else None
    if what == "cost":
        used = sum_usages(read_usage(task["usage"]) for task in tasks if task["usage"])
        return used.cost_usd if used else None
    seconds = [task["duration_s"] for task in tasks if task["duration_s"] is not None]
    return median(seconds) if seconds else None


def _draw(name: str, figures: Sequence[float | None], dates: Sequence[str], top: float, what: str) -> Markup:
    bars = []
    for place, (date, figure) in enumerate(zip(dates, figures, strict=True)):
        if figure is None:
            continue
        height = max(1.0, HEIGHT * figure / top)
        text = {"success": f"{figure:.0%}", "cost": f"${figure:.4f}", "time": f"{figure:.1f} s"}[what]
        where = {"x": place * WIDTH, "y": f"{HEIGHT - height:.1f}", "width": WIDTH - 3, "height": f"{height:.1f}"}
        bars.append(tag("rect", tag("title", f"{date}: {text}"), class_="work", **where))
    width = max(1, len(dates) * WIDTH)
    label = f"{name}: {what} on {sum(figure is not None for figure in figures)} days"
    size = {"viewBox": f"0 0 {width} {HEIGHT}", "width": width}
    return tag("svg", tag("title", label), *bars, role="img", aria_label=label, **size)
