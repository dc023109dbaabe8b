"""The pages: all sessions and their figures by day, one session, one task; with buttons where one may change it.

A page is whole without its script (`live.js`): that only takes over what has changed in `main`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from sessionrun.client.reading.comparison import wilson
from sessionrun.doors.gathering import Matter, Shown
from sessionrun.doors.markup import (
    Markup,
    Part,
    cells,
    document,
    join,
    make_head,
    section,
    table,
    tag,
    tell_command,
)
from sessionrun.doors.report import make_blocks, make_search
from sessionrun.doors.task import (
    draw_bar,
    list_counts,
    list_facts,
    make_sign,
    mark_counts,
    name_state,
    tell_parts,
)
from sessionrun.model.usage import Usage, describe_cost, read_usage, sum_usages, tell_cost
from sessionrun.model.wording import name_session, short_id, tell_span, tell_word, took_s, with_reason
from sessionrun.model.words import BAD, JUDGED, format_time, parse_time, tell_counts

_HOME: Final = tag("a", "All sessions", href="/")
_HEADS: Final = ("State", "Session", "Tasks", "Took", "Cost", "Started")


def make_document(title: str, main: Markup, address: str, way: Sequence[tuple[str, str]] = ()) -> str:
    """A whole page that is renewed: below its address are `part`, its main part, and `events`, the news of it.

    `way` is how one comes to it from the page of all sessions: names, with their addresses.
    """
    root = address.removesuffix("/")
    steps = [part for name, where in way for part in (" / ", tag("a", name, href=where) if where else name)]
    state = tag("span", id="live", class_="dim", role="status")  # the script says there whether news come in
    nav = tag("nav", _HOME if way else None, *steps, state)
    content = tag("main", main, id="content", data_part=f"{root}/part", data_events=f"{root}/events")
    return document(title, [nav, content, tag("script", src="/live.js", defer="")], served=True)


def make_notice(words: str, address: str) -> str:
    """A whole page for what could not be done; `address` is that of the page before it."""
    back = tag("p", tag("a", "Back", href=address))
    body = tag("main", tag("h1", "Not done"), tag("p", words), back, id="content")
    return document("Not done", [tag("nav", _HOME), body], served=True)


def make_list(views: Sequence[Mapping[str, Any]], now: float) -> Markup:
    """All sessions: those that need a person, those that run, the others; of each the newest first."""
    if not views:
        return join([tag("h1", "Sessions"), tag("p", "None.")])
    groups: dict[str, list[Mapping[str, Any]]] = {"Need you": [], "Running": [], "Done": []}
    for view in views:
        groups["Need you" if needs_somebody(view) else "Done" if view["ended_at"] else "Running"].append(view)
    has_cost = any(view["usage"] for view in views)
    heads = [head for head in _HEADS if head != "Cost" or has_cost]
    bodies = [
        tag(
            "tbody",
            tag("tr", tag("th", f"{name}: {len(group)}", colspan=len(heads), scope="rowgroup")),
            [_make_row(view, now, has_cost=has_cost) for view in group],
            id=name.replace(" ", "-").lower(),
        )
        for name, group in groups.items()
        if group
    ]
    needy, every = len(groups["Need you"]), "1 session" if len(views) == 1 else f"{len(views)} sessions"
    words = f"{needy} of {every} need{'s' if needy == 1 else ''} you" if needy else "No session needs you"
    verdict = tag("p", words, class_="verdict", role="status")
    shown = tag("table", make_head(heads), *bodies, class_="sessions")
    search = tag("div", make_search(), class_="filter")
    return join([tag("h1", "Sessions"), verdict, tag("section", search, shown)])


def _make_row(view: Mapping[str, Any], now: float, *, has_cost: bool) -> Markup:
    state = str(view["result"] or view["state"])
    link = tag("a", name_session(view), href=f"/sessions/{view['session_id']}")
    short = tag("code", str(view["session_id"])[:8], class_="dim") if view["name"] else None
    parts: list[Part] = [
        tag("span", state, class_=view["result"] or name_state(view)),
        [link, " ", short],
        [draw_bar(list_counts(view), view["total"]), *mark_counts(view)],
        tell_span(took_s(view, now)),
        *([tell_cost(view["usage"])] if has_cost else []),
        _make_time(parse_time(view["started_at"]), "%a %d %b, %H:%M"),
    ]
    return cells(parts, id=f"s-{view['session_id']}")


def make_session(matter: Matter, *, control: bool) -> Markup:
    view = matter.view
    address = f"/sessions/{view['session_id']}"
    report = tag("p", tag("a", "Report with all details", href=f"{address}/report"))
    last = [] if matter.last_at is None else ["Last event ", _make_time(matter.last_at, "%H:%M:%S", class_="ago")]
    controls = _make_controls(list_controls(matter), address, matter.name) if control else None
    above = [tag("p", *last, class_="dim") if last else None, controls]
    return join([*make_blocks(matter, base=f"{address}/tasks/", above=above), report])


def _make_time(at: float, form: str, **attributes: str) -> Markup:
    """A moment in local time; of one of the class `ago` the script says how long it is ago."""
    words = time.strftime(form, time.localtime(at))
    return tag("time", words, datetime=format_time(at), **attributes)


class Control(NamedTuple):
    """Something that can be done: its button, and what will happen; empty: it is senseless now.

    `asks`: a text goes with it.
    """

    action: str
    word: str
    happens: str
    asks: bool = False


def list_controls(matter: Matter) -> list[Control]:
    """What can be done with a session; to cancel stands last, and apart."""
    counts, is_open = matter.view["counts"], matter.view["ended_at"] is None
    held, running, waiting = (counts[word] for word in ("held", "running", "waiting"))
    bad = sum(counts[word] for word in (*BAD, "cancelled"))
    landing = sum(_can_land(shown.task) for shown in matter.tasks)
    holds = f"{_count(waiting)} will not start until you release them; what runs goes on." if waiting else ""
    runs = "1 task that runs is stopped" if running == 1 else f"{running} tasks that run are stopped"
    stops = "; ".join([*([runs] if running else []), f"{_count(waiting + held)} will not start"]) + "."
    return [
        Control("hold", "Hold", holds if is_open else ""),
        Control("release", "Release", f"{_count(held)} may start." if held and is_open else ""),
        Control("retry", "Retry what failed", f"{_count(bad)} run again from the beginning." if bad else ""),
        Control(
            "land",
            "Land what succeeded",
            f"The work of {_count(landing)} goes onto the branch." if landing else "",
        ),
        Control("cancel", "Cancel the session", stops if is_open else ""),
    ]


def list_task_controls(task: Mapping[str, Any]) -> list[Control]:
    is_open = task["outcome"] is None
    again = "It runs again from the beginning." if not is_open and task["outcome"] != "succeeded" else ""
    goes_on = task["started_at"] and not (is_open or task["mends"] or task["repo"])
    lands = "Its work goes onto the branch." if _can_land(task) else ""
    ends = "It is stopped." if task["word"] == "running" else "It will not start."
    return [
        Control("retry", "Retry the task", again),
        Control("continue", "Ask more", "Its agent goes on with what you write." if goes_on else "", asks=True),
        Control("land", "Land its work", lands),
        Control("cancel", "Cancel the task", ends if is_open else ""),
    ]


def _count(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


def _make_controls(controls: Sequence[Control], address: str, named: str) -> Markup:
    """A button for each; it opens a dialog, without a script, that says what will happen, and the same command."""
    bar: list[Part] = []
    for control in controls:
        name, kind = f"ask-{control.action}", "danger" if control.action == "cancel" else None
        if control.happens:
            bar.append(tag("button", control.word, type="button", popovertarget=name, class_=kind))
            bar.append(tag("div", _make_dialog(control, name, kind, address, named), id=name, popover=""))
        else:
            bar.append(tag("button", control.word, type="button", disabled="", class_=kind))
    return tag("div", *bar, class_="actions")


def _make_dialog(control: Control, name: str, kind: str | None, address: str, named: str) -> list[Part]:
    verb = "merge" if control.action == "land" else control.action
    first = None if control.asks else ""  # what has the focus once the dialog is open
    back = tag("button", "Not now", type="button", popovertarget=name, popovertargetaction="hide", autofocus=first)
    text = tag("textarea", name="text", rows="4", required="", autofocus="", aria_label=control.word)
    go = tag("button", control.word, class_=kind)
    parts = [text, back, go] if control.asks else [back, go]
    return [
        tag("p", tag("strong", f"{control.word}?")),
        tag("p", control.happens),
        tell_command(f"{verb} {named}{' TEXT' * control.asks}"),
        tag("form", *parts, method="post", action=f"{address}/{control.action}"),
    ]


def make_task(shown: Shown, matter: Matter, *, control: bool) -> Markup:
    task = shown.task
    address = f"/sessions/{matter.view['session_id']}"
    named = f"{matter.name} {short_id(task)}"
    bar = _make_controls(list_task_controls(task), f"{address}/tasks/{task['num']}", named) if control else None
    name, why = matter.names[task["id"]], matter.reasons[task["id"]]
    word = tag("span", make_sign(task), " ", tell_word(task["word"]), class_=task["word"])
    return join(
        [
            tag("h1", task["title"], tag("code", name) if name != task["title"] else None),
            tag("p", word, with_reason("", why), class_="verdict", role="status"),
            tag("p", " · ".join(filter(None, list_facts(task))), class_="dim"),
            bar,
            *tell_parts(shown, unfolded=True),
            tell_command(f"explain {named}", class_="dim"),
        ]
    )


def _can_land(task: Mapping[str, Any]) -> bool:
    is_there = task["word"] in ("landed", "changed_nothing")
    return bool(task["branch"]) and task["outcome"] == "succeeded" and not is_there


DAYS: Final = 30
"""So many days are drawn, the newest ones on which something ended."""

WIDTH: Final = 14
HEIGHT: Final = 36

Key = tuple[str, str]
"""An agent and its model; ``default`` if the agent chose it."""


Task = Mapping[str, Any]
Days = Mapping[Key, Mapping[str, Sequence[Task]]]
"""The tasks of an agent and model that ended by themselves, by day."""


def make_overview_page(views: Sequence[Mapping[str, Any]]) -> str:
    """The whole page over these sessions; those that need somebody are named."""
    days: dict[Key, dict[str, list[Task]]] = {}
    for task in (task for view in views for task in view["tasks"]):
        if task["outcome"] in JUDGED and task["ended_at"]:
            date = time.strftime("%Y-%m-%d", time.localtime(parse_time(task["ended_at"])))
            days.setdefault((task["agent"], task["model"] or "default"), {}).setdefault(date, []).append(task)
    dates = sorted({date for known in days.values() for date in known})[-DAYS:]
    keys = sorted(days, key=lambda key: -sum(map(len, days[key].values())))
    line = (
        f"{len(dates)} days on which tasks ended, {dates[0]} to {dates[-1]}" if dates else "No task has ended yet."
    )
    needy = [
        cells([name_session(view), view["state"], tell_counts(view["counts"])])
        for view in views
        if needs_somebody(view)
    ]
    waiting = table(("Session", "State", "Tasks"), needy) if needy else None
    body = [
        tag("h1", "All sessions"),
        tag("p", line, class_="dim"),
        section("needy", "Sessions that need somebody", waiting),
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
