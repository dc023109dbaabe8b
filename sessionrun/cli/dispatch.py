"""`queue work`: agents work through the queue of this repository; a session as of `run`, but fed; and `split`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import (
    Answer,
    Count,
    flag,
    json_option,
    quiet_option,
    ready_option,
    results_dir_option,
    sync_option,
    valued,
    verb,
)
from sessionrun.cli.queue import backend_option
from sessionrun.cli.render import escape_line, hint, warn
from sessionrun.cli.run import Launch, options_of, start_fed, take_options
from sessionrun.client.planning.plan import Planned, plan
from sessionrun.input.rows import SETTINGS
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.queue.dispatch import find_configuration
from sessionrun.queue.open import MAX_SUBTASKS, describe_task

_SETTINGS: Final = tuple(row for row in SETTINGS if row.scope != "input" or row.name == "prompt_template")
_EPILOG: Final = "Also --prompt-template FILE, and all options of `run` but for its input: run --help-all."


@click.command("work", epilog=_EPILOG)
@click.argument("tasks", metavar="[TASK...]", nargs=-1)
@valued("--group", "GROUP", "Only the tasks of this group.")
@click.option("--once/--watch", "once", default=True, help="End when nothing is left, or wait for more tasks.")
@valued("--import listed", "FILE", "First put the tasks of this list into the queue.", click.Path(path_type=Path))
@valued("--ingest", Count(), "Let up to N follow-ups of agents come into the queue by themselves.")
@valued(
    "--config configuration",
    "FILE",
    "A dispatch_config.json.  [default: that in the top of the repository]",
    click.Path(path_type=Path),
)
@options_of(_SETTINGS, hidden=True)
@ready_option
@flag("--dry-run", "Show what would run first; change nothing.")
@flag("--verbose", "With --dry-run, print all of each prompt.", hidden=True)
@sync_option
@quiet_option
@backend_option
@json_option
@results_dir_option
def command(
    tasks: tuple[str, ...],
    group: str | None,
    once: bool,
    listed: Path | None,
    ingest: int | None,
    configuration: Path | None,
    backend: str | None,
    **options: Any,
) -> int:
    """Let agents work through the queue of this repository; land their work.

    Each TASK of the queue that is ready (default: all) goes to the next free worker.  A task that fails is tried
    again from the branch as it is then; at last it stays open, with the reason.  Prints the session id and returns
    at once.
    """
    feed = {"chosen": list(tasks), "group": group, "watch": not once, "ingest": ingest, "backend": backend}
    given = take_options(options)
    return work(given, feed, Launch(**options, leaves_held=once), configuration, listed)


def work(
    options: Mapping[str, Any],
    feed: Mapping[str, Any],
    how: Launch,
    configuration: Path | None = None,
    listed: Path | None = None,
) -> int:
    """Start a session that works through the queue, or say why there is nothing to do; the exit code.

    `configuration` is a ``dispatch_config.json``; None: that of the repository.  The tasks of `listed` come into
    the queue first.
    """
    file = configuration or find_configuration()
    given = {"feed": True} if file is None else str(file)
    dialect = "prompts" if file is None else "dispatch_config"
    asked = {**options, "feed": {name: value for name, value in feed.items() if value}, "dialect": dialect}
    planned = plan(given, asked, preview=how.dry_run)
    assert isinstance(planned, Planned)
    for warning in planned.warnings:
        warn(warning)
    return start_fed(planned, how, listed, file)


@verb("split", backend_option, json_option, results_dir_option)
@click.argument("goal", metavar="[GOAL]", required=False)
@valued("--id task_id", "ID", "Split this task of the queue: it becomes the group.")
@valued("--bead task_id", "ID", "The same as --id.", hidden=True)
@valued(
    "--max-subtasks maximum",
    Count(2),
    f"Make no more than N tasks.  [default: {MAX_SUBTASKS}]",
    default=MAX_SUBTASKS,
)
@valued("--agent", "NAME", "Which agent is asked.  [default: as for run]")
@valued("--model", "NAME", "Which model is asked.")
@flag("--no-llm by_rule", "Ask no agent: split by rule.")
@flag("--dry-run", "Show the tasks; leave the queue as it is.")
@flag("--dispatch dispatch", "Then start `queue work --group` with the new group.")
def split_goal(dispatch: bool, **options: Any) -> int:
    """Split GOAL into small tasks that agents can do side by side.

    An agent is asked for them, in a session; a second time if the answer is bad.  Without an agent the goal is
    split by rule.  The tasks come into the queue as a group, which closes when they are closed.
    """
    from sessionrun.queue.split import split

    if options["by_rule"] and (options["agent"] or options["model"]):
        raise InputError("queue split: --no-llm excludes --agent and --model")
    found = split(**options, on_start=lambda session: click.echo(f"session: {session.session_id}", err=True))
    group = None if found.group is None else describe_task(found.group)
    record = {**found._asdict(), "group": group, "tasks": [describe_task(task) for task in found.tasks]}
    lines = [escape_line(f"would add: {title}") for title in found.titles]
    if found.group is not None:
        lines = [escape_line(f"{found.group.id}: {found.group.title}")]
        lines += ["  " + escape_line(f"{task.id}: {task.title}") for task in found.tasks]
    starts = dispatch and found.group is not None
    Answer(None if starts else record, lines).print()
    if not starts:
        return 0
    feed = {"group": record["group"]["id"], "backend": options["backend"]}
    try:
        return work({}, feed, Launch(options["results_dir"], beside=record))
    except SessionrunError:
        words = [word for name, value in feed.items() if value for word in (f"--{name}", value)]
        command = shlex.join(["sessionrun", "queue", "work", *words])
        hint(escape_line(f"the tasks are in the queue; to start them: {command}"))
        raise
