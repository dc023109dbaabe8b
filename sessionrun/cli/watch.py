"""`watch`: a session on the whole screen, as it goes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sessionrun.cli.board import Choice, choose_tasks, draw, find_place
from sessionrun.cli.options import results_dir_option
from sessionrun.client.lookup import LAST, open_session
from sessionrun.client.reading.logs import OutputReader, open_outputs
from sessionrun.client.reading.view import load_view
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.cli.screen import Screen

ASK_TIMEOUT_S: Final = 5.0
"""How long a key waits for the session to do what it asks."""

LOG_LINES: Final = "2000"


@click.command("watch")
@click.argument("session_id", metavar="[ID]", required=False)
@click.option("--all", "everywhere", is_flag=True, help="All your sessions; Enter shows one.")
@results_dir_option
def command(session_id: str | None, everywhere: bool, results_dir: Path | None) -> None:
    """Show session ID on the whole screen, as it goes: the newest if no ID is given.

    Keys: q ends it, the session goes on; up and down (or k and j) select a task; l shows its output, d what it
    changed; c cancels it after a question, r tries it again; f leaves out tasks that are fine.
    Where standard output is not a terminal, prints what `status` prints.
    """
    if everywhere and (session_id is not None or results_dir is not None):
        raise InputError("--all shows the sessions of all results directories: leave out ID and --results-dir")
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if everywhere and not is_terminal:
        raise InputError("watch --all needs a terminal; `sessionrun list --all` prints the sessions")
    session = None if everywhere else open_session(results_dir, session_id or LAST)
    if session is not None and not is_terminal:
        from sessionrun.cli.status import format_status

        view = load_view(session)
        click.echo(format_status(view, view["tasks"]))
        return
    from sessionrun.cli.screen import open_screen

    with open_screen() as screen:
        if session is None:
            _watch_all(screen)
        else:
            _watch_one(screen, Watcher(session))


def _watch_all(screen: Screen) -> None:
    from sessionrun.cli.watch_all import SessionList

    sessions = SessionList()
    while True:
        screen.show(sessions.draw(screen.size))
        key = screen.read_key()
        if key == "q":
            return
        chosen = sessions.press(key) if key is not None else None
        if chosen is not None:
            _watch_one(screen, Watcher(chosen))


def _watch_one(screen: Screen, watcher: Watcher) -> None:
    while True:
        screen.show(watcher.draw(screen.size))
        key = screen.read_key()
        if key == "q":
            return
        work = watcher.press(key) if key is not None else None
        if work is not None:
            screen.leave_for(work)


class Watcher:
    """Reads the session, and does what keys ask."""

    def __init__(self, session: SessionDir) -> None:
        self._session = session
        self._choice = Choice()
        self._readers: dict[tuple[str, int], OutputReader] = {}
        self._last: dict[str, str] = {}
        self._asked = False
        self._view: dict[str, Any] = {}
        self._tasks: list[dict[str, Any]] = []

    def draw(self, size: tuple[int, int]) -> list[tuple[str, str]]:
        """The lines of the screen, as the session is now."""
        self._view = load_view(self._session)
        self._tasks = choose_tasks(self._view, self._choice)
        for task in self._tasks:
            if task["status"] == "running":
                self._read(task)
        return draw(self._view, self._tasks, self._last, self._choice, time.time(), size)

    def press(self, key: str) -> Any:
        """Do what a key asks for; what has to be done with the whole terminal, or None."""
        if self._asked:
            self._answer(key)
            return None
        self._choice.message = ""
        if key in ("up", "k", "down", "j"):
            self._move(-1 if key in ("up", "k") else 1)
        elif key == "f":
            self._choice.only_attention = not self._choice.only_attention
        elif self._tasks and key in ("l", "d"):
            return lambda: self._page("logs" if key == "l" else "diff")
        elif self._tasks and key == "c":
            self._asked = True
            self._choice.message = f"Cancel task {self._selected['num']}?  y: yes, any other key: no"
        elif self._tasks and key == "r":
            self._ask("retry")
        return None

    @property
    def _selected(self) -> dict[str, Any]:
        return self._tasks[find_place(self._tasks, self._choice.selected)]

    def _move(self, step: int) -> None:
        if self._tasks:
            place = find_place(self._tasks, self._choice.selected) + step
            self._choice.selected = self._tasks[min(max(place, 0), len(self._tasks) - 1)]["id"]

    def _answer(self, key: str) -> None:
        self._asked = False
        self._choice.message = ""
        if key == "y":
            self._ask("cancel")

    def _ask(self, verb: str) -> None:
        from sessionrun.client.asking.control import cancel, retry

        task = self._selected
        try:
            reply = (cancel if verb == "cancel" else retry)(self._session, [task["id"]], timeout_s=ASK_TIMEOUT_S)
            self._choice.message = f"{verb} of task {task['num']}: " + ("done" if reply.taken else "asked for")
        except SessionrunError as error:
            self._choice.message = " ".join(str(error).split())

    def _page(self, verb: str) -> None:
        """Show output or changes of the selected task in the user's pager."""
        words = [sys.executable, "-m", "sessionrun", verb, self._session.session_id, str(self._selected["num"])]
        words += ["--results-dir", str(self._session.path.parent)]
        words += ["-n", LOG_LINES] if verb == "logs" else []
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
        from sessionrun.cli.render import escape

        text = (done.stdout + done.stderr).decode("utf-8", "backslashreplace")
        click.echo_via_pager(escape(text) or "nothing\n")

    def _read(self, task: dict[str, Any]) -> None:
        """The last line that the task's agent printed."""
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
