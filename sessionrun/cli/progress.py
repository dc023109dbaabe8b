"""How far a session is: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from typing import IO, Any, Final

import click

from sessionrun.cli.render import duration
from sessionrun.client.waiting import Progress

PLAIN_EVERY_S: Final = 1.0


def make_progress(stream: IO[str]) -> Progress:
    """The display that fits the stream."""
    return LiveProgress(stream) if stream.isatty() else PlainProgress()


def describe(view: dict[str, Any], elapsed_s: float) -> str:
    """``2/5 done, 3 running, 0 failed, 4.2s, ETA 6.3s``."""
    parts = [f"{view['completed']}/{view['total']} done", f"{view['running']} running"]
    parts += [f"{view['failed']} failed", duration(elapsed_s)]
    parts += [f"{who} stopped" for who in view["stopped"]]
    if (view.get("budget") or {}).get("held"):
        parts.append(f"held: soft budget spent (sessionrun release {view['session_id']})")
    left = view["total"] - view["completed"]
    if view["completed"] and left:
        parts.append(f"ETA {duration(elapsed_s / view['completed'] * left)}")
    return ", ".join(parts)


class PlainProgress:
    """A line on standard error when something changed, at most one a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown: tuple[int, ...] = ()
        self._shown_at = 0.0

    def show(self, view: dict[str, Any]) -> None:
        """See `Progress.show`."""
        held = bool((view.get("budget") or {}).get("held"))
        counts = (view["completed"], view["running"], view["failed"], len(view["stopped"]), held)
        now = time.monotonic()
        ended = view["ended_at"] is not None
        if counts == self._shown or (now - self._shown_at < PLAIN_EVERY_S and not ended):
            return
        self._shown, self._shown_at = counts, now
        click.echo(describe(view, now - self._began), err=True)

    def close(self) -> None:
        """See `Progress.close`."""


class LiveProgress:
    """A bar and the counters, redrawn in place (rich)."""

    def __init__(self, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._began = time.monotonic()
        columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"))
        self._rich = RichProgress(*columns, console=Console(file=stream), transient=True)
        self._bar = self._rich.add_task("starting", total=None)
        self._rich.start()

    def show(self, view: dict[str, Any]) -> None:
        """See `Progress.show`."""
        text = describe(view, time.monotonic() - self._began)
        self._rich.update(self._bar, total=view["total"], completed=view["completed"], description=text)

    def close(self) -> None:
        """See `Progress.close`."""
        self._rich.stop()
