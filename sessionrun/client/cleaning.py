"""Cleaning: which sessions go, and what they left in their repositories that is not needed.

Choosing and removing directories is `removal`; worktrees and branches are the rooms' below.  What went and what
stays is told as records, the objects of ``clean --json``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionrun.client.leftovers import find_marked
from sessionrun.client.lookup import find_results_dir, open_session
from sessionrun.client.notices import notify
from sessionrun.client.removal import ENDED, Candidate, Removal, choose, measure_logs, remove_sessions, sweep_trash
from sessionrun.client.view import load_or_warn, load_summary_view, load_view
from sessionrun.model.errors import InputError, JobFileError, SessionrunError
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.times import parse_time
from sessionrun.runtime.history import load_tasks
from sessionrun.store.creation import sweep_unbegun
from sessionrun.store.session import SessionDir, iterate_sessions

if TYPE_CHECKING:
    from sessionrun.model.spec import SessionSpec, TaskSpec
    from sessionrun.workspaces.clean import Leftover

Record = dict[str, Any]
"""What went, or stays, and why: an object of ``clean --json``."""


def clean(
    session_ids: Sequence[str] = (),
    *,
    results_dir: Path | None = None,
    states: Sequence[str] | None = None,
    older_than_s: float | None = None,
    keep: int | None = None,
    worktrees: bool = False,
    dry_run: bool = False,
) -> list[Record]:
    """Remove sessions that have ended; say what went and what stays.  At least one thing must say which.

    Args:
        session_ids: ids, beginnings of them or names; of these it is also told why one stays.
        results_dir: where the sessions are, else the results directory in use.
        states: only sessions of these states, else those that completed or were cancelled.
        older_than_s: only sessions that ended so many seconds ago.
        keep: how many of the newest stay.
        worktrees: first remove their worktrees and branches that are not needed.
        dry_run: change nothing, and say what would go: `would_remove`.

    Raises:
        SessionNotFound: an id names none, or several.
        InputError: there is no such results directory, or nothing says which sessions are meant.
    """
    if not session_ids and (states, older_than_s, keep) == (None, None, None):
        raise InputError("clean: say which sessions: by ids, states, older_than_s or keep")
    folder = find_results_dir(results_dir)
    candidates = find_candidates(_find_sessions(folder, results_dir, session_ids))
    going, staying = choose(
        candidates, states=states or ENDED, older_than_s=older_than_s or 0.0, keep=keep or 0, now=time.time()
    )
    found = [_describe(one) for one in staying if session_ids]
    found += _name_once(_remove(going, worktrees=worktrees, dry_run=dry_run))
    if not dry_run:
        sweep_trash(folder)
        sweep_unbegun(folder)
    return [_finish(record, dry_run=dry_run) for record in found]


def clean_worktrees(
    session_ids: Sequence[str] = (), *, results_dir: Path | None = None, dry_run: bool = False
) -> list[Record]:
    """Remove worktrees and branches of ended sessions that are not needed; the sessions stay.

    Raises:
        SessionNotFound: an id names none, or several.
        InputError: there is no such results directory.
    """
    sessions = _find_sessions(find_results_dir(results_dir), results_dir, session_ids)
    named = bool(session_ids)
    found = [record for session in sessions for record in _clean(session, dry_run=dry_run, named=named)]
    return [_finish(record, dry_run=dry_run) for record in _name_once(found)]


def _find_sessions(folder: Path, results_dir: Path | None, session_ids: Sequence[str]) -> list[SessionDir]:
    return [open_session(results_dir, one) for one in session_ids] or list(iterate_sessions(folder))


def _finish(record: Record, *, dry_run: bool) -> Record:
    """What is gone is `removed`; what a dry run lets stay is not, but says whether it would go."""
    goes = record["removed"]
    return {**record, "removed": goes and not dry_run, "would_remove": goes if dry_run else None}


def _name_once(records: Iterable[Record]) -> list[Record]:
    """Sessions of the same ids may have claimed the same names, one after the other; what went counts."""
    named: dict[tuple[object, ...], Record] = {}
    for record in records:
        name = record["repository"], record["what"], record["name"]
        if name not in named or record["removed"]:
            named[name] = record
    return list(named.values())


def find_candidates(sessions: Iterable[SessionDir]) -> list[Candidate]:
    """The sessions that can be read, with what decides about them; each once."""
    found = []
    for session in {one.path.absolute(): one for one in sessions}.values():
        sizes = measure_logs(session)
        view = load_or_warn(session, load_summary_view)
        if view is None:
            continue
        try:
            ended_at = view["ended_at"]
            moment = parse_time(ended_at) if ended_at else session.journal_path.stat().st_mtime
        except FileNotFoundError:
            continue  # removed while we looked
        found.append(Candidate(session, view, sizes, moment))
    return found


def _remove(going: list[Candidate], *, worktrees: bool, dry_run: bool) -> Iterator[Record]:
    """Remove sessions, where asked for after what they left in their repositories."""
    freed: set[str] = set()
    if worktrees:
        for one in going:
            for record in _clean(one.session, dry_run=dry_run):
                yield record
                if record["removed"]:
                    freed.add(record["name"])

    emptied: list[Record] = []

    def find(session: SessionDir) -> list[str]:
        left, empty = find_leftovers(session)
        if empty and not left and not dry_run:
            emptied.extend(_clean(session, dry_run=False))
        return [name for name in left if not (dry_run and name in freed)]

    for removal in remove_sessions(going, find, dry_run=dry_run):
        yield from emptied
        emptied.clear()
        yield _describe(removal)
    yield from emptied


def _describe(removal: Removal) -> Record:
    return {
        "session_id": removal.session.session_id,
        "repository": None,
        "what": "session",
        "name": str(removal.session.path.absolute()),
        "task": None,
        "removed": removal.removed,
        "why": removal.why,
    }


def find_leftovers(session: SessionDir) -> tuple[list[str], list[str]]:
    """The worktrees and branches that the session's claims still have, and branches of it that hold nothing.

    Only the session's directory leads to the first; the second hold no work.

    Raises:
        SessionrunError, OSError: that cannot be known.
    """
    from sessionrun.workspaces.clean import NOTHING_OWN, clean_leftover

    spec = session.load_spec()
    if not any(map(has_worktree, spec.tasks)):
        return [], []
    worked = _attempts_that_worked(session)
    leftovers: list[Leftover] = []
    gone: list[Leftover] = []
    for task in load_tasks(session).values():
        found, unreadable = _leftovers(session, spec, task, worked)
        if unreadable:
            raise unreadable[0]
        for one in found:  # where the repository is gone, all its branches went with it
            (leftovers if Path(one.repository.common_dir).exists() else gone).append(one)
    findings = [finding for one in leftovers for finding in clean_leftover(one, dry_run=True)]
    empty = {one.name for one in findings if one.what == "branch" and one.removed and one.why == NOTHING_OWN}
    left = dict.fromkeys(one.name for one in findings if one.name not in empty)
    left |= dict.fromkeys(one.claim.worktree for one in gone if Path(one.claim.worktree).exists())
    return list(left), list(empty)


def _clean(session: SessionDir, *, dry_run: bool, named: bool = False) -> Iterator[Record]:
    """What went, or stays; of one that runs that is said only if it was `named`."""
    try:
        spec = session.load_spec()
        view = load_view(session)
    except (SessionrunError, OSError) as error:
        notify(f"{session.path}: cannot be read: {error}")
        return
    if view["status"] in ("running", "recovering"):
        if named:
            yield _describe(Removal(session, False, f"it is {view['status']}"))
        return
    if not any(map(has_worktree, spec.tasks)):
        return
    if (session.path / "jobs").is_dir():
        from sessionrun.workspaces.clean import clean_lock

        try:
            with clean_lock(session.path):
                yield from _clean_tasks(session, spec, view, dry_run=dry_run)
        except (SessionrunError, OSError) as error:
            notify(f"{session.path}: cannot be cleaned: {error}")


def _clean_tasks(
    session: SessionDir, spec: SessionSpec, view: dict[str, Any], *, dry_run: bool
) -> Iterator[Record]:
    living = {one.task for one in find_marked().get(spec.session_id, ())}  # it may still write there
    worked = _attempts_that_worked(session)
    tasks = load_tasks(session)
    for shown in view["tasks"]:
        task = tasks[shown["id"]]
        if shown["status"] == "running" or task.id in living:
            notify(f"task {task.id} still runs; left alone", again=True)
            continue
        leftovers, unreadable = _leftovers(session, spec, task, worked)
        for leftover in leftovers:
            yield from _clean_leftover(leftover, dry_run=dry_run)
        for fault in unreadable:
            yield _describe_unreadable(spec, task, shown, fault)


def _describe_unreadable(spec: SessionSpec, task: TaskSpec, shown: dict[str, Any], fault: JobFileError) -> Record:
    """Say that a claim cannot be read, and that its worktree stays: by its path, or that of the claim."""
    repository = repository_of(spec, task)
    return {
        "session_id": spec.session_id,
        "repository": repository and repository.top,
        "what": "worktree",
        "name": shown["worktree"] or fault.path,
        "task": shown["id"],
        "removed": False,
        "why": f"its claim cannot be read: {fault}",
    }


def _leftovers(
    session: SessionDir, spec: SessionSpec, task: TaskSpec, worked: set[tuple[str, int]] | None
) -> tuple[list[Leftover], list[JobFileError]]:
    """What the claims of a task tell of, each name once, and the claims that cannot be read."""
    from sessionrun.model.spec import title_of
    from sessionrun.workspaces.clean import Leftover, find_claims

    found: dict[tuple[str, str], Leftover] = {}
    unreadable: list[JobFileError] = []
    for attempt, folder, claim in find_claims(session.path, task.id):
        if isinstance(claim, JobFileError):
            unreadable.append(claim)
            continue
        repository = repository_of(spec, task, claim.start)
        if repository is None:
            continue  # no job of ours makes a claim there
        name = claim.branch, claim.worktree  # claimed again, if nothing had come of an earlier claim
        used = worked is None or (task.id, attempt) in worked or (name in found and found[name].worked)
        found[name] = Leftover(
            repository=repository,
            session_id=spec.session_id,
            task=task.id,
            title=title_of(task),
            links=task.links,
            claim=claim,
            folder=folder,
            worked=used,
            upstream=task.upstream,
        )
    return list(found.values()), unreadable


def _clean_leftover(leftover: Leftover, *, dry_run: bool) -> Iterator[Record]:
    """What was found; a repository that is gone or cannot be written does not keep others from being cleaned."""
    from sessionrun.workspaces.clean import clean_leftover

    try:
        for finding in clean_leftover(leftover, dry_run=dry_run):
            yield {
                "session_id": leftover.session_id,
                "repository": leftover.repository.top,
                **asdict(finding),
            }
    except (SessionrunError, OSError) as error:
        notify(f"task {leftover.task} of session {leftover.session_id}: {error}")


def _attempts_that_worked(session: SessionDir) -> set[tuple[str, int]] | None:
    """The attempts in which something of the user's or the agent's may have been started; None = any.

    A job that is claimed may have run: only the claim is sure to have reached the disk before its process began.
    """
    from sessionrun.model.keys import parse_job_key
    from sessionrun.store.journal import read_log
    from sessionrun.store.ledger import fold_ledger

    contents = read_log(session.ledger_path)
    if contents.damage_at is not None or not contents.payloads:
        return None
    try:
        keys = [parse_job_key(text) for text in fold_ledger(contents.payloads).jobs]
    except ValueError:  # a record that is whole and makes no sense
        return None
    return {(key.task, key.attempt) for key in keys if key.phase not in ("prepare", "release")}
