"""What `watch` shows: a session and its tasks as lines of a screen.  Pure: nothing is read here."""

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
from sessionrun.cli.standing import head_line
from sessionrun.client.reading.landed import count_landings
from sessionrun.client.reading.terse import is_fine, needs_look
from sessionrun.model.times import parse_time

KEYS: Final = "q quit  up/down select  l logs  d diff  c cancel  r retry  f filter"
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
    return [task for task in view["tasks"] if not choice.only_attention or needs_look(task)]


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
    name = escape_line(view["name"] or "") or "session"
    lines: list[Line] = [
        (clip(f"{name} {view['session_id'][:8]}: {session_word(view)}", width), "bold"),
        (clip(head_line(view, view["tasks"], now), width), "red" if view["failed"] else ""),
        (clip(_tell_waits(view["tasks"]), width), "yellow"),
        (clip(_row("", "  # TASK", "STATE", "TIME", "COST", "LAST LINE", width), width), "dim"),
    ]
    room = max(1, height - len(lines) - 2)
    place = find_place(tasks, choice.selected)
    begin = min(max(0, place - room // 2), max(0, len(tasks) - room))
    for number, task in enumerate(tasks[begin : begin + room], begin):
        text = clip(_tell(task, last.get(task["id"], ""), now, width), width)
        style = "reverse" if number == place else "red" if _has_failed(task) else ""
        lines.append((text, style))
    more = len(tasks) - min(len(tasks), begin + room)
    lines += [("", "")] * (height - 2 - len(lines))
    rest = f"{more} more below" if more else "nothing to show" if not tasks else ""
    return [*lines[: height - 2], (clip(rest, width), "dim"), (clip(choice.message or KEYS, width), "bold")]


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


def find_place(tasks: Sequence[View], selected: str | None) -> int:
    """Where the selected task is; the first one if it is not shown."""
    return next((place for place, task in enumerate(tasks) if task["id"] == selected), 0)


def _has_failed(task: View) -> bool:
    return task["status"] == "completed" and not is_fine(task)


def _tell(task: View, last: str, now: float, width: int) -> str:
    landing = (task.get("landing") or {}).get("status")
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
    cells = [pad(sign, 4), pad(title, title_width), pad(word, WORD_WIDTH), time.rjust(TIME_WIDTH)]
    return " ".join([*cells, cost.rjust(COST_WIDTH), last])


def pad(text: str, width: int) -> str:
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
