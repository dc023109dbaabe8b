"""Cleaning: which sessions go, and what they left in their repositories that is not needed.

`removal` chooses and removes directories; rooms below remove worktrees and branches.  The result is a list of
records, the objects of ``clean --json``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionrun.client.cleaning.books import find_repositories, make_lock_path, sweep_books
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
from sessionrun.client.evidence import find_marked
from sessionrun.client.lookup import DEFAULT_RESULTS_DIR, find_results_dir, open_session
from sessionrun.client.notices import notify
from sessionrun.client.reading.landed import has_landings
from sessionrun.client.reading.selection import Wanted
from sessionrun.client.reading.view import load_or_warn, load_summary_view, load_view
from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.times import parse_time
from sessionrun.runtime.export_places import sweep_left
from sessionrun.runtime.history import find_task, load_spec_now, load_tasks
from sessionrun.store.creation import find_unbegun, remove_results_dir, sweep_unbegun
from sessionrun.store.locks import remove_free
from sessionrun.store.session import PREFIX, SessionDir, iterate_sessions

if TYPE_CHECKING:
    from sessionrun.model.places import Repository
    from sessionrun.model.spec import SessionSpec, TaskSpec
    from sessionrun.workspaces.clean import CleanResult, Leftover


Record = dict[str, Any]
"""An object of ``clean --json``."""


@frozen
class Found:
    """What was removed (in a dry run: would be), or stays, and why; `repository` is the top of the user's."""

    session_id: str
    what: str
    name: str
    removed: bool
    why: str
    repository: str | None = None
    task: str | None = None

    def show(self, *, dry_run: bool) -> Record:
        """The object of ``clean --json``."""
        return {
            "session_id": self.session_id,
            "repository": self.repository,
            "what": self.what,
            "name": self.name,
            "id": self.task,
            "removed": self.removed and not dry_run,
            "would_remove": self.removed if dry_run else None,
            "why": self.why,
        }


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
    """Remove sessions that have ended; return what was removed and what stays.

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
        InputError: there is no such results directory.
    """
    wanted = Wanted(tuple((labels or {}).items()), (), since)
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
    found = [_describe(removal) for removal in staying if session_ids]
    found += _name_once(_remove(going, worktrees=worktrees, dry_run=dry_run))
    gone = {one.name for one in found if one.removed}
    found += [one for one in _sweep(folder, dry_run=dry_run) if one.name not in gone]
    if gone and not dry_run and folder == Path(DEFAULT_RESULTS_DIR):  # another one was named, and stays
        remove_results_dir(folder)
    return [one.show(dry_run=dry_run) for one in found]


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
    repositories = [repository for session in sessions for repository in find_repositories(session)]
    locks = [make_lock_path(one) for one in repositories]
    made = [path for path in locks if not os.path.lexists(path)]
    found = [one for session in sessions for one in _clean(session, dry_run=dry_run, named=named)]
    found += _clean_gate_rooms(_find_gated(sessions), dry_run=dry_run)
    if not dry_run:
        sweep_books(repositories)
    for path in made if dry_run else ():  # to look, it took the lock; nothing of that stays
        remove_free(path)
    return [one.show(dry_run=dry_run) for one in _name_once(found)]


def _sweep(folder: Path, *, dry_run: bool) -> Iterator[Found]:
    """Remove what removals and starts that were broken off left of sessions."""
    ends = (
        ("its removal was broken off", find_trash if dry_run else sweep_trash),
        ("its start was broken off", find_unbegun if dry_run else sweep_unbegun),
    )
    for why, find in ends:
        for path in find(folder):
            yield Found(path.name.partition(PREFIX)[2], "trash", str(path.absolute()), True, why)


def _find_sessions(folder: Path, results_dir: Path | None, session_ids: Sequence[str]) -> list[SessionDir]:
    return [open_session(results_dir, session_id) for session_id in session_ids] or list(iterate_sessions(folder))


def _name_once(found: Iterable[Found]) -> list[Found]:
    """One of each name: several sessions may have claimed it in turn; a removal counts."""
    named: dict[tuple[object, ...], Found] = {}
    for one in found:
        name = one.repository, one.what, one.name
        if name not in named or one.removed:
            named[name] = one
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


