"""Cleaning: which sessions go, and what they left in their repositories that is not needed.

`removal` chooses and removes directories; rooms below remove worktrees and branches.  The result is a list of
records, the objects of ``clean --json``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionrun.client.cleaning.books import find_repositories, sweep_books
from sessionrun.client.cleaning.gate_rooms import clean_gate_rooms, find_gated
from sessionrun.client.cleaning.leftovers import find_marked
from sessionrun.client.cleaning.removal import (
    ENDED,
    Candidate,
    Removal,
    choose,
    find_trash,
    measure_logs,
    remove_sessions,
    sweep_trash,
)
from sessionrun.client.lookup import DEFAULT_RESULTS_DIR, find_results_dir, open_session
from sessionrun.client.notices import notify
from sessionrun.client.reading.selection import STATES, Wanted
from sessionrun.client.reading.view import load_or_warn, load_summary_view, load_view
from sessionrun.model.errors import InputError, JobFileError, SessionrunError
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.times import parse_time
from sessionrun.runtime.export_places import sweep_left
from sessionrun.runtime.history import find_task, load_spec_now, load_tasks
from sessionrun.store.creation import find_unbegun, remove_results_dir, sweep_unbegun
from sessionrun.store.session import PREFIX, SessionDir, iterate_sessions

if TYPE_CHECKING:
    from sessionrun.model.places import Repository
    from sessionrun.model.spec import SessionSpec, TaskSpec
    from sessionrun.workspaces.clean import CleanResult, Leftover

Record = dict[str, Any]
"""What was removed, or stays, and why: an object of ``clean --json``."""


def clean(
    session_ids: Sequence[str] = (),
    *,
    results_dir: Path | None = None,
    states: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    since: float | None = None,
    older_than_s: float | None = None,
    keep: int | None = None,
    worktrees: bool = False,
    dry_run: bool = False,
) -> list[Record]:
    """Remove sessions that have ended; return what was removed and what stays.  An argument must choose them.

    Args:
        session_ids: ids, beginnings of ids, or names; if such a session stays, a record says why.
        results_dir: where the sessions are, else the results directory in use.
        states: only sessions of these states, else those that completed or were cancelled.
        labels: only sessions with all these labels.
        since: only sessions that began then (wall time) or later.
        older_than_s: only sessions that ended so many seconds ago.
        keep: how many of the newest stay.
        worktrees: first remove their worktrees and branches that are not needed.
        dry_run: change nothing, and return what would be removed: `would_remove`.

    Raises:
        SessionNotFound: an id names no session, or several.
        InputError: there is no such results directory or state, or no argument chooses sessions.
    """
    wanted = Wanted(tuple((labels or {}).items()), (), since)
    if not session_ids and wanted.is_empty and (states, older_than_s, keep) == (None, None, None):
        raise InputError("clean: say which sessions: by ids, states, labels, since, older_than_s or keep")
    unknown = [state for state in states or () if state not in STATES]
    if unknown:
        raise InputError(f"clean: no session has the state {unknown[0]!r}; there are: {', '.join(STATES)}")
    folder = find_results_dir(results_dir)
    candidates = find_candidates(_find_sessions(folder, results_dir, session_ids))
    going, staying = choose(
        candidates,
        states=states or ENDED,
        older_than_s=older_than_s or 0.0,
        keep=keep or 0,
        now=time.time(),
        wanted=wanted,
    )
    records = [_describe(removal) for removal in staying if session_ids]
    records += _name_once(_remove(going, worktrees=worktrees, dry_run=dry_run))
    gone = {record["name"] for record in records if record["removed"]}
    records += [record for record in _sweep(folder, dry_run=dry_run) if record["name"] not in gone]
    if gone and not dry_run and folder == Path(DEFAULT_RESULTS_DIR):  # another one was named, and stays
        remove_results_dir(folder)
    return [_finish(record, dry_run=dry_run) for record in records]


def clean_worktrees(
    session_ids: Sequence[str] = (), *, results_dir: Path | None = None, dry_run: bool = False
) -> list[Record]:
    """Remove worktrees and branches of ended sessions that are not needed; the sessions stay.

    Raises:
        SessionNotFound: an id names no session, or several.
        InputError: there is no such results directory.
    """
    sessions = _find_sessions(find_results_dir(results_dir), results_dir, session_ids)
    named = bool(session_ids)
    records = [record for session in sessions for record in _clean(session, dry_run=dry_run, named=named)]
    records += clean_gate_rooms(find_gated(sessions), dry_run=dry_run)
    return [_finish(record, dry_run=dry_run) for record in _name_once(records)]


def _sweep(folder: Path, *, dry_run: bool) -> Iterator[Record]:
    """Remove what removals and starts that were broken off left of sessions."""
    ends = (
        ("its removal was broken off", find_trash if dry_run else sweep_trash),
        ("its start was broken off", find_unbegun if dry_run else sweep_unbegun),
    )
    for why, find in ends:
        for path in find(folder):
            finding = {"what": "trash", "name": str(path.absolute()), "task": None, "removed": True, "why": why}
            yield {"session_id": path.name.partition(PREFIX)[2], "repository": None, **finding}


def _find_sessions(folder: Path, results_dir: Path | None, session_ids: Sequence[str]) -> list[SessionDir]:
    return [open_session(results_dir, session_id) for session_id in session_ids] or list(iterate_sessions(folder))


def _finish(record: Record, *, dry_run: bool) -> Record:
    """The record with `removed`; in a dry run that is false, and `would_remove` says what would go."""
    goes = record["removed"]
    record = {"id" if key == "task" else key: value for key, value in record.items()}
    return {**record, "removed": goes and not dry_run, "would_remove": goes if dry_run else None}


def _name_once(records: Iterable[Record]) -> list[Record]:
    """One record for each name: several sessions may have claimed it in turn; a removal counts."""
    named: dict[tuple[object, ...], Record] = {}
    for record in records:
        name = record["repository"], record["what"], record["name"]
        if name not in named or record["removed"]:
            named[name] = record
    return list(named.values())


def find_candidates(sessions: Iterable[SessionDir]) -> list[Candidate]:
    """Each session that can be read, once, with the facts that decide about its removal."""
    candidates = []
    for session in {session.path.absolute(): session for session in sessions}.values():
        sizes = measure_logs(session)
        view = load_or_warn(session, load_summary_view)
        if view is None:
            continue
        try:
            ended_at = view["ended_at"]
            moment = parse_time(ended_at) if ended_at else session.journal_path.stat().st_mtime
        except FileNotFoundError:
            continue  # removed while we looked
        candidates.append(Candidate(session, view, sizes, moment))
    return candidates


def _remove(going: list[Candidate], *, worktrees: bool, dry_run: bool) -> Iterator[Record]:
    """Remove sessions; with `worktrees`, first what they left in their repositories."""
    freed: set[str] = set()
    gated = find_gated([candidate.session for candidate in going])
    repositories = {candidate.session.path: find_repositories(candidate.session) for candidate in going}
    if worktrees:
        for candidate in going:
            for record in _clean(candidate.session, dry_run=dry_run):
                yield record
                if record["removed"]:
                    freed.add(record["name"])

    emptied: list[Record] = []

    def find(session: SessionDir) -> list[str]:
        left, empty = find_leftovers(session)
        if empty and not left:
            emptied.extend(_clean(session, dry_run=dry_run))
        return [name for name in left if not (dry_run and name in freed)]

    gone: set[Path] = set()
    for removal in remove_sessions(going, find, dry_run=dry_run):
        yield from emptied
        emptied.clear()
        yield _describe(removal)
        gone |= {removal.session.path} if removal.removed else set()
    yield from emptied
    yield from clean_gate_rooms(
        gated if worktrees else [one for one in gated if one[0].path in gone], dry_run=dry_run
    )
    if not dry_run:
        sweep_books(repository for path in gone for repository in repositories[path])


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

    Only the session's directory leads to the claimed ones; the empty branches hold no work.

    Raises:
        SessionrunError, OSError: a claim or the repository cannot be read.
    """
    from sessionrun.workspaces.clean import NOTHING_OWN, clean_leftover

    spec = load_spec_now(session)
    if not any(map(has_worktree, spec.tasks)):
        return [], []
    worked = _attempts_that_worked(session)
    leftovers: list[Leftover] = []
    gone: list[Leftover] = []
    for task in load_tasks(session).values():
        of_task, unreadable = _leftovers(session, spec, task, worked)
        if unreadable:
            raise unreadable[0]
        for leftover in of_task:  # where the repository is gone, all its branches went with it
            (leftovers if Path(leftover.repository.common_dir).exists() else gone).append(leftover)
    findings = [finding for leftover in leftovers for finding in clean_leftover(leftover, dry_run=True)]
    empty = {
        finding.name
        for finding in findings
        if finding.what == "branch" and finding.removed and finding.why == NOTHING_OWN
    }
    seats = list(find_seats(session, spec, dry_run=True))
    empty |= {finding.name for finding in seats if finding.removed}
    findings += seats
    left = dict.fromkeys(finding.name for finding in findings if finding.name not in empty)
    left |= dict.fromkeys(lost.claim.worktree for lost in gone if Path(lost.claim.worktree).exists())
    return list(left), list(empty)


