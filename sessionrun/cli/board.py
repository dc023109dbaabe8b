"""What `watch` shows as lines of a screen: a session with its tasks, or all sessions.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sessionrun.cli.list import session_rows
from sessionrun.cli.render import escape_line
from sessionrun.cli.standing import row_lines, tell_doing, tell_left
from sessionrun.model.wording import clip, group_tasks, name_tasks, needs_look, tell_head, tell_reason
from sessionrun.model.words import tell_counts

KEYS: Final = "q quit  up/down select  l logs  d diff  c cancel  r retry  f filter"
LIST_KEYS: Final = "q quit  up/down select  enter shows it"
ARROWS: Final[Mapping[str, int]] = {"up": -1, "k": -1, "down": 1, "j": 1}
View = Mapping[str, Any]
Line = tuple[str, str]
"""A line of the screen, and how it looks: a style of the library, or nothing."""


@dataclass
class Choice:
    """What the person at the screen has chosen."""

    selected: str | None = None
    """The id of a task; None: the first one."""
    only_attention: bool = False
    """Whether only tasks are shown that run or need attention."""
    message: str = ""
    """What the last key did, or asks; empty: the keys are shown."""


def choose_tasks(view: View, choice: Choice) -> list[dict[str, Any]]:
    """The tasks that may be shown."""
    return [
        task
        for task in view["tasks"]
        if not choice.only_attention or task["status"] == "running" or needs_look(task)
    ]


def draw(
    view: View, tasks: Sequence[View], last: Mapping[str, str], choice: Choice, now: float, size: tuple[int, int]
) -> list[Line]:
    """The lines of a screen.

    Args:
        view: the session.
        tasks: the tasks that may be shown.
        last: the last line that a task printed, by its id.
        choice: what is chosen.
        now: wall time (seconds since the epoch).
        size: columns and rows.
    """
    width, height = size
    counts, left, by_id = tell_counts(view["counts"]), tell_left(view, now), name_tasks(view)
    held = [task for task in view["tasks"] if task["word"] == "held" and task["status"] != "completed"]
    head: list[Line] = [
        (escape_line(tell_head(view, now)), "bold"),
        (f"{counts}, {left}" if left else counts, "red" if view["failed"] else ""),
        (escape_line("; ".join(group.head for group in group_tasks(held, by_id, now))), "yellow"),
    ]
    place = find_place(tasks, choice.selected)
    shown = _window(len(tasks), place, height - len(head) - 2)
    drawn = tasks[shown.start : shown.stop]

    def tell_last(task: View) -> str:
        if task["status"] == "running":
            return " ".join(filter(None, (tell_doing(task), last.get(task["id"]))))
        return tell_reason(task, by_id, now) or last.get(task["id"], "")

    lines = row_lines(drawn, now, width, tell_last=tell_last)
    rows = [(line, _has_failed(task)) for line, task in zip(lines, drawn, strict=True)]
    more = len(tasks) - shown.stop
    rest = f"{more} more below" if more else "nothing to show" if not tasks else ""
    return _fill(
        [*head, *_mark(rows, place - shown.start)], [(rest, "dim"), (choice.message or KEYS, "bold")], size
    )


def draw_sessions(views: Sequence[dict[str, Any]], place: int, now: float, size: tuple[int, int]) -> list[Line]:
    """The same of sessions, of which one is selected by its place."""
    live = sum(view["ended_at"] is None for view in views)
    shown = _window(len(views), place, size[1] - 4)
    drawn = views[shown.start : shown.stop]
    top, *lines = session_rows(drawn, now, size[0])
    head = [(f"{len(views)} sessions, {live} not ended", "bold"), ("", ""), (top, "dim")]
    rows = [(line, bool(view["failed"])) for line, view in zip(lines, drawn, strict=True)]
    return _fill([*head, *_mark(rows, place - shown.start)], [(LIST_KEYS, "bold")], size)


def _window(count: int, place: int, room: int) -> range:
    """Which of `count` rows are shown where there is `room`, so that the one at `place` is."""
    room = max(1, room)
    begin = min(max(0, place - room // 2), max(0, count - room))
    return range(begin, min(count, begin + room))


def _mark(rows: Sequence[tuple[str, bool]], place: int) -> list[Line]:
    """Rows with their styles: the selected one, and those that failed."""
    return [
        (text, "reverse" if number == place else "red" if failed else "")
        for number, (text, failed) in enumerate(rows)
    ]


def _fill(lines: Sequence[Line], foot: Sequence[Line], size: tuple[int, int]) -> list[Line]:
    """A whole screen: lines from its top, and those at its foot, which stay whatever does not fit."""
    width, height = size
    room = height - len(foot)
    whole = [*lines[:room], *[("", "")] * (room - len(lines)), *foot]
    return [(clip(text, width), style) for text, style in whole]


def find_place(shown: Sequence[View], selected: str | None, key: str = "id") -> int:
    """Where the selected one is; the first one if it is not shown."""
    return next((place for place, each in enumerate(shown) if each[key] == selected), 0)


def step(shown: Sequence[View], selected: str | None, arrow: str, key: str = "id") -> str | None:
    """What is selected after an arrow was pressed."""
    place = find_place(shown, selected, key) + ARROWS[arrow]
    return str(shown[min(max(place, 0), len(shown) - 1)][key]) if shown else selected


def _has_failed(task: View) -> bool:
    return task["status"] == "completed" and needs_look(task)
