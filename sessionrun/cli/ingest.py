"""`queue take`: the follow-ups that agents wrote become tasks of the queue."""

from __future__ import annotations

from pathlib import Path

import click

from sessionrun.cli.backend import backend_option
from sessionrun.cli.options import Count, json_option
from sessionrun.cli.render import escape_line, print_json
from sessionrun.client.queue.feeds import MAX_TASKS, Ingested, ingest


@click.command("take")
@click.argument("files", metavar="[FILE...]", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--max",
    "maximum",
    type=Count(),
    default=MAX_TASKS,
    metavar="N",
    help=f"Add no more than N tasks; what is above waits for the next call.  [default: {MAX_TASKS}]",
)
@click.option("--group", metavar="GROUP", help="Put them into this group, which is made if there is none.")
@click.option("--dry-run", is_flag=True, help="Show what would be added; change nothing.")
@backend_option
@json_option
def command(
    files: tuple[Path, ...], maximum: int, group: str | None, dry_run: bool, backend: str | None, as_json: bool
) -> None:
    """Take follow-ups into the queue, and empty their files.

    Each line of suggested_tasks.txt is a task.  Taken are the file of the main checkout, those of tasks of the
    queue that have ended, and those on branches.  A line that an open task says already is left out.
    """
    found = ingest(files=files, maximum=maximum, group=group or None, backend=backend, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, **found._asdict()})
    else:
        _print(found, maximum, dry_run=dry_run)


def _print(found: Ingested, maximum: int, *, dry_run: bool) -> None:
    for task in found.added:
        head = "would add" if dry_run else task["id"]
        click.echo(escape_line(f"{head}: {task['title']}"))
    for one in found.kept:
        lines = f"{one['lines']} line{'s' * (one['lines'] != 1)}"
        click.echo(escape_line(f"kept {lines} of {one['source']}: --max is {maximum}"), err=True)
    verb = "would be added" if dry_run else "added"
    click.echo(f"{len(found.added)} {verb}, {len(found.known)} in the queue already", err=True)
