"""`queue split`: a goal becomes a group of small tasks of the queue."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from sessionrun.cli.backend import backend_option
from sessionrun.cli.options import Count, json_option, results_dir_option
from sessionrun.cli.render import escape_line, print_json
from sessionrun.client.queue.feeds import describe_task
from sessionrun.client.queue.splitting import SUBTASKS, Split, split
from sessionrun.model.errors import InputError, SessionrunError


@click.command("split")
@click.argument("goal", metavar="[GOAL]", required=False)
@click.option("--id", "task_id", metavar="ID", help="Split this task of the queue: it becomes the group.")
@click.option("--bead", "task_id", metavar="ID", hidden=True, help="The same as --id.")
@click.option(
    "--max-subtasks",
    "maximum",
    type=Count(2),
    default=SUBTASKS,
    metavar="N",
    help=f"Make no more than N tasks.  [default: {SUBTASKS}]",
)
@click.option("--agent", metavar="NAME", help="Which agent is asked.  [default: as for run]")
@click.option("--model", metavar="NAME", help="Which model is asked.")
@click.option("--no-llm", "by_rule", is_flag=True, help="Ask no agent: split by rule.")
@click.option("--dry-run", is_flag=True, help="Show the tasks; leave the queue as it is.")
@click.option("--dispatch", "dispatch", is_flag=True, help="Then start `queue work --group` with the new group.")
@backend_option
@json_option
@results_dir_option
def command(dispatch: bool, as_json: bool, **options: Any) -> int:
    """Split GOAL into small tasks that agents can do side by side.

    An agent is asked for them, in a session; a second time if the answer is bad.  Without an agent the goal is
    split by rule.  The tasks come into the queue as a group, which closes when they are closed.
    """
    if options["by_rule"] and (options["agent"] or options["model"]):
        raise InputError("queue split: --no-llm excludes --agent and --model")
    found = split(**options, on_start=lambda session: click.echo(f"session: {session.session_id}", err=True))
    record = _describe(found) if as_json else None
    if record is None:
        _print(found)
    if dispatch and found.group is not None:
        return _dispatch(found.group.id, options["backend"], options["results_dir"], record)
    if record is not None:
        print_json(record)
    return 0


def _describe(found: Split) -> dict[str, Any]:
    group = None if found.group is None else describe_task(found.group)
    tasks = [describe_task(task) for task in found.tasks]
    return {**found._asdict(), "group": group, "tasks": tasks}


def _print(found: Split) -> None:
    if found.group is None:
        for title in found.titles:
            click.echo(escape_line(f"would add: {title}"))
        return
    click.echo(escape_line(f"{found.group.id}: {found.group.title}"))
    for task in found.tasks:
        click.echo("  " + escape_line(f"{task.id}: {task.title}"))


def _dispatch(group: str, backend: str | None, results_dir: Path | None, beside: dict[str, Any] | None) -> int:
    """Do what `queue work` does for the new group; its exit code."""
    from sessionrun.cli.dispatch import work
    from sessionrun.cli.start import Launch

    options = {"feed": {"group": group} | ({"backend": backend} if backend else {})}
    how = Launch(
        results_dir, beside is not None, quiet=False, verbose=False, sync=False, ready=False, beside=beside
    )
    try:
        return work(options, how)
    except SessionrunError:
        click.echo(f"the tasks are in the queue; to start them: {_word_dispatch(group, backend)}", err=True)
        raise


def _word_dispatch(group: str, backend: str | None) -> str:
    words = ["sessionrun", "queue", "work", "--group", group, *(["--backend", backend] if backend else [])]
    return escape_line(shlex.join(words))
