"""The options of `run` by which a command line says tasks itself, what all tasks have, and when they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sessionrun.cli.options import Count, Moment, ShellCommand

if TYPE_CHECKING:
    from sessionrun.client.planning.handover import AskedTasks

_Command = TypeVar("_Command", bound=Callable[..., Any])


def handing_options(command: _Command) -> _Command:
    """Add them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


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


_KEYS: Final = ("check", "setup", "rounds", "retries")
_SAY: Final = ("prompts", "each", "title", "env", "defaults")

_OPTIONS: Final = (
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
"""Most are hidden, for the help of `run` has to fit on a page: the manual has them."""
