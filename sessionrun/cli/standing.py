"""What a person at a terminal sees of a session's tasks: names, durations, and how long it still needs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sessionrun.cli.render import clip, columns, duration, escape_line, task_word
from sessionrun.client.reading.eta import estimate_left, is_overtaken
from sessionrun.client.reading.terse import needs_look
from sessionrun.model.times import parse_time
from sessionrun.model.words import tell_counts

SHOWN_TASKS: Final = 20
"""With more tasks than this, only those that need attention are shown, unless all are asked for."""

TITLE_ROOM: Final = 24
"""Columns that a title needs to be told apart from others; with less room it gets a line of its own."""

OVERTAKEN: Final = " (a guess: a task runs longer than any before it)"

Task = dict[str, Any]
Past = Mapping[Any, Any]
"""What tasks took, as `forecast.load_past` has it."""


def head_line(
    view: Mapping[str, Any],
    tasks: Sequence[Task],
    now: float | None = None,
    load_past: Callable[[], Past] | None = None,
) -> str:
    """``50 tasks: 45 succeeded, 2 failed, 3 running, 00:04:10, ~00:01:30 left``.

    As long as no task has ended, what is left comes from other sessions, which `load_past` reads.
    """
    now = time.time() if now is None else now
    tasks_word = "task" if view["total"] == 1 else "tasks"
    parts = [f"{view['total']} {tasks_word}: {tell_counts(view['counts'])}" if view["total"] else "no task"]
    end = view["ended_at"]
    if view["started_at"]:
        parts.append(clock((parse_time(end) if end else now) - parse_time(view["started_at"])))
    if not end:
        elapsed = elapsed_of(tasks, now)
        left = estimate_left(tasks, elapsed, view["max_parallel"])
        if left is not None:
            parts.append(f"~{clock(left)} left{OVERTAKEN if is_overtaken(tasks, elapsed) else ''}")
        elif load_past is not None and view["started_at"]:
            parts += _foresee(tasks, elapsed, view["max_parallel"], load_past())
    return ", ".join(parts)


def _foresee(tasks: Sequence[Task], elapsed: Mapping[str, float], slots: int | None, past: Past) -> list[str]:
    from sessionrun.client.planning.forecast import foresee_left

    left = foresee_left(tasks, elapsed, slots, past)
    if left is not None and left.high == 0:
        return ["longer than tasks like these took"]
    return [] if left is None else [f"~{clock(left.middle)} left ({clock(left.low)} to {clock(left.high)})"]


def clock(seconds: float) -> str:
    """Seconds as ``00:04:10``."""
    whole = max(0, round(seconds))
    return f"{whole // 3600:02}:{whole % 3600 // 60:02}:{whole % 60:02}"


def elapsed_of(tasks: Sequence[Task], now: float) -> dict[str, float]:
    """For how many seconds each running task has run, by id."""
    running = (task for task in tasks if task["status"] == "running" and task["started_at"])
    return {task["id"]: max(0.0, now - parse_time(task["started_at"])) for task in running}


def task_details(task: Task) -> list[str]:
    """A task's title, how long it took or has run, and its agent and model."""
    seconds = task["duration_s"]
    if task["status"] == "running" and task["started_at"]:
        seconds = time.time() - parse_time(task["started_at"])
    who = "/".join(filter(None, (task["agent"], task["model"])))
    return [escape_line(task["title"]), *([] if seconds is None else [duration(seconds)]), *([who] if who else [])]


def add_details(line: str, task: Task, width: int, indent: str) -> list[str]:
    """A task's line and its details: behind it if there is room, else below; only the title is cut."""
    title, *others = task_details(task)
    rest = "".join(f"  {word}" for word in others)
    room = width - columns(line) - 2 - len(rest)
    if room >= min(TITLE_ROOM, columns(title)):
        return [f"{line}  {clip(title, room)}{rest}"]
    return [line, indent + clip(title, max(4, width - len(indent) - len(rest))) + rest]


def choose_shown(tasks: Sequence[Task]) -> tuple[list[Task], str | None]:
    """The tasks that need attention, and the rest as a line; all of them where there are few."""
    if len(tasks) <= SHOWN_TASKS:
        return list(tasks), None
    shown = [task for task in tasks if needs_look(task)]
    rest = Counter(task_word(task) for task in tasks if not needs_look(task))
    if not rest:
        return shown, None
    counts = ", ".join(f"{count} {word}" for word, count in rest.most_common())
    return shown, f"  and {counts} (--tasks shows all)"