def _clean(session: SessionDir, *, dry_run: bool, named: bool = False) -> Iterator[Record]:
    """What was removed, or stays; a session that runs is reported only if it was `named`."""
    try:
        spec = load_spec_now(session)
        view = load_view(session)
    except (SessionrunError, OSError) as error:
        notify(f"{session.path}: cannot be read: {error}")
        return
    if view["status"] in ("running", "recovering"):
        if named:
            yield _describe(Removal(session, False, f"it is {view['status']}"))
        return
    if not dry_run:
        sweep_left(spec.exports)
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
    living = {survivor.task for survivor in find_marked().get(spec.session_id, ())}  # these may write there
    worked = _attempts_that_worked(session)
    tasks = load_tasks(session)
    for shown in view["tasks"]:
        task = find_task(session, tasks, shown["id"])
        if shown["status"] == "running" or task.id in living:
            notify(f"task {task.id} still runs; left alone", again=True)
            continue
        leftovers, unreadable = _leftovers(session, spec, task, worked)
        for leftover in leftovers:
            yield from _clean_leftover(leftover, dry_run=dry_run)
        for fault in unreadable:
            yield _describe_unreadable(spec, task, shown, fault)
    if not living:
        for finding in find_seats(session, spec, dry_run=dry_run):
            yield _describe_finding(spec.session_id, spec.repository, finding)


