"""How far a session is: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final

import click

from sessionrun.cli.render import (
    clip,
    duration,
    escape,
    escape_line,
    held_lines,
    hint,
    sign,
    task_word,
    terminal_width,
)
from sessionrun.client.reading.waiting import Progress
from sessionrun.model.words import BAD, tell_counts

PLAIN_EVERY_S: Final = 1.0
PLAIN_NAMES: Final = 3
PLAIN_NAME_WIDTH: Final = 24
"""How many tasks that run a plain line names, and how long a name may be."""

LOOK_SHARE: Final = 20
"""To look at the tasks may take this fraction of the time: that of 10,000 tasks takes long."""

Task = dict[str, Any]
LoadTasks = Callable[[], Sequence[Task]]


def make_progress(stream: IO[str], load_tasks: LoadTasks | None = None) -> Progress:
    """The display that fits the stream; names and the time left need `load_tasks`, which reads them."""
    look = _Look(load_tasks)
    is_live = stream.isatty() and os.environ.get("TERM") != "dumb"
    return LiveProgress(stream, look) if is_live else PlainProgress(look)


def describe(view: dict[str, Any], elapsed_s: float, left: str | None = None) -> str:
    """``2/5 done: 2 succeeded, 3 running, 4.2s, ETA 6.3s``."""
    parts = [f"{view['completed']}/{view['total']} done: {tell_counts(view['counts'])}", duration(elapsed_s)]
    parts += [f"{who} stopped" for who in view["stopped"]]
    parts += [line.strip() for line in held_lines(view)]
    if left is not None and view["ended_at"] is None:
        parts.append(f"ETA {left}")
    return ", ".join(parts)


class _Look:
    """Looks at the tasks, but not so often that it costs much."""

    def __init__(self, load_tasks: LoadTasks | None) -> None:
        self._load = load_tasks
        self._next_at = 0.0
        self._told: set[str] = set()
        self.tasks: Sequence[Task] = ()

    def refresh(self, *, now: bool = False) -> None:
        """Read the tasks again if it is time for that, or `now`."""
        began = time.monotonic()
        if self._load is None or (began < self._next_at and not now):
            return
        self.tasks = self._load()
        ended = time.monotonic()
        self._next_at = ended + max(PLAIN_EVERY_S / 2, (ended - began) * LOOK_SHARE)

    def estimate(self, view: Mapping[str, Any]) -> str | None:
        """How much time is left."""
        from sessionrun.cli.standing import OVERTAKEN, elapsed_of
        from sessionrun.client.reading.eta import estimate_left, is_overtaken

        elapsed = elapsed_of(self.tasks, time.time())
        left_s = estimate_left(self.tasks, elapsed, view["max_parallel"])
        if left_s is None:
            return None
        return duration(left_s) + (OVERTAKEN if is_overtaken(self.tasks, elapsed) else "")

    def take_failures(self) -> list[str]:
        """A line for each task that failed since the last call."""
        bad = [task for task in self.tasks if task["word"] in (*BAD, "bounced")]
        new = [task for task in bad if task["id"] not in self._told]
        self._told |= {task["id"] for task in new}
        return [f"{name_task(task)}: {task_word(task)}" for task in new]

    def find_running(self) -> list[Task]:
        """The tasks that run."""
        return [task for task in self.tasks if task["status"] == "running"]


def name_task(task: Task) -> str:
    """A task for people: its number and its title."""
    return f"{task['num']} {escape_line(task['title'])}"


class PlainProgress:
    """A line on standard error when something changed, at most one a second."""

    def __init__(self, look: _Look) -> None:
        self._look = look
        self._began = time.monotonic()
        self._shown: tuple[Any, ...] = ()
        self._shown_at = 0.0

    def show(self, view: dict[str, Any]) -> None:
        """See `Progress.show`."""
        counts = (view["counts"], len(view["stopped"]), view["state"])
        now = time.monotonic()
        ended = view["ended_at"] is not None
        if counts == self._shown or (now - self._shown_at < PLAIN_EVERY_S and not ended):
            return
        self._shown, self._shown_at = counts, now
        if not ended:
            self._look.refresh()
        hint(describe(view, now - self._began, self._look.estimate(view)) + self._runs(view))

    def close(self) -> None:
        """See `Progress.close`."""

    def _runs(self, view: Mapping[str, Any]) -> str:
        """The names of the first tasks that run, as the end of a line."""
        running = [] if view["ended_at"] is not None else self._look.find_running()
        names = [clip(name_task(task), PLAIN_NAME_WIDTH) for task in running[:PLAIN_NAMES]]
        more = [f"{len(running) - PLAIN_NAMES} more"] if len(running) > PLAIN_NAMES else []
        return f": {', '.join([*names, *more])}" if names else ""


class LiveProgress:
    """A bar, the counters and what runs, redrawn in place (rich); failures, and at the end the counters, stay."""

    def __init__(self, stream: IO[str], look: _Look) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress
        from rich.progress import TextColumn

        self._began = time.monotonic()
        self._look = look
        self._stream = stream
        self._view: dict[str, Any] | None = None
        console = Console(file=stream, highlight=False)
        self._rich = RichProgress(TextColumn("{task.description}", markup=False), console=console, transient=True)
        self._line = self._rich.add_task("starting", total=None)
        self._rich.start()

    def show(self, view: dict[str, Any]) -> None:
        """See `Progress.show`."""
        self._view = view
        self._look.refresh(now=view["ended_at"] is not None)
        self._tell_failures()
        width = terminal_width(self._stream) - 1
        words = describe(view, time.monotonic() - self._began, self._look.estimate(view))
        lines = [clip(f"{draw_bar(view, width, self._stream)}{words}", width)]
        names = ", ".join(map(name_task, self._look.find_running()))
        lines += [clip(f"  {names}", width)] if names else []
        self._rich.update(self._line, description="\n".join(lines))

    def close(self) -> None:
        """See `Progress.close`."""
        self._rich.stop()
        if self._view is not None:
            words = describe(self._view, time.monotonic() - self._began)
            good = self._view["result"] == "succeeded"
            running = self._view["ended_at"] is None
            color = None if running else "green" if good else "red"
            mark = sign("open" if running else "done" if good else "failed", self._stream)
            click.echo(click.style(f"{mark} {words}", fg=color), file=self._stream)

    def _tell_failures(self) -> None:
        for line in self._look.take_failures():
            text = clip(f"{sign('failed', self._stream)} {escape(line)}", terminal_width(self._stream) - 1)
            self._rich.console.print(text, markup=False, style="red")


def draw_bar(view: dict[str, Any], width: int, stream: IO[str]) -> str:
    """A bar for what is done; nothing on a narrow terminal."""
    if width < 60 or not view["total"]:
        return ""
    full = 20 * int(view["completed"]) // int(view["total"])
    plain = sign("done", stream).isascii()
    done, left = ("#", "-") if plain else ("\u2501", "\u2504")
    return f"[{done * full}{left * (20 - full)}] "
