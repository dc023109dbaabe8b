"""What `watch` shows as lines of a screen: a session with its tasks, or all sessions.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sessionrun.cli.render import (
    clip,
    columns,
    duration,
    escape_line,
    session_word,
    short_time,
    task_sign,
    task_word,
)
from sessionrun.cli.standing import tell_left
from sessionrun.client.reading.landed import count_landings
from sessionrun.model.times import parse_time
from sessionrun.model.wording import needs_look, tell_head
from sessionrun.model.words import read_landing, tell_counts

KEYS: Final = "q quit  up/down select  l logs  d diff  c cancel  r retry  f filter"
LIST_KEYS: Final = "q quit  up/down select  enter shows it"
ARROWS: Final[Mapping[str, int]] = {"up": -1, "k": -1, "down": 1, "j": 1}
TITLE_SHARE: Final = 4
"""The title has this part of the width."""

WORD_WIDTH: Final = 15
TIME_WIDTH: Final = 6
COST_WIDTH: Final = 7

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
    counts, left = tell_counts(view["counts"]), tell_left(view, now)
    head: list[Line] = [
        (escape_line(tell_head(view, now)), "bold"),
        (f"{counts}, {left}" if left else counts, "red" if view["failed"] else ""),
        (_tell_waits(view["tasks"]), "yellow"),
        (_row("", "  # TASK", "STATE", "TIME", "COST", "LAST LINE", width), "dim"),
    ]
    place = find_place(tasks, choice.selected)
    shown = _window(len(tasks), place, height - len(head) - 2)
    rows = [
        (_tell(tasks[number], last.get(tasks[number]["id"], ""), now, width), _has_failed(tasks[number]))
        for number in shown
    ]
    more = len(tasks) - shown.stop
    rest = f"{more} more below" if more else "nothing to show" if not tasks else ""
    return _fill(
        [*head, *_mark(rows, place - shown.start)], [(rest, "dim"), (choice.message or KEYS, "bold")], size
    )


def draw_sessions(views: Sequence[View], place: int, now: float, size: tuple[int, int]) -> list[Line]:
    """The same of sessions, of which one is selected by its place."""
    live = sum(view["ended_at"] is None for view in views)
    head = [(f"{len(views)} sessions, {live} not ended", "bold"), ("", "")]
    head.append((_session_row("ID", "STATUS", "DONE", "FAILED", "TIME", "STARTED", "NAME"), "dim"))
    shown = _window(len(views), place, size[1] - len(head) - 1)
    rows = [(_tell_session(views[number], now), bool(views[number]["failed"])) for number in shown]
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


def _tell_waits(tasks: Sequence[View]) -> str:
    """What is held, and how much work stands where on its way to the branch; empty if there is neither."""
    held = [task for task in tasks if task["word"] == "held" or (task["word"] == "waiting" and task["held_until"])]
    parts = []
    if held:
        first = min(held, key=lambda task: task["held_until"] or "9")
        until = f" until {short_time(first['held_until'])[11:]}" if first["held_until"] else ""
        reason = escape_line(first["reason"] or "it waits").removeprefix("held: ")
        parts.append(f"Held{until}: {len(held)} {'task' if len(held) == 1 else 'tasks'}: {reason}")
    landings = count_landings(tasks)
    if landings:
        parts.append("Landing: " + ", ".join(f"{count} {status}" for status, count in landings.items()))
    return "; ".join(parts)


def find_place(shown: Sequence[View], selected: str | None, key: str = "id") -> int:
    """Where the selected one is; the first one if it is not shown."""
    return next((place for place, each in enumerate(shown) if each[key] == selected), 0)


def step(shown: Sequence[View], selected: str | None, arrow: str, key: str = "id") -> str | None:
    """What is selected after an arrow was pressed."""
    place = find_place(shown, selected, key) + ARROWS[arrow]
    return str(shown[min(max(place, 0), len(shown) - 1)][key]) if shown else selected


def _has_failed(task: View) -> bool:
    return task["status"] == "completed" and needs_look(task)


def _tell(task: View, last: str, now: float, width: int) -> str:
    landing = read_landing(task)
    word = task_word(task) + (f", {landing}" if landing not in (None, task["word"]) else "")
    return _row(
        task_sign(task),
        f"{task['num']:3} {escape_line(task['title'])}",
        word,
        _elapsed(task, now),
        _cost(task),
        escape_line(last if task["status"] == "running" else task["reason"] or last),
        width,
    )


def _row(sign: str, title: str, word: str, time: str, cost: str, last: str, width: int) -> str:
    title_width = max(14, width // TITLE_SHARE)
    cells = [_pad(sign, 4), _pad(title, title_width), _pad(word, WORD_WIDTH), time.rjust(TIME_WIDTH)]
    return " ".join([*cells, cost.rjust(COST_WIDTH), last])


def _tell_session(view: View, now: float) -> str:
    end = parse_time(view["ended_at"]) if view["ended_at"] else now
    took = duration(max(0.0, end - parse_time(view["started_at"])))
    done, failed = f"{view['completed']}/{view['total']}", str(view["failed"] or "")
    started, name = short_time(view["started_at"]), escape_line(view["name"] or "")
    word = session_word(view, short=True)
    return _session_row(view["session_id"][:8], word, done, failed, took, started, name)


def _session_row(short: str, status: str, done: str, failed: str, took: str, started: str, name: str) -> str:
    cells = [_pad(short, 8), _pad(status, 12), done.rjust(9), failed.rjust(6), took.rjust(7), started.rjust(19)]
    return " ".join([*cells, name])


def _pad(text: str, width: int) -> str:
    """A cell of a table: cut, or filled with blanks."""
    cut = clip(text, width)
    return cut + " " * (width - columns(cut))


def _elapsed(task: View, now: float) -> str:
    if task["status"] == "running" and task["started_at"]:
        return duration(max(0.0, now - parse_time(task["started_at"])))
    return "" if task["duration_s"] is None else duration(task["duration_s"])


def _cost(task: View) -> str:
    cost = (task["usage"] or {}).get("cost_usd")
    return "" if cost is None else f"${cost:.2f}"
