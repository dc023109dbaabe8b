"""`clean`: take away what ended sessions left behind and nobody needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sessionrun.cli.options import json_option, open_session, resolve_results_dir, results_dir_option
from sessionrun.cli.render import escape, print_json, warn
from sessionrun.cli.view import load_view
from sessionrun.errors import InputError, SessionrunError
from sessionrun.store import SessionDir, iterate_sessions

if TYPE_CHECKING:
    from sessionrun.model import SessionSpec, TaskSpec
    from sessionrun.workspaces.clean import Leftover


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
    try:
        spec = session.load_spec()
        view = load_view(session)
    except (SessionrunError, OSError) as error:
        warn(f"{session.path}: cannot be read: {error}")
        return
    if spec.repository is None or view["status"] in ("running", "recovering"):
        return
    living, worked = _living_tasks(spec.session_id), _attempts_that_worked(session)
    for task, shown in zip(spec.tasks, view["tasks"], strict=False):
        if shown["status"] == "running" or task.id in living:
            warn(f"task {task.id} still runs; left alone")
            continue
        for leftover in _leftovers(session, spec, task, worked):
            yield from _clean_leftover(leftover, dry_run=dry_run)


def _leftovers(
    session: SessionDir, spec: SessionSpec, task: TaskSpec, worked: set[tuple[str, int]] | None
) -> Iterator[Leftover]:
    from sessionrun.model import title_of
    from sessionrun.workspaces.clean import Leftover, find_claims

    assert spec.repository is not None
    for attempt, claim in find_claims(session.path, task.id):
        yield Leftover(
            repository=spec.repository,
            session_id=spec.session_id,
            task=task.id,
            title=title_of(task),
            links=task.links,
            claim=claim,
            worked=worked is None or (task.id, attempt) in worked,
        )


def _clean_leftover(leftover: Leftover, *, dry_run: bool) -> Iterator[dict[str, Any]]:
    """What was found; a repository that is gone or cannot be written does not keep others from being cleaned."""
    from sessionrun.workspaces.clean import clean_leftover

    try:
        for finding in clean_leftover(leftover, dry_run=dry_run):
            yield {"session_id": leftover.session_id, **asdict(finding)}
    except (SessionrunError, OSError) as error:
        warn(f"task {leftover.task} of session {leftover.session_id}: {error}")


def _living_tasks(session_id: str) -> set[str]:
    """Tasks of which a process lives: what a job left behind, if nobody was there to stop it, may still write."""
    import psutil

    from sessionrun.processes import JOB_MARKER

    living = set()
    for process in psutil.process_iter():
        try:
            session, _, key = process.environ().get(JOB_MARKER, "").partition("/")
        except (psutil.Error, OSError, UnicodeDecodeError):
            continue
        if session == session_id:
            living.add(key.partition("/")[0])
    return living


def _attempts_that_worked(session: SessionDir) -> set[tuple[str, int]] | None:
    """The attempts in which something of the user's or the agent's may have been started; None = any.

    A job that is claimed may have run: only the claim is sure to have reached the disk before its process began.
    """
    from sessionrun.journal import read_log
    from sessionrun.ledger import fold_ledger
    from sessionrun.model import parse_job_key

    contents = read_log(session.ledger_path)
    if contents.damage_at is not None or not contents.payloads:
        return None
    keys = [parse_job_key(text) for text in fold_ledger(contents.payloads).jobs]
    return {(key.task, key.attempt) for key in keys if key.phase not in ("prepare", "release")}
