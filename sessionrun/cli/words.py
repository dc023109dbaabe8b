"""Options of the command line that are made of the table of settings, and what their words say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from sessionrun.cli.options import Moment
from sessionrun.input.kinds import Misfit
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import Setting

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Word(click.ParamType[Any]):
    """A word of the command line, as the value that a file would have; it has to fit its setting."""

    def __init__(self, row: Setting) -> None:
        self.name = row.name
        self._row = row

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        try:
            return self._row.read_word(str(value))
        except Misfit as misfit:
            problem = ": ".join(str(part) for part in (*misfit.path, misfit.problem))
            raise click.BadParameter(problem, ctx, param, f"'{self._row.spell()}'") from None


def options_of(
    rows: Iterable[Setting], *, hidden: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of some settings, in their order, for a command of Click."""
    made = [_make_option(row, hidden=hidden) for row in rows if row.option is not None]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(made):
            command = option(command)
        return command

    return add


def _make_option(row: Setting, *, hidden: bool) -> Decorator:
    spellings = [f" {word}" if word.startswith("/") else word for word in (*row.shown, *row.also)]
    if not row.metavar:
        return click.option(*spellings, row.name, is_flag=True, default=None, hidden=hidden, help=row.help)
    choices = row.kind.schema.get("enum")
    kind = Moment() if row.name == "starts_at" else click.Choice(choices) if choices else Word(row)
    return click.option(
        *spellings,
        row.name,
        type=kind,
        multiple=bool(row.many),
        metavar=row.metavar,
        hidden=hidden,
        help=row.help,
    )


def take_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take what was said of settings out of the parameters of a command: a value for each, as a file has it."""
    given = {name: options.pop(name) for name in BY_NAME if name in options}
    return {name: _gather(BY_NAME[name], value) for name, value in given.items() if value not in (None, ())}


def _gather(row: Setting, value: Any) -> Any:
    return dict(value) if row.many == "pairs" else list(value) if row.many else value
