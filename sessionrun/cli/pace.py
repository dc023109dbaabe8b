"""The options of `run` for how fast a session starts work, and how it stops after failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from sessionrun.cli.options import Duration, Size
from sessionrun.model.spec import Halt

if TYPE_CHECKING:
    from sessionrun.client.planning.pace import AskedPace

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Load(click.ParamType[float]):
    """A load of the machine: a number from 0."""

    name = "load"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        from sessionrun.model.sizes import check_load

        try:
            return check_load(float(value))
        except ValueError:
            self.fail(f"{value!r} is not a load such as 8 or 7.5", param, ctx)


def pace_options(command: _Command) -> _Command:
    """Add the options of `client.AskedPace`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_pace(options: Mapping[str, Any]) -> AskedPace:
    """What these options say."""
    from sessionrun.client.planning.pace import AskedPace

    return AskedPace(*(options[name] for name in AskedPace._fields))


_OPTIONS = (
    click.option(
        "--halt",
        type=click.Choice(get_args(Halt)),
        metavar="WHEN",
        hidden=True,
        help="After the last failure allowed, let tasks that run end (soon, the default), or end them (now).",
    ),
    click.option(
        "--max-load",
        type=Load(),
        metavar="L",
        hidden=True,
        help="Start no work while the load is above this, such as 8.",
    ),
    click.option(
        "--min-free-memory",
        type=Size(),
        metavar="SIZE",
        hidden=True,
        help="Start no work while less memory than this is free, such as 4G.",
    ),
    click.option(
        "--stagger",
        "stagger_s",
        type=Duration(),
        metavar="TIME",
        hidden=True,
        help="Let at least this much time pass between two starts of work.",
    ),
)
"""Hidden, for the help of `run` has to fit on a page: the manual has them."""
