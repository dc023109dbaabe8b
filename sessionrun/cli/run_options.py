"""Options of `run`: those by which a command line says tasks itself, those of pace, those of one input format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click

from sessionrun.cli.options import Count, Duration, Load, Moment, ShellCommand, Size, add_options
from sessionrun.input.own_options import OWN_OPTIONS, SHARED_OPTIONS, OwnOption
from sessionrun.model.spec import Halt

if TYPE_CHECKING:
    from sessionrun.client.planning.handover import AskedTasks

_Command = TypeVar("_Command", bound=Callable[..., Any])


def take_tasks(options: Mapping[str, Any]) -> AskedTasks | None:
    """What they say of the tasks; None: nothing.

    Raises:
        InputError: a word is no KEY=VALUE.
    """
    if not any(options[name] not in (None, ()) for name in (*_KEYS, *_SAY)):
        return None
    from sessionrun.client.planning.handover import AskedTasks, refuse_bytes

    for option in ("check", "setup", "env", "default"):
        for word in options["defaults" if option == "default" else option]:
            refuse_bytes(f"--{option}", word)
    keys = dict(_split(word, "--default") for word in options["defaults"])
    keys = {key: _read_value(value) for key, value in keys.items()}
    given = {name: options[name] for name in _KEYS if options[name] not in (None, ())}
    given |= {"env": dict(_split(word, "--env") for word in options["env"])} if options["env"] else {}
    return AskedTasks(options["prompts"], options["each"], options["title"], {**keys, **given})


def _split(word: str, option: str) -> tuple[str, str]:
    from sessionrun.model.errors import InputError

    key, equals, value = word.partition("=")
    if not key or not equals:
        raise InputError(f"{option} {word!r}: write KEY=VALUE")
    return key, value


def _read_value(text: str) -> Any:
    """JSON, or else the text itself."""
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


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


own_options = add_options(*(_add(dialect, one) for dialect, known in OWN_OPTIONS.items() for one in known))
"""The options of all formats, hidden from the help of the verb."""


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


_KEYS: Final = ("check", "setup", "rounds", "retries")
_SAY: Final = ("prompts", "each", "title", "env", "defaults")

handing_options = add_options(
    click.option(
        "--prompt",
        "-p",
        "prompts",
        multiple=True,
        metavar="TEXT",
        help="A task's prompt, instead of FILE; - is standard input; repeatable.",
    ),
    click.option(
        "--each",
        metavar="ITEMS",
        help="Each prompt for each file of a pattern, line of @FILE or of -: write {} in it.",
    ),
    click.option("--title", metavar="TEXT", hidden=True, help="With -p: the title of the tasks."),
    click.option(
        "--check",
        type=ShellCommand(),
        multiple=True,
        metavar="COMMAND",
        hidden=True,
        help="Must exit 0 before work counts; repeatable.",
    ),
    click.option(
        "--rounds", type=Count(1), metavar="N", hidden=True, help="How many rounds of work and check at most."
    ),
    click.option(
        "--retries", type=Count(), metavar="N", hidden=True, help="How often a failed task is tried again."
    ),
    click.option(
        "--setup",
        type=ShellCommand(),
        multiple=True,
        metavar="COMMAND",
        hidden=True,
        help="Runs in the task's directory before the agent; repeatable.",
    ),
    click.option("--env", multiple=True, metavar="NAME=VALUE", hidden=True, help="A variable of all tasks."),
    click.option(
        "--default",
        "defaults",
        multiple=True,
        metavar="KEY=VALUE",
        hidden=True,
        help="Any key of defaults in the input, such as priority=3; VALUE is JSON or text.",
    ),
    click.option(
        "--max-failures",
        type=Count(1),
        metavar="N",
        hidden=True,
        help="Start nothing more after so many failed tasks.",
    ),
    click.option(
        "--notify",
        multiple=True,
        type=ShellCommand(),
        metavar="COMMAND|URL",
        hidden=True,
        help="Is told of the end, and of the first failure, hold and landing; repeatable.",
    ),
    click.option(
        "--cluster", metavar="ADDRESS|slurm", hidden=True, help="Run the jobs on a cluster's nodes, or as Slurm's."
    ),
    click.option(
        "--slurm-option",
        "slurm",
        multiple=True,
        metavar="KEY=VALUE",
        hidden=True,
        help="An option of sbatch for these jobs, such as partition=short; repeatable.",
    ),
    click.option("--hold", is_flag=True, hidden=True, help="Start no task until `release`."),
    click.option(
        "--at",
        "starts_at",
        type=Moment(),
        metavar="TIME",
        hidden=True,
        help="Start no task before: 18:30, 2026-11-30T08:00, +2h.",
    ),
)
"""Those that say tasks, what all tasks have, and when they start."""

pace_options = add_options(
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
"""Those that say how fast a session starts work, and how it stops after failures.

Most of both are hidden, for the help of `run` has to fit on a page: the manual has them.
"""