def find_seats(session: SessionDir, spec: SessionSpec, *, dry_run: bool) -> Iterator[CleanResult]:
    """The worktrees that stay and that the session was the last to have: removed, or why not."""
    if spec.seats is None or spec.repository is None or not Path(spec.repository.common_dir).exists():
        return
    from sessionrun.workspaces.seat_removal import clean_seats

    yield from clean_seats(spec.repository, spec.seats, session.path, spec.session_id, dry_run=dry_run)


def _describe_finding(session_id: str, repository: Repository | None, finding: CleanResult) -> Record:
    return {"session_id": session_id, "repository": repository and repository.top, **asdict(finding)}


def _describe_unreadable(spec: SessionSpec, task: TaskSpec, shown: dict[str, Any], fault: JobFileError) -> Record:
    """A record that a claim cannot be read; it names the worktree, which stays, or else the claim."""
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
    """What a task's claims name, each name once, and the claims that cannot be read."""
    from sessionrun.model.spec import title_of
    from sessionrun.workspaces.clean import Leftover, find_claims

    leftovers: dict[tuple[str, str], Leftover] = {}
    unreadable: list[JobFileError] = []
    for attempt, folder, claim in find_claims(session.path, task.id):
        if isinstance(claim, JobFileError):
            unreadable.append(claim)
            continue
        repository = repository_of(spec, task, claim.start)
        if repository is None:
            continue  # no job of ours makes a claim there
        name = claim.branch, claim.worktree  # claimed again, if nothing had come of an earlier claim
        used = worked is None or (task.id, attempt) in worked or (name in leftovers and leftovers[name].worked)
        leftovers[name] = Leftover(
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
    return list(leftovers.values()), unreadable


def _clean_leftover(leftover: Leftover, *, dry_run: bool) -> Iterator[Record]:
    """Clean one leftover; if its repository is gone or cannot be written, a warning says so and others go on."""
    from sessionrun.workspaces.clean import clean_leftover

    try:
        for finding in clean_leftover(leftover, dry_run=dry_run):
            yield _describe_finding(leftover.session_id, leftover.repository, finding)
    except (SessionrunError, OSError) as error:
        notify(f"task {leftover.task} of session {leftover.session_id}: {error}")


def _attempts_that_worked(session: SessionDir) -> set[tuple[str, int]] | None:
    """The attempts in which a program of the user or an agent may have been started; None = any attempt.

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
    except ValueError:  # a record is whole, but makes no sense
        return None
    return {(key.task, key.attempt) for key in keys if key.phase not in ("prepare", "release")}