def _remove(going: list[Candidate], *, worktrees: bool, dry_run: bool) -> Iterator[Found]:
    """Remove sessions; with `worktrees`, first what they left in their repositories."""
    freed: set[str] = set()
    gated = _find_gated([candidate.session for candidate in going])
    repositories = {candidate.session.path: find_repositories(candidate.session) for candidate in going}
    if worktrees:
        for candidate in going:
            for one in _clean(candidate.session, dry_run=dry_run):
                yield one
                if one.removed:
                    freed.add(one.name)

    emptied: list[Found] = []

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
    tried = gated if worktrees else [one for one in gated if one[0].path in gone]
    yield from _clean_gate_rooms(tried, dry_run=dry_run)
    if not dry_run:
        sweep_books(repository for path in gone for repository in repositories[path])


def _describe(removal: Removal) -> Found:
    session = removal.session
    return Found(session.session_id, "session", str(session.path.absolute()), removal.removed, removal.why)


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


def _clean(session: SessionDir, *, dry_run: bool, named: bool = False) -> Iterator[Found]:
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
) -> Iterator[Found]:
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
        repository = repository_of(spec, task)
        for fault in unreadable:  # the worktree stays; where it is not known, the claim is named
            name, why = shown["worktree"] or fault.path, f"its claim cannot be read: {fault}"
            top = None if repository is None else repository.top
            yield Found(spec.session_id, "worktree", name, False, why, top, shown["id"])
    if not living:
        for finding in find_seats(session, spec, dry_run=dry_run):
            yield _describe_finding(spec.session_id, spec.repository, finding)


def find_seats(session: SessionDir, spec: SessionSpec, *, dry_run: bool) -> Iterator[CleanResult]:
    """The worktrees that stay and that the session was the last to have: removed, or why not."""
    if spec.seats is None or spec.repository is None or not Path(spec.repository.common_dir).exists():
        return
    from sessionrun.workspaces.seat_removal import clean_seats

    yield from clean_seats(spec.repository, spec.seats, session.path, spec.session_id, dry_run=dry_run)


def _describe_finding(session_id: str, repository: Repository | None, finding: CleanResult) -> Found:
    return Found(session_id, repository=None if repository is None else repository.top, **asdict(finding))


def _leftovers(
    session: SessionDir, spec: SessionSpec, task: TaskSpec, worked: set[tuple[str, int]] | None
) -> tuple[list[Leftover], list[JobFileError]]:
    """What a task's claims name, each name once, and the claims that cannot be read."""
    from sessionrun.model.spec import title_of
    from sessionrun.workspaces.clean import Leftover
    from sessionrun.workspaces.registration import find_claims

    leftovers: dict[tuple[str, str], Leftover] = {}
    unreadable: list[JobFileError] = []
    for attempt, folder, claim in find_claims(session.path / "jobs" / task.id):
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


def _clean_leftover(leftover: Leftover, *, dry_run: bool) -> Iterator[Found]:
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


def _find_gated(sessions: Iterable[SessionDir]) -> list[tuple[SessionDir, Repository]]:
    """The sessions whose work a landing tried, with their repositories: gates may have run there."""
    gated = []
    for session in sessions:
        try:
            repository = load_spec_now(session).repository if has_landings(session) else None
        except (SessionrunError, OSError):
            continue  # what reads the session after us says so
        if repository is not None:
            gated.append((session, repository))
    return gated


def _clean_gate_rooms(gated: Iterable[tuple[SessionDir, Repository]], *, dry_run: bool) -> Iterator[Found]:
    """Remove the rooms of gates that no landing uses, of any session; the next landing would use them again."""
    from sessionrun.landing.gates import clean_rooms

    places: dict[tuple[str, str], tuple[SessionDir, Repository]] = {}
    for session, repository in gated:
        places.setdefault((repository.common_dir, repository.worktree_dir), (session, repository))
    for session, repository in places.values():
        try:
            for room in clean_rooms(repository, dry_run=dry_run):
                yield Found(session.session_id, "room", str(room.path), room.removed, room.why, repository.top)
        except (SessionrunError, OSError) as error:
            notify(f"rooms of gates in {repository.worktree_dir}: {error}")
