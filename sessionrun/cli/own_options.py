"""Adds the options that only one input format has to `run`, and shows them: ``run --help-format NAME``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sessionrun.cli.options import Count
from sessionrun.dialects.own_options import OWN_OPTIONS, SHARED_OPTIONS, OwnOption

_Command = TypeVar("_Command", bound=Callable[..., Any])


def own_options(command: _Command) -> _Command:
    """The options of all formats, hidden from the help of the verb."""
    for dialect, options in OWN_OPTIONS.items():
        for option in reversed(options):
            command = _add(dialect, option)(command)
    return command


def help_format_options(known: tuple[str, ...]) -> Callable[[_Command], _Command]:
    """``--help-format``."""
    return click.option(
        "--help-format",
        type=click.Choice(known),
        metavar="FORMAT",
        is_eager=True,
        expose_value=False,
        callback=print_own_options,
        help="Show the options of one input format, and exit.",
    )


def _add(dialect: str, option: OwnOption) -> Callable[[_Command], _Command]:
    words, text = (*option.spellings, option.name), f"Format {dialect}: {option.help}"
    if option.value == "flag":
        return click.option(*words, is_flag=True, default=None, hidden=True, help=text)
    kinds: dict[str, click.ParamType[Any]] = {"count": Count(), "positive": Count(1)}
    return click.option(
        *words,
        type=kinds.get(option.value, click.STRING),
        multiple=option.value == "texts",
        metavar=option.metavar,
        hidden=True,
        help=text,
    )


def take_own(options: dict[str, Any]) -> dict[str, Any]:
    """Take the own options out of all; those that were given."""
    names = [option.name for known in OWN_OPTIONS.values() for option in known]
    values = {name: options.pop(name) for name in names}
    return {name: value for name, value in values.items() if value not in (None, ())}


def print_own_options(context: click.Context, _: click.Parameter, dialect: str | None) -> None:
    """Print the options of one format, and end."""
    if dialect is None or context.resilient_parsing:
        return
    rows = [
        (", ".join(option.spellings) + (f" {option.metavar}" if option.metavar else ""), option.help)
        for option in OWN_OPTIONS.get(dialect, ())
    ]
    shared = [(option.spelling, option.help) for option in SHARED_OPTIONS[dialect]]
    formatter = context.make_formatter()
    formatter.write_text(f"Options of the input format {dialect}; all others: sessionrun run --help.")
    for title, found in (("Only this format has", rows), ("In this format", shared)):
        if found:
            with formatter.section(title):
                formatter.write_dl(found)
    if not rows and not shared:
        formatter.write_text("It has none of its own.")
    click.echo(formatter.getvalue().rstrip())
    context.exit()
