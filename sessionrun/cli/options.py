"""Options and arguments that several verbs share, and how a verb finds its session."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from sessionrun.cli.render import escape_line
from sessionrun.durations import parse_age, parse_duration
from sessionrun.errors import InputError
from sessionrun.lookup import LAST, find_session
from sessionrun.store import SessionDir

_Command = TypeVar("_Command", bound=Callable[..., Any])

DEFAULT_RESULTS_DIR = "results"
_CONFIGURATION = "sessionrun.configuration"
"""Where Click's context keeps that a broken configuration was told of."""
KNOWN_IDS = 5
"""How many ids of tasks are named to somebody who named one that there is not."""


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


class Duration(click.ParamType[float]):
    """A time span in seconds: a number of them, or text such as ``90s``, ``15m``, ``1h30m``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(f"{error}, not {str(value)!r}", param, ctx)


class Age(click.ParamType[float]):
    """How long ago, in seconds; it needs a unit: ``7d``, ``12h``, ``1h30m``."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        try:
            return parse_age(str(value).strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Dollars(click.ParamType[float]):
    """An amount of US dollars over 0."""

    name = "dollars"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        try:
            amount = float(str(value).removeprefix("$"))
        except ValueError:
            amount = 0.0
        if not 1e-6 <= amount <= 1e9:
            self.fail(f"{value!r} is no amount of US dollars over 0", param, ctx)
        return amount


class Since(click.ParamType[float]):
    """A moment as seconds since the epoch: a date, perhaps with a time and an offset, or an age such as ``7d``."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        import time
        from datetime import datetime

        text = str(value).strip()
        try:
            return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError, OSError):
            pass
        try:
            return time.time() - parse_age(text)
        except ValueError as error:
            self.fail(f"{error}, and not a date such as 2026-11-30 or 2026-11-30T18:00", param, ctx)


class States(click.ParamType[tuple[str, ...]]):
    """States of sessions that may be removed, with commas between them."""

    name = "states"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """See `click.ParamType.convert`."""
        from sessionrun.removal import REMOVABLE

        words = tuple(str(value).split(","))
        if not set(words) <= set(REMOVABLE):
            self.fail(f"{value!r}: only sessions that are {', '.join(REMOVABLE)} can be removed", param, ctx)
        return words


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
    """`ID`: a session's id, an unambiguous beginning of it, its name, or `last`."""
    return click.argument("session_id", metavar="[ID]", default=LAST)(command)


def resolve_results_dir(given: Path | None) -> Path:
    """The results directory in use: flag, environment, configuration, `./results`."""
    if given is not None:
        return given
    from sessionrun.config import load_results_dir

    found = load_results_dir(Path.cwd(), os.environ)
    if found.problem:
        _warn_of_configuration(found.problem)
    return found.results_dir or Path(DEFAULT_RESULTS_DIR)


def _warn_of_configuration(problem: str) -> None:
    """Say it once in each run; a launch refuses it as an error before it comes here."""
    from sessionrun.cli.render import warn

    told = click.get_current_context().meta
    if _CONFIGURATION not in told:
        told[_CONFIGURATION] = problem
        warn(f"{problem} (nothing can be launched until that is mended)")


def find_results_dir(given: Path | None) -> Path:
    """The same for verbs that do not make it: one that was given has to be there.

    Raises:
        InputError: it is not.
    """
    if given is not None and not given.is_dir():
        raise InputError(f"--results-dir: there is no directory {given}")
    return resolve_results_dir(given)


def open_session(results_dir: Path | None, session_id: str) -> SessionDir:
    """Find the session that a verb is about.

    Raises:
        SessionNotFound: none, or several.
    """
    return find_session(find_results_dir(results_dir), session_id)


def find_place(view: Mapping[str, Any]) -> str | None:
    """The results directory that a view's session is in, on one line; None where that is `./results`."""
    folder = os.path.dirname(view["results_dir"])
    return None if folder == os.path.abspath(DEFAULT_RESULTS_DIR) else escape_line(folder)


def place_lines(view: Mapping[str, Any]) -> list[str]:
    """The same as a line of its own for the head of a block; none for `./results`."""
    folder = find_place(view)
    return [] if folder is None else [f"Results directory: {folder}"]


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
        ids = [task["id"] for task in status["tasks"]]
        known = ", ".join(ids[:KNOWN_IDS]) + (f" and {len(ids) - KNOWN_IDS} more" if len(ids) > KNOWN_IDS else "")
        raise InputError(f"no task {missing[0]!r} in session {status['session_id']}; it has: {known or 'none'}")
    return [by_name[name] for name in wanted]
