"""`clean`: take away sessions that have ended, and what they left behind that is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sessionrun.cli.options import Age, Count, States, json_option, results_dir_option
from sessionrun.cli.render import escape, print_json
from sessionrun.client.cleaning import clean, clean_worktrees
from sessionrun.model.errors import InputError


@click.command("clean")
@click.argument("session_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--older-than", type=Age(), metavar="AGE", help="Sessions that ended longer ago than this: 7d, 12h, 30m."
)
@click.option(
    "--state",
    type=States(),
    metavar="STATUS,...",
    help="Only sessions of these states, such as interrupted.  [default: completed,cancelled]",
)
@click.option("--keep", type=Count(), metavar="N", help="Keep the newest N sessions.")
@click.option("--worktrees", is_flag=True, help="Worktrees and branches that are no longer needed.")
@click.option("--dry-run", is_flag=True, help="Say what would go; change nothing.")
@json_option
@results_dir_option
def command(
    session_ids: tuple[str, ...],
    older_than: float | None,
    state: tuple[str, ...] | None,
    keep: int | None,
    worktrees: bool,
    dry_run: bool,
    as_json: bool,
    results_dir: Path | None,
) -> None:
    """Remove sessions that have ended, or with --worktrees what they left in their repositories.

    Sessions are chosen by ID, age, state or number; one that runs never goes, nor one whose worktrees or
    branches are still needed.  Worktrees go once all their work is on a branch; branches go when they hold
    nothing of their own or are merged into the branch they began from.  All else stays and is named.
    """
    selects = (older_than, state, keep) != (None, None, None)
    if not (selects or session_ids or worktrees):
        raise InputError("clean: say what to clean: an ID, --older-than, --state, --keep or --worktrees")
    if worktrees and not selects:
        records = clean_worktrees(session_ids, results_dir=results_dir, dry_run=dry_run)
    else:
        records = clean(
            session_ids,
            results_dir=results_dir,
            states=state,
            older_than_s=older_than,
            keep=keep,
            worktrees=worktrees,
            dry_run=dry_run,
        )
    if as_json:
        print_json(records)
    else:
        _print(records)


def _print(records: list[dict[str, Any]]) -> None:
    for record in records:
        verb = "would remove" if record["would_remove"] else "removed" if record["removed"] else "kept"
        click.echo(escape(f"{verb} {record['what']} {record['name']}: {record['why']}"))
    if not records:
        click.echo("Nothing to clean.")
