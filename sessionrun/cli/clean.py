"""`clean`: take away sessions that have ended, and what they left behind and nobody needs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sessionrun.cli.options import (
    Age,
    Count,
    States,
    json_option,
    open_session,
    resolve_results_dir,
    results_dir_option,
)
from sessionrun.cli.render import escape, parse_time, print_json, warn
from sessionrun.cli.view import load_summary_view, load_view
from sessionrun.errors import InputError, SessionrunError
from sessionrun.removal import ENDED, Candidate, Removal, choose, measure_logs, remove_sessions, sweep_trash
from sessionrun.store import SessionDir, iterate_sessions

if TYPE_CHECKING:
    from sessionrun.model import SessionSpec, TaskSpec
    from sessionrun.workspaces.clean import Leftover


@click.command("clean")
@click.argument("session_ids", metavar="[ID]...", nargs=-1)
@click.option("--older-than", type=Age(), metavar="AGE", help="Sessions that ended so long ago: 7d, 12h, 30m.")
@click.option("--state", type=States(), metavar="STATUS,...", help="Only these.  [default: completed,cancelled]")
@click.option("--keep", type=Count(), metavar="N", help="All but the newest N.")
@click.option("--worktrees", is_flag=True, help="Worktrees and branches of ended sessions.")
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
    folder = resolve_results_dir(results_dir)
    sessions = [open_session(results_dir, one, changes=True) for one in session_ids] or list(
        iterate_sessions(folder)
    )
    if worktrees and not selects:
        named = bool(session_ids)
        records = [record for session in sessions for record in _clean(session, dry_run=dry_run, named=named)]
    else:
        found = find_candidates(sessions)
        states, age_s = state or ENDED, older_than or 0.0
        going, staying = choose(found, states=states, older_than_s=age_s, keep=keep or 0, now=time.time())
        records = [_describe(one) for one in staying if session_ids]
        records += _remove(going, worktrees=worktrees, dry_run=dry_run)
        if not dry_run:
            sweep_trash(folder)
    _print(records, as_json=as_json, dry_run=dry_run)


def _print(records: list[dict[str, Any]], *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json(records)
        return
    for record in records:
        verb = ("would remove" if dry_run else "removed") if record["removed"] else "kept"
        click.echo(escape(f"{verb} {record['what']} {record['name']}: {record['why']}"))
    if not records:
        click.echo("Nothing to clean.")


def find_candidates(sessions: Iterable[SessionDir]) -> list[Candidate]:
    """The sessions that can be read, with what decides about them; each once."""
    found = []
    for session in {one.path.absolute(): one for one in sessions}.values():
        sizes = measure_logs(session)
        try:
            view = load_summary_view(session)
            ended_at = view["ended_at"]
            moment = parse_time(ended_at) if ended_at else session.journal_path.stat().st_mtime
        except FileNotFoundError:
            continue  # removed, or not finished, while we looked
        except (SessionrunError, OSError, KeyError, TypeError, ValueError) as error:
            warn(f"{session.path}: cannot be read: {error}")
            continue
        found.append(Candidate(session, view, sizes, moment))
    return found


def _remove(going: list[Candidate], *, worktrees: bool, dry_run: bool) -> Iterator[dict[str, Any]]:
    """Remove sessions, where asked for after what they left in their repositories."""
    freed: set[str] = set()
    if worktrees:
        for one in going:
            for record in _clean(one.session, dry_run=dry_run):
                yield record
                if record["removed"]:
                    freed.add(record["name"])

    def find(session: SessionDir) -> list[str]:
        left = find_leftovers(session)
        return [name for name in left if not (dry_run and name in freed)]

    for removal in remove_sessions(going, find, dry_run=dry_run):
        yield _describe(removal)


def _describe(removal: Removal) -> dict[str, Any]:
    return {
        "session_id": removal.session.session_id,
        "what": "session",
        "name": str(removal.session.path.absolute()),
        "task": None,
        "removed": removal.removed,
        "why": removal.why,
    }


def find_leftovers(session: SessionDir) -> list[str]:
    """The worktrees and branches that the session's claims still have: without its directory nobody finds them.

    Raises:
        SessionrunError, OSError: that cannot be known.
    """
    from sessionrun.workspaces.clean import clean_leftover

    spec = session.load_spec()
    if spec.repository is None:
        return []
    worked = _attempts_that_worked(session)
    leftovers = [one for task in spec.tasks for one in _leftovers(session, spec, task, worked)]
    if not Path(spec.repository.common_dir).exists():  # with it all its branches went
        return [one.claim.worktree for one in leftovers if Path(one.claim.worktree).exists()]
    found = [finding.name for one in leftovers for finding in clean_leftover(one, dry_run=True)]
    return list(dict.fromkeys(found))


def _clean(session: SessionDir, *, dry_run: bool, named: bool = False) -> Iterator[dict[str, Any]]:
    """What went, or stays; of one that runs that is said only if it was `named`."""
    try:
        spec = session.load_spec()
        view = load_view(session)
    except (SessionrunError, OSError) as error:
        warn(f"{session.path}: cannot be read: {error}")
        return
    if view["status"] in ("running", "recovering"):
        if named:
            yield _describe(Removal(session, False, f"it is {view['status']}"))
        return
    if spec.repository is None:
        return
    if (session.path / "jobs").is_dir():
        from sessionrun.workspaces.clean import clean_lock

        with clean_lock(session.path):
            yield from _clean_tasks(session, spec, view, dry_run=dry_run)


def _clean_tasks(
    session: SessionDir, spec: SessionSpec, view: dict[str, Any], *, dry_run: bool
) -> Iterator[dict[str, Any]]:
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
    found: dict[tuple[str, str], Leftover] = {}
    for attempt, folder, claim in find_claims(session.path, task.id):
        name = claim.branch, claim.worktree  # claimed again, if nothing had come of an earlier claim
        used = worked is None or (task.id, attempt) in worked or (name in found and found[name].worked)
        found[name] = Leftover(
            repository=spec.repository,
            session_id=spec.session_id,
            task=task.id,
            title=title_of(task),
            links=task.links,
            claim=claim,
            folder=folder,
            worked=used,
        )
    yield from found.values()


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
