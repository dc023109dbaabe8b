"""`watch`: a session on the whole screen, as it goes, and single keys.

Its lines are made of a view alone.  The library `rich` shows them; the alternate screen keeps what stood in the
terminal before.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, NoReturn

import click

from sessionrun.cli.options import results_dir_option, session_argument
from sessionrun.cli.render import encodes, escape, escape_line, pad, sign
from sessionrun.cli.standing import draw_bar, row_lines, tell_doing, tell_left
from sessionrun.cli.status import comparison_lines, status_lines
from sessionrun.client.lookup import name_for_command, open_session
from sessionrun.client.reading.comparison import compare_tasks, name_each
from sessionrun.client.reading.outputs import OutputReader, open_outputs
from sessionrun.client.reading.telling import tell
from sessionrun.client.reading.view import load_view
from sessionrun.model.errors import SessionrunError
from sessionrun.model.wording import (
    clip,
    fit_counts,
    group_tasks,
    list_ids,
    name_tasks,
    needs_look,
    short_id,
    tell_reason,
    tell_session,
    tell_span,
    tell_state,
    took_s,
)
from sessionrun.model.words import IN_LANDING, is_matrix
from sessionrun.store.session import SessionDir

# --- the lines of the screen ---

_KEYS: Final = (
    "q quit",
    "? keys",
    "up/down",
    "enter why",
    "r retry",
    "c cancel",
    "l logs",
    "d diff",
    "h hold",
    "/ find",
)
"""The keys, those first that a narrow screen must show, too."""

ALL_KEYS: Final = (
    "up/down (or k and j) select a task  enter says why it stands so  l logs  d diff  r retry  c cancel  / find  "
    "f only what needs you  s in the order of the plan  h hold what waits, or release what is held  "
    "q leaves the session running"
)
ARROWS: Final[Mapping[str, int]] = {"up": -1, "k": -1, "down": 1, "j": 1}
_GRID_ROOM: Final = 3
"""A grid of arms may have one of so many parts of the screen."""

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
    as_planned: bool = False
    """Whether the tasks of a block are in the order of the plan."""
    find: str = ""
    """What ids or titles of shown tasks have in them."""
    message: str = ""
    """What the last key did, or asks; empty: the keys are shown."""


def choose_tasks(view: View, choice: Choice) -> list[list[dict[str, Any]]]:
    """The tasks that are shown: those that run, that need a person, that are done.

    What runs for longest stands first, and what ended last.
    """
    wanted = choice.find.casefold()
    tasks = [task for task in view["tasks"] if wanted in f"{task['id']} {task['title']}".casefold()]
    running = [task for task in tasks if task["status"] == "running"]
    needy = [task for task in tasks if task["status"] != "running" and needs_look(task)]
    done = [task for task in tasks if task["status"] == "completed" and not needs_look(task)]
    if not choice.as_planned:
        running.sort(key=lambda task: task["started_at"] or "")
        for block in (needy, done):
            block.sort(key=lambda task: task["ended_at"] or "", reverse=True)
    return [running, needy, [] if choice.only_attention else done]


def draw(view: View, choice: Choice, last: Mapping[str, str], now: float, size: tuple[int, int]) -> list[Line]:
    """The lines of a screen of so many columns and rows.

    `last` has the last line that a task printed, or that tells why it failed, by its id.
    """
    width, height = size
    head = _draw_head(view, now, size)
    waiting = [task for task in view["tasks"] if task["word"] == "waiting"]
    begin = f"{sign('waiting')} {len(waiting)} waiting: next "
    foot: list[Line] = [(begin + list_ids(waiting, max(8, width - len(begin))), "dim")] if waiting else []
    keys = ("  ".join(_KEYS[:shown]) for shown in range(len(_KEYS), 0, -1))
    fitting = next((line for line in keys if len(line) <= width), _KEYS[0])
    foot += [(line, "bold") for line in wrap(choice.message, width) or [fitting]]
    rows = _draw_blocks(view, choice, last, now, (width, height - len(head) - len(foot)))
    lines = [*head, *(rows or [("nothing to show", "dim")])]
    room = height - len(foot)  # the foot stays, whatever does not fit
    lines = [*lines[:room], *[("", "")] * (room - len(lines)), *foot]
    return [(clip(text, width), style) for text, style in lines]


def _draw_head(view: View, now: float, size: tuple[int, int]) -> list[Line]:
    """How the session stands: its counts as a bar and in words; what is held and why; what lands; a matrix."""
    width, height = size
    left, by_id = tell_left(view, now), name_tasks(view)
    begin = escape_line(f"{tell_session(view)}: {tell_state(view, now)}, {tell_span(took_s(view, now))}")
    end = f"{view['completed']}/{view['total']}"
    held = [task for task in view["tasks"] if task["word"] == "held" and task["status"] != "completed"]
    why = "; ".join(group.head for group in group_tasks(held, by_id, now))
    landing = [task for task in view["tasks"] if (task["landing"] or {}).get("status") in IN_LANDING]
    lands = " ".join(f"{short_id(task)} {task['landing']['status']}" for task in landing)
    counts = fit_counts(view["counts"], width)
    lines: list[Line] = [
        (pad(begin, max(0, width - len(end) - 1)) + f" {end}", "bold"),
        ("".join(part for _, part in draw_bar(view, width)), ""),
        (f"{counts}   {left}" if left else counts, "red" if view["failed"] else ""),
        *([(escape_line(why), "yellow")] if why else []),
        *([(escape_line(f"landing: {lands}"), "cyan")] if lands else []),
    ]
    if is_matrix(view["tasks"]):
        record = compare_tasks(view, view["tasks"], "model")
        grid = comparison_lines(record, width, show_all=False)
        rows = {cell["task"] for group in record["groups"] for cell in group["cells"]}
        needed = 2 + len(rows)  # its head, and what was solved
        lines += [(line, "") for line in grid[: height // _GRID_ROOM]] if needed <= height // _GRID_ROOM else []
    return lines


def _draw_blocks(
    view: View, choice: Choice, last: Mapping[str, str], now: float, size: tuple[int, int]
) -> list[Line]:
    """The rows of the blocks with a rule between two; a block that does not fit says how many more there are."""
    blocks, by_id, names = choose_tasks(view, choice), name_tasks(view), name_each(view["tasks"])
    place = find_place(list(chain(*blocks)), choice.selected)
    made: list[tuple[str | View, str]] = []
    begin = 0
    rules = max(0, sum(map(bool, blocks)) - 1)
    shares = _share(size[1] - rules, *map(len, blocks))
    for block, room in zip(blocks, shares, strict=True):
        rows = max(0, room - 1) if len(block) > room else room
        # the selected one is in the middle of what is shown, or as near to it as the ends of the block let it
        first = min(max(0, min(place - begin, len(block) - 1) - rows // 2), max(0, len(block) - rows))
        made += [(("─" if encodes("─") else "-") * size[0], "dim")] if made and room else []
        for number, task in enumerate(block[first : first + rows], begin + first):
            is_red = task["status"] == "completed" and needs_look(task)
            made.append((task, "reverse" if number == place else "red" if is_red else ""))
        made += [(f"  and {len(block) - rows} more", "dim")] if room and len(block) > rows else []
        begin += len(block)

    def tell_last(task: View) -> str:
        if task["status"] == "running":
            return " ".join(filter(None, (tell_doing(task), last.get(task["id"]))))
        return " - ".join(filter(None, (tell_reason(task, by_id, now), last.get(task["id"]))))

    drawn = [part for part, _ in made if not isinstance(part, str)]
    named = [{**task, "id": names[task["id"]] if encodes("·") else short_id(task)} for task in drawn]
    lines = iter(row_lines(named, now, size[0], ends=[tell_last(task) for task in drawn]))
    return [(part if isinstance(part, str) else next(lines), style) for part, style in made]


def _share(room: int, running: int, needy: int, done: int) -> tuple[int, int, int]:
    """How many lines each block gets: what runs half of them, what needs a person the rest, then what is done."""
    first = min(running, max(room // 2, room - needy))
    second = min(needy, room - first)
    return first, second, max(0, min(done, room - first - second))


def find_place(shown: Sequence[View], selected: str | None) -> int:
    """Where the selected one is; the first one if it is not shown."""
    return next((place for place, each in enumerate(shown) if each["id"] == selected), 0)


# --- the screen ---

TICK_S: Final = 0.5

_ARROWS: Final = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)


class Screen:
    """The screen while it is shown; see `open_screen`."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self.live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._typed = b""

    @property
    def size(self) -> tuple[int, int]:
        return self._console.size.width, self._console.size.height

    def show(self, lines: Sequence[Line]) -> None:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="crop")
        for number, (line, style) in enumerate(lines):
            text.append(("\n" if number else "") + line, style=style or None)
        self.live.update(text, refresh=True)

    def read_key(self) -> str | None:
        """The next key: a character, `up` or `down`; None if none is pressed in time."""
        if not self._typed:
            ready, _, _ = select.select([sys.stdin], [], [], TICK_S)
            if not ready:
                return None
            self._typed = os.read(sys.stdin.fileno(), 1024)
            if not self._typed:
                raise KeyboardInterrupt  # the terminal is gone
        key = next((key for key in _ARROWS if self._typed.startswith(key)), self._typed[:1])
        self._typed = self._typed[len(key) :]
        return _ARROWS.get(key, key.decode("ascii", "ignore"))


