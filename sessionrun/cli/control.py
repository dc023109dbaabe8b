"""Asking a session's supervisor for something, and seeing it taken: what all verbs of control share.

Where nobody is left to take a request, the session's processes are started again for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sessionrun.cli.options import Duration
from sessionrun.client.lookup import choose_tasks, open_session
from sessionrun.client.view import load_history, load_view
from sessionrun.client.waiting import View
from sessionrun.model.errors import SessionrunError
from sessionrun.store.session import SessionDir

DEFAULT_TIMEOUT_S: Final = 60.0
EXIT_TIMEOUT: Final = 124
NOT_TAKEN: Final = "asked for, but nobody has taken the request yet"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def control_options(command: _Command) -> _Command:
    """`ID [TASK]...` and `--timeout`, of every verb that asks for something to be done."""
    command = click.option(
        "--timeout",
        type=Duration(),
        default=DEFAULT_TIMEOUT_S,
        metavar="TIME",
        help="How long to wait until it is done: 90, 10m; 0 = only ask.  [default: 60]",
    )(command)
    command = click.argument("tasks", nargs=-1, metavar="[TASK]...")(command)
    return click.argument("session_id", metavar="ID")(command)


class Target:
    """The session and the tasks that a verb of control is about, as they were when it began."""

    def __init__(self, results_dir: Path | None, session_id: str, tasks: tuple[str, ...]) -> None:
        self.session = open_session(results_dir, session_id)
        self.view = _load_latest(self.session)
        self.named = tasks
        self.tasks = choose_tasks(self.view, tasks)

    @property
    def ids(self) -> list[str]:
        """The ids of the tasks that were named, by whichever name; empty for all."""
        return [task["id"] for task in self.tasks] if self.named else []

    def reload(self) -> tuple[View, list[dict[str, Any]]]:
        """The session's view and the same tasks now."""
        view = _load_latest(self.session)
        return view, choose_tasks(view, self.named)


def _load_latest(session: SessionDir) -> View:
    """The session's view, from the logs if they are further: a disk that is full may keep status.json behind."""
    view = load_view(session)
    try:
        told, _, _ = load_history(session)
    except (SessionrunError, OSError):  # what was asked for is done all the same
        return view
    return told if told["seq"] > view["seq"] else view


def count_words(counts: Iterable[tuple[int, str]]) -> str:
    """Those counts that are not 0, for people."""
    return ", ".join(f"{count} {word}" for count, word in counts if count)
