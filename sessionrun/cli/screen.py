"""A whole screen of a terminal, redrawn in place, and single keys; at the end the terminal is as it was before.

The library `rich` draws; the alternate screen keeps what stood in the terminal before.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

TICK_S: Final = 0.5
SEEN_S: Final = 1.0
"""What ended sooner than this, no person has read."""

_ARROWS: Final = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)


class Screen:
    """The screen while it is shown; see `open_screen`."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._modes: list[Any] = []
        self._typed = b""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, as they are now."""
        return self._console.size.width, self._console.size.height

    def show(self, lines: Sequence[tuple[str, str]]) -> None:
        """Draw lines, each with its style."""
        text = Text(no_wrap=True, overflow="crop")
        for number, (line, style) in enumerate(lines):
            text.append(("\n" if number else "") + line, style=style or None)
        self._live.update(text, refresh=True)

    def read_key(self) -> str | None:
        """The next key: a character, `up` or `down`; None if none is pressed in time."""
        if not self._typed:
            ready, _, _ = select.select([sys.stdin], [], [], TICK_S)
            if not ready:
                return None
            self._typed = os.read(sys.stdin.fileno(), 1024)
            if not self._typed:
                return "q"  # the terminal is gone
        key = next((key for key in _ARROWS if self._typed.startswith(key)), self._typed[:1])
        self._typed = self._typed[len(key) :]
        return _ARROWS.get(key, key.decode("ascii", "ignore"))

    def begin(self) -> None:
        """Take the screen, and keys one by one and unseen."""
        self._modes = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        self._live.start()

    def end(self) -> None:
        """Give back the terminal as it was."""
        self._live.stop()
        if self._modes:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)

    def leave_for(self, work: Callable[[], None]) -> None:
        """Do something that uses the terminal itself."""
        self.end()
        began = time.monotonic()
        try:
            work()
            if time.monotonic() - began < SEEN_S:  # it was only printed, not paged
                click.pause("-- any key goes back --")
        finally:
            self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
            self.begin()


@contextmanager
def open_screen() -> Iterator[Screen]:
    """The screen; SIGTERM and SIGHUP end the block as Ctrl+C does."""

    def leave(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    screen = Screen()
    before = {number: signal.signal(number, leave) for number in _ENDS}
    try:
        screen.begin()
        yield screen
    finally:
        screen.end()
        for number, old in before.items():
            signal.signal(number, old)