@contextmanager
def open_screen() -> Iterator[Screen]:
    """The whole screen, with keys that come one by one and unseen; then the terminal is as it was."""
    screen, modes = Screen(), termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        with screen.live:
            yield screen
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


@contextmanager
def heed_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl+C does, also while a pager has the terminal."""

    def leave(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in _ENDS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# --- the verb ---

ASK_TIMEOUT_S: Final = 5.0
"""How long a key waits for the session to do what it asks."""

PAGES: Final = {"l": "logs", "d": "diff", "\n": "explain", "\r": "explain"}
"""Keys, and the verbs whose output they show in a pager."""

QUIT: Final = "q"


@click.command("watch")
@session_argument
@results_dir_option
def command(session_id: str, results_dir: Path | None) -> None:
    """Show session ID on the whole screen, as it goes: the newest if no ID is given.

    What runs stands first, then what needs you, then what is done.  Keys: q ends it, the session goes on; up
    and down (or k and j) select a task; Enter shows why it stands so, l its output, d what it changed; r tries it
    again, c cancels it after a question; h holds what waits, or releases what is held; / finds; f leaves out
    what is fine; s keeps the order of the plan.
    Where standard output is not a terminal, prints what `status` prints.
    """
    session = open_session(results_dir, session_id)
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        view = load_view(session)
        click.echo("\n".join(status_lines(session, view, view["tasks"])))
        return
    watcher, wanted = Watcher(session), ""
    with heed_signals():
        while wanted != QUIT:
            with open_screen() as screen:
                wanted = watcher.follow(screen)
            if wanted != QUIT:
                watcher.page(wanted)


class Watcher:
    """Reads the session, and does what keys ask."""

    def __init__(self, session: SessionDir) -> None:
        self._session = session
        self._choice = Choice()
        self._readers: dict[tuple[str, int], OutputReader] = {}
        self._last: dict[str, str] = {}
        self._why: set[tuple[str, int]] = set()
        self._answers: Callable[[str], None] | None = None
        self._view: dict[str, Any] = {}
        self._tasks: list[dict[str, Any]] = []

    def follow(self, screen: Screen) -> str:
        """Show the session and do what keys ask, until one asks for a page or to leave; see `press`."""
        while True:
            screen.show(self.draw(screen.size))
            key = screen.read_key()
            wanted = self.press(key) if key is not None else None
            if wanted is not None:
                return wanted

    def draw(self, size: tuple[int, int]) -> list[Line]:
        self._view = load_view(self._session)
        running, needy, done = choose_tasks(self._view, self._choice)
        self._tasks = [*running, *needy, *done]
        for task in running:
            self._read(task)
        for task in needy[: size[1]]:
            attempt = (task["id"], task["attempt"])
            if attempt not in self._why and task["status"] == "completed":
                self._why.add(attempt)  # the step at which it failed is read once
                section = tell(self._session, task)
                self._last[task["id"]] = section.lines[-1].strip() if section else ""
        return draw(self._view, self._choice, self._last, time.time(), size)

    def press(self, key: str) -> str | None:
        """Do what a key asks for, but return the verb whose output it wants to see, or `QUIT`."""
        choice = self._choice
        if self._answers is not None:
            self._answers(key)
            return None
        choice.message = ""
        if key == QUIT:
            return QUIT
        if key in ARROWS:
            place = find_place(self._tasks, choice.selected) + ARROWS[key]
            if self._tasks:
                choice.selected = self._tasks[min(max(place, 0), len(self._tasks) - 1)]["id"]
        elif key == "f":
            choice.only_attention = not choice.only_attention
        elif key == "s":
            choice.as_planned = not choice.as_planned
        elif key == "?":
            choice.message = ALL_KEYS
        elif key == "/":
            choice.find = ""
            self._type("")
        elif key == "h":
            self._ask("release" if self._view["counts"]["held"] else "hold")
        elif self._tasks and key in PAGES:
            return PAGES[key]
        elif self._tasks and key == "c":
            named = f"sessionrun cancel {name_for_command(self._view)} {short_id(self._selected)}"
            choice.message = f"{named}?  y: yes, any other key: no"
            self._answers = self._answer
        elif self._tasks and key == "r":
            self._ask("retry")
        return None

    @property
    def _selected(self) -> dict[str, Any]:
        return self._tasks[find_place(self._tasks, self._choice.selected)]

    def _answer(self, key: str) -> None:
        self._answers = None
        self._choice.message = ""
        if key == "y":
            self._ask("cancel")

    def _type(self, key: str) -> None:
        """Take a letter of what is looked for; Enter ends it."""
        self._answers = None if key in ("\n", "\r", "\x1b") else self._type
        if key in ("\x7f", "\b"):
            self._choice.find = self._choice.find[:-1]
        elif len(key) == 1 and key.isprintable():
            self._choice.find += key
        self._choice.message = f"find: {self._choice.find}  (Enter ends it)" if self._answers else ""

    def _ask(self, verb: str) -> None:
        from sessionrun.client import ask

        tasks = [] if verb in ("hold", "release") else [self._selected["id"]]
        what = f"of {short_id(self._selected)} " if tasks else ""
        try:
            reply = getattr(ask, verb)(self._session, tasks, timeout_s=ASK_TIMEOUT_S)
            self._choice.message = f"{verb} {what}" + ("is done" if reply.taken else "is asked for")
        except SessionrunError as error:
            self._choice.message = " ".join(str(error).split())

    def page(self, verb: str) -> None:
        words = [sys.executable, "-m", "sessionrun", verb, self._session.session_id, str(self._selected["num"])]
        words += ["--results-dir", str(self._session.path.parent)]
        words += ["-n", "2000"] if verb == "logs" else []
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
        text = (done.stdout + done.stderr).decode("utf-8", "backslashreplace")
        began = time.monotonic()
        click.echo_via_pager(escape(text) or "nothing\n")
        if time.monotonic() - began < 1.0:  # it was only printed, not paged, and no person has read it
            click.pause("-- any key goes back --")

    def _read(self, task: dict[str, Any]) -> None:
        key = (task["id"], task["attempt"])
        try:
            if key not in self._readers:
                self._readers[key] = open_outputs(self._session, task, 1)[0]
            lines = [line.text.strip() for line in self._readers[key].read_on()]
        except (SessionrunError, OSError):
            return
        last = next(filter(None, reversed(lines)), None)
        if last is not None:
            self._last[task["id"]] = last
