"""`clean`: take away what ended sessions left behind and nobody needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sessionrun.cli.options import json_option, open_session, resolve_results_dir, results_dir_option
from sessionrun.cli.render import escape, print_json
from sessionrun.cli.view import load_view
from sessionrun.errors import InputError, SessionrunError
from sessionrun.store import SessionDir, iterate_sessions


@click.command("clean")
@click.argument("session_id", metavar="[ID]", required=False)
@click.option("--worktrees", is_flag=True, help="Worktrees and branches of ended sessions.")
@click.option("--dry-run", is_flag=True, help="Say what would go; change nothing.")
@json_option
@results_dir_option
def command(
    session_id: str | None, worktrees: bool, dry_run: bool, as_json: bool, results_dir: Path | None
) -> None:
    """Remove what session ID, or every session here that has ended, left in its repository.

    Worktrees go once all their work is on a branch; branches go when they hold nothing of their own or are
    merged into the branch they began from.  All else stays and is named.
    """
    if not worktrees:
        raise InputError("clean: say what to clean: --worktrees")
    if session_id is not None:
        sessions = [open_session(results_dir, session_id)]
    else:
        sessions = list(iterate_sessions(resolve_results_dir(results_dir)))
    records = [record for session in sessions for record in _clean(session, dry_run=dry_run)]
    if as_json:
        print_json(records)
        return
    for record in records:
        verb = ("would remove" if dry_run else "removed") if record["removed"] else "kept"
        click.echo(escape(f"{verb} {record['what']} {record['name']}: {record['why']}"))
    if not records:
        click.echo("Nothing to clean.")


def _clean(session: SessionDir, *, dry_run: bool) -> Iterator[dict[str, Any]]:
    from sessionrun.workspaces.clean import Leftover, clean_leftover, find_claims

    try:
        spec = session.load_spec()
        view = load_view(session)
    except (SessionrunError, OSError) as error:
        click.echo(f"sessionrun: warning: {session.path}: cannot be read: {error}", err=True)
        return
    if spec.repository is None or view["status"] in ("running", "recovering"):
        return
    tasks = {task.id: task for task in spec.tasks}
    worked = _attempts_that_worked(session)
    for task in view["tasks"]:
        if task["status"] == "running":
            click.echo(f"sessionrun: warning: task {task['id']} still runs; left alone", err=True)
            continue
        for attempt, claim in find_claims(session.path, task["id"]):
            leftover = Leftover(
                repository=spec.repository,
                session_id=spec.session_id,
                task=task["id"],
                title=task["title"],
                links=tasks[task["id"]].links,
                claim=claim,
                worked=(task["id"], attempt) in worked,
            )
            for finding in clean_leftover(leftover, dry_run=dry_run):
                yield {"session_id": spec.session_id, **asdict(finding)}


def _attempts_that_worked(session: SessionDir) -> set[tuple[str, int]]:
    """The attempts in which something of the user's or the agent's was started."""
    from sessionrun.journal import read_log
    from sessionrun.ledger import fold_ledger
    from sessionrun.model import parse_job_key

    ledger = fold_ledger(read_log(session.ledger_path).payloads)
    keys = [parse_job_key(text) for text, job in ledger.jobs.items() if job.tried]
    return {(key.task, key.attempt) for key in keys if key.phase not in ("prepare", "release")}
