"""Options and arguments that several verbs share, and how a verb finds its session."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from sessionrun.errors import InputError
from sessionrun.store import SessionDir, find_session

_Command = TypeVar("_Command", bound=Callable[..., Any])

DEFAULT_RESULTS_DIR = "results"


class Count(click.ParamType[int]):
    """A whole number, not below `least`."""

    name = "number"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType.convert`."""
        text = str(value)
        if not (text.isascii() and text.isdigit()) or not self.least <= int(text[:19]) < 10**18:
            self.fail(f"{value!r} is no whole number of {self.least} or more", param, ctx)
        return int(text)


class Seconds(click.ParamType[float]):
    """A time in seconds: finite, not below 0."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not (math.isfinite(seconds) and seconds >= 0):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return seconds


def json_option(command: _Command) -> _Command:
    """`--json`: one JSON value on standard output."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")(command)


def results_dir_option(command: _Command) -> _Command:
    """`--results-dir`, whose default is the configuration's or `./results`."""
    return click.option(
        "--results-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Where sessions are kept.  [default: ./results]",
    )(command)


def session_argument(command: _Command) -> _Command:
    """`ID`: a session's id, an unambiguous beginning of it, or `last`."""
    return click.argument("session_id", metavar="[ID]", default="last")(command)


def resolve_results_dir(given: Path | None) -> Path:
    """The results directory in use: flag, environment, configuration, `./results`."""
    if given is not None:
        return given
    from sessionrun.config import load_results_dir

    return load_results_dir(Path.cwd(), os.environ) or Path(DEFAULT_RESULTS_DIR)


def open_session(results_dir: Path | None, session_id: str) -> SessionDir:
    """Find the session that a verb is about.

    Raises:
        SessionNotFound: none, or several.
    """
    return find_session(resolve_results_dir(results_dir), session_id)


def choose_tasks(status: dict[str, Any], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """The tasks of a status object that are meant, all when none is named; by id or by number.

    Raises:
        InputError: a name that is no task of the session.
    """
    if not wanted:
        return list(status["tasks"])
    by_name = {str(task["num"]): task for task in status["tasks"]}
    by_name |= {task["id"]: task for task in status["tasks"]}
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise InputError(f"no task {missing[0]!r} in session {status['session_id']}")
    return [by_name[name] for name in wanted]
