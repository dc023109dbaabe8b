"""The pages: all sessions, one session as it goes, one task; with buttons where something may be changed.

A page is whole without its script (`live.js`): that only takes over what has changed in `main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sessionrun.doors.gathering import Matter, Shown
from sessionrun.doors.markup import Markup, Part, cells, document, join, table, tag
from sessionrun.doors.overview import needs_somebody
from sessionrun.doors.report import draw_bar, list_counts, make_blocks, tell_counts
from sessionrun.doors.task import tell_task
from sessionrun.model.wording import name_session, short_id, tell_span, took_s
from sessionrun.model.words import BAD

_HOME: Final = tag("nav", tag("a", "All sessions", href="/"))
_HEADS: Final = ("Session", "State", "Tasks", "Took", "Agent", "Started")


def make_document(title: str, main: Markup, address: str) -> str:
    """A whole page that is renewed: below its address are `part`, its main part, and `events`, the news of it."""
    root = address.removesuffix("/")
    home = None if address == "/" else _HOME
    content = tag("main", main, id="content", data_part=f"{root}/part", data_events=f"{root}/events")
    return document(title, [home, content, tag("script", src="/live.js", defer="")], served=True)


def make_notice(words: str, address: str) -> str:
    """A whole page for what could not be done; `address` is that of the page before it."""
    back = tag("p", tag("a", "Back", href=address))
    body = tag("main", tag("h1", "Not done"), tag("p", words), back, id="content")
    return document("Not done", [_HOME, body], served=True)


def make_list(views: Sequence[Mapping[str, Any]], now: float) -> Markup:
    """All sessions, the newest first, below how many of them need a person."""
    rows = [
        cells(
            [
                tag("a", name_session(view), href=f"/sessions/{view['session_id']}"),
                str(view["state"]),
                [*tell_counts(view), draw_bar(list_counts(view), view["total"])],
                tell_span(took_s(view, now)),
                view["agent"],
                view["started_at"][:19].replace("T", " ") + " UTC",
            ]
        )
        for view in views
    ]
    needy = sum(map(needs_somebody, views))
    words = f"{needy} of {len(views)} sessions need you"
    head = tag("p", words, class_="verdict", role="status") if needy else None
    return join([tag("h1", "Sessions"), head, table(_HEADS, rows) if rows else tag("p", "None.")])


def make_session(matter: Matter, now: float, *, control: bool) -> Markup:
    """One session."""
    view = matter.view
    address = f"/sessions/{view['session_id']}"
    report = tag("p", tag("a", "Report with all details", href=f"{address}/report"))
    above = _make_controls(list_controls(matter), address) if control else None
    return join([*make_blocks(matter, base=f"{address}/tasks/", above=above), report])


class Control(NamedTuple):
    """Something that can be done: its button, what will happen, and the command that does the same.

    Without `happens` it is senseless now, and its button cannot be pressed.
    """

    action: str
    word: str
    happens: str
    command: str


def list_controls(matter: Matter) -> list[Control]:
    """What can be done with a session; to cancel stands last, and apart."""
    tasks = [shown.task for shown in matter.tasks]
    is_open = matter.view["ended_at"] is None
    ended, held = (
        sum(task["status"] == "completed" for task in tasks),
        sum(task["word"] == "held" for task in tasks),
    )
    running = sum(task["word"] == "running" for task in tasks)
    waiting = len(tasks) - ended - held - running
    bad = sum(task["word"] in (*BAD, "cancelled") for task in tasks)
    landing = sum(map(_can_land, tasks))
    name = matter.name
    holds = f"{_count(waiting)} will not start until you release them; what runs goes on." if waiting else ""
    runs = "1 task that runs is stopped" if running == 1 else f"{running} tasks that run are stopped"
    stops = "; ".join([*([runs] if running else []), f"{_count(waiting + held)} will not start"]) + "."
    return [
        Control("hold", "Hold", holds if is_open else "", f"sessionrun hold {name}"),
        Control(
            "release",
            "Release",
            f"{_count(held)} may start." if held and is_open else "",
            f"sessionrun release {name}",
        ),
        Control(
            "retry",
            "Retry what failed",
            f"{_count(bad)} run again from the beginning." if bad else "",
            f"sessionrun retry {name}",
        ),
        Control(
            "land",
            "Land what succeeded",
            f"The work of {_count(landing)} goes onto the branch." if landing else "",
            f"sessionrun merge {name}",
        ),
        Control("cancel", "Cancel the session", stops if is_open else "", f"sessionrun cancel {name}"),
    ]


def list_task_controls(task: Mapping[str, Any], name: str) -> list[Control]:
    """What can be done with one task of the session of this name."""
    named = f"{name} {short_id(task)}"
    is_open = task["outcome"] is None
    again = "It runs again from the beginning." if not is_open and task["outcome"] != "succeeded" else ""
    lands = "Its work goes onto the branch." if _can_land(task) else ""
    ends = "It is stopped." if task["word"] == "running" else "It will not start."
    return [
        Control("retry", "Retry the task", again, f"sessionrun retry {named}"),
        Control("land", "Land its work", lands, f"sessionrun merge {named}"),
        Control("cancel", "Cancel the task", ends if is_open else "", f"sessionrun cancel {named}"),
    ]


def _count(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


def _make_controls(controls: Sequence[Control], address: str) -> Markup:
    """A button for each; it opens a dialog, without a script, that says what will happen."""
    return tag("div", *(_make_control(control, address) for control in controls), class_="actions")


def _make_control(control: Control, address: str) -> list[Part]:
    name, kind = f"ask-{control.action}", "danger" if control.action == "cancel" else None
    if not control.happens:
        return [tag("button", control.word, type="button", disabled="", class_=kind)]
    back = tag("button", "Not now", type="button", popovertarget=name, popovertargetaction="hide", autofocus="")
    go = tag("button", control.word, class_=kind)
    return [
        tag("button", control.word, type="button", popovertarget=name, class_=kind),
        tag(
            "div",
            tag("p", tag("strong", f"{control.word}?")),
            tag("p", control.happens),
            tag("p", "The same on a command line: ", tag("code", control.command)),
            tag("form", back, go, method="post", action=f"{address}/{control.action}"),
            id=name,
            popover="",
        ),
    ]


def make_task(shown: Shown, matter: Matter, *, control: bool) -> Markup:
    """One task with all details."""
    task, view = shown.task, matter.view
    address = f"/sessions/{view['session_id']}"
    above = tag("p", tag("a", name_session(view), href=address))
    controls = list_task_controls(task, matter.name)
    bar = _make_controls(controls, f"{address}/tasks/{task['num']}") if control else None
    return join([tag("h1", task["title"]), above, bar, tell_task(shown, matter, unfolded=True)])


def _can_land(task: Mapping[str, Any]) -> bool:
    return (
        bool(task["branch"])
        and task["outcome"] == "succeeded"
        and task["word"] not in ("landed", "changed_nothing")
    )
