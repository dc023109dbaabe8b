"""Options and arguments that several verbs share, and how a verb finds its session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from sessionrun.cli.render import escape_line
from sessionrun.client.lookup import DEFAULT_RESULTS_DIR, LAST
from sessionrun.model.durations import parse_age, parse_duration

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Count(click.ParamType[int]):
    """A whole number, not below `least`."""

    name = "number"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType.convert`."""
        text = str(value)
        if not (text.isascii() and text.isdigit()) or not self.least <= int(text[:19]) < 10**18:
            self.fail(f"{value!r} is not a whole number of {self.least} or more", param, ctx)
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


class ShellCommand(click.ParamType[str]):
    """A command for a shell that is not empty: an empty one succeeds and proves nothing."""

    name = "command"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See `click.ParamType.convert`."""
        text = str(value)
        if not text.strip():
            self.fail("must not be empty", param, ctx)
        return text


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
            self.fail(f"{value!r} is not an amount of US dollars over 0", param, ctx)
        return amount


class Size(click.ParamType[int]):
    """An amount of room in bytes, with or without a unit: ``500M``, ``20G``, ``1.5T``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType.convert`."""
        from sessionrun.model.sizes import parse_size

        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


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


class Moment(click.ParamType[float]):
    """A moment to come as seconds since the epoch: a time of day, a date with a time, or ``+`` and a duration."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        from sessionrun.model.times import parse_coming

        try:
            return parse_coming(str(value).strip(), time.time())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Fields(click.ParamType[tuple[str, ...]]):
    """Names of keys, with commas between them."""

    name = "fields"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """See `click.ParamType.convert`."""
        fields = tuple(word.strip() for word in str(value).split(","))
        if not all(fields):
            self.fail(f"{value!r}: write names with commas between them, such as id,outcome,reason", param, ctx)
        return fields


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


def cache_dir_option(command: _Command) -> _Command:
    """`--cache-dir`, whose default is the configuration's or the user's cache directory."""
    return click.option(
        "--cache-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Where mirrors and environments are kept.  [default: the user's cache directory]",
    )(command)


def name_options(command: _Command) -> _Command:
    """`--name` and `--label`, of verbs that start a session of the user's."""
    command = click.option(
        "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label the session; repeatable."
    )(command)
    return click.option("--name", metavar="TEXT", help="A name for the session.")(command)


def sync_option(command: _Command) -> _Command:
    """`--sync`, of verbs that start a session or let one live again."""
    return click.option("--sync", is_flag=True, help="Follow the session to its end, then print the results.")(
        command
    )


def quiet_option(command: _Command) -> _Command:
    """`-q`, of the same verbs."""
    return click.option("-q", "--quiet", is_flag=True, help="Print the session id alone.")(command)


def attempt_timeout_option(default: str) -> Callable[[_Command], _Command]:
    """`--timeout`, of the attempts at a task; `default` is told in the help."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=Duration(),
        metavar="TIME",
        help=f"Time limit of each attempt: 90, 10m, 2h; 0 = none.{default}",
    )


def ready_option(command: _Command) -> _Command:
    """`--no-ready`, of verbs that start a session."""
    return click.option(
        "--no-ready",
        "ready",
        is_flag=True,
        default=True,
        flag_value=False,
        help="Do not check first whether agents are signed in and ready.",
    )(command)


def session_argument(command: _Command) -> _Command:
    """`ID`: a session's id, an unambiguous beginning of it, its name, or `last`."""
    return click.argument("session_id", metavar="[ID]", default=LAST)(command)


def find_place(view: Mapping[str, Any]) -> str | None:
    """The results directory that a view's session is in, on one line; None where that is `./results`."""
    folder = os.path.dirname(view["results_dir"])
    return None if folder == os.path.abspath(DEFAULT_RESULTS_DIR) else escape_line(folder)


def place_lines(view: Mapping[str, Any]) -> list[str]:
    """The same as a line of its own for the head of a block; none for `./results`."""
    folder = find_place(view)
    return [] if folder is None else [f"Results directory: {folder}"]
