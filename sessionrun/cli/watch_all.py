"""`watch --all`: all sessions of the user on the whole screen; Enter shows one of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sessionrun.cli.board import Line, View, pad
from sessionrun.cli.render import clip, duration, escape_line, session_word, short_time
from sessionrun.client.reading.listing import load_summaries
from sessionrun.model.times import parse_time
from sessionrun.store.session import SessionDir

KEYS: Final = "q quit  up/down select  enter shows it"
MOST: Final = 200
"""So many sessions are shown: those that live first, then the newest."""


class SessionList:
    """The sessions, and which one is selected."""

    def __init__(self) -> None:
        self._views: list[dict[str, Any]] = []
        self._selected: str | None = None

    def draw(self, size: tuple[int, int]) -> list[Line]:
        """The lines of the screen, as the sessions are now."""
        views = load_summaries(everywhere=True)
        self._views = sorted(views, key=lambda view: view["ended_at"] is not None)[:MOST]
        return draw_sessions(self._views, self._place(), time.time(), size)

    def press(self, key: str) -> SessionDir | None:
        """Do what a key asks for; the session that is to be shown, or None."""
        if key in ("up", "k", "down", "j") and self._views:
            place = self._place() + (-1 if key in ("up", "k") else 1)
            self._selected = self._views[min(max(place, 0), len(self._views) - 1)]["session_id"]
        chosen = self._views[self._place()] if key in ("\n", "\r") and self._views else None
        return SessionDir(Path(chosen["results_dir"])) if chosen is not None else None

    def _place(self) -> int:
        ids = [view["session_id"] for view in self._views]
        return ids.index(self._selected) if self._selected in ids else 0


def draw_sessions(
    views: Sequence[View], selected: int, now: float, size: tuple[int, int]
) -> list[tuple[str, str]]:
    """The lines of a screen; see `board.draw`."""
    width, height = size
    live = sum(view["ended_at"] is None for view in views)
    lines = [(clip(f"{len(views)} sessions, {live} not ended", width), "bold"), ("", "")]
    lines.append((clip(_row("ID", "STATUS", "DONE", "FAILED", "TIME", "STARTED", "NAME"), width), "dim"))
    room = max(1, height - len(lines) - 1)
    begin = min(max(0, selected - room // 2), max(0, len(views) - room))
    for number, view in enumerate(views[begin : begin + room], begin):
        style = "reverse" if number == selected else "red" if view["failed"] else ""
        lines.append((clip(_tell(view, now), width), style))
    lines += [("", "")] * (height - 1 - len(lines))
    return [*lines[: height - 1], (clip(KEYS, width), "bold")]


def _tell(view: View, now: float) -> str:
    end = parse_time(view["ended_at"]) if view["ended_at"] else now
    took = duration(max(0.0, end - parse_time(view["started_at"])))
    done, failed = f"{view['completed']}/{view['total']}", str(view["failed"] or "")
    started, name = short_time(view["started_at"]), escape_line(view["name"] or "")
    return _row(view["session_id"][:8], session_word(view, short=True), done, failed, took, started, name)


def _row(short: str, status: str, done: str, failed: str, took: str, started: str, name: str) -> str:
    cells = [
        pad(short, 8),
        pad(status, 12),
        done.rjust(9),
        failed.rjust(6),
        took.rjust(7),
        started.rjust(19),
        name,
    ]
    return " ".join(cells)
