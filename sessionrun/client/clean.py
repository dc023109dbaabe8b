"""`clean`: takes away sessions that have ended, and what they left in their repositories that is not needed.

A session's directory goes only while we hold all its locks, so that no process can start to run it; only if no
process of its jobs lives; and only if its repository has no worktree or branch that only its claims name.  It is
renamed first: a crash leaves trash that the next `clean` sweeps, never half a session.

A dry run walks the same way and changes nothing.  It says what would go at most: what a worktree holds is put on a
branch, and judged, only by a real run.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.client.evidence import Evidence, find_marked, find_recorded, read_evidence
from sessionrun.client.findings import Leftover
from sessionrun.client.lookup import DEFAULT_RESULTS_DIR, find_results_dir, open_session
from sessionrun.client.notices import notify
from sessionrun.client.reading.landed import has_landings
from sessionrun.client.reading.selection import ANY, Wanted, is_in_state
from sessionrun.client.reading.view import load_or_warn, load_summary_view
from sessionrun.model.errors import JobFileError, SessionrunError, StoreError
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import parse_job_key
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import title_of
from sessionrun.model.times import parse_time
from sessionrun.queue.place import LOCK_NAME as QUEUE_LOCK
from sessionrun.runtime.exports.writer import open_exports, sweep_left
from sessionrun.store import index, locks
from sessionrun.store.creation import find_unbegun, remove_results_dir, sweep_unbegun
from sessionrun.store.files import list_folders
from sessionrun.store.session import PREFIX, SessionDir, iterate_sessions

if TYPE_CHECKING:
    from sessionrun.engine.task import TaskState
    from sessionrun.model.places import Repository
    from sessionrun.model.spec import TaskSpec
    from sessionrun.workspaces.clean import Leftover as Claimed

ENDED: Final = ("completed", "cancelled")
"""States of sessions that have ended: what is removed unless other states are asked for."""

CLEANED: Final = (*ENDED, "interrupted", "succeeded", "failed")
"""What `clean --state` takes; see `is_in_state` for the last two, which mean only sessions that have ended."""

TRASH_PREFIX: Final = ".trash-"
_TRASH: Final = re.compile(rf"{re.escape(TRASH_PREFIX + PREFIX)}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
_LOCK_TIMEOUT_S: Final = 0.2
"""How long to wait for a lock: a reader holds it for an instant, a process of the session for life."""

_BATCH: Final = 64
"""How many sessions are locked at a time: each takes three descriptors; all share one look at the processes."""


@frozen
class Candidate:
    """A session that may be removed: its summary as a reader shows it, and the sizes of its logs just before."""

    session: SessionDir
    view: dict[str, Any]
    log_sizes: tuple[int, ...]
    ended_at: float


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
    directories: bool = True,
    dry_run: bool = False,
) -> list[dict[str, Any]]:
    """Remove sessions that have ended; return what was removed and what stays, as objects of ``clean --json``.

    Args:
        session_ids: ids, beginnings of ids, or names; if such a session stays, a record says why.
        results_dir: where the sessions are, else the results directory in use.
        states: only sessions of these states, else those that completed or were cancelled.
        labels: only sessions with all these labels.
        since: only sessions that began then (wall time) or later.
        older_than_s: only sessions that ended so many seconds ago.
        keep: how many of the newest stay.
        worktrees: first remove their worktrees and branches that are not needed.
        directories: whether the sessions go; else all are cleaned, whatever the other arguments say.
        dry_run: change nothing, and return what would be removed at most: `would_remove`.

    Raises:
        SessionNotFound: an id names no session, or several.
        InputError: there is no such results directory.
    """
    folder = find_results_dir(results_dir)
    sessions = [open_session(results_dir, session_id) for session_id in session_ids] or list(
        iterate_sessions(folder)
    )
    if not directories:
        cleaned = _clean_all(sessions, named=bool(session_ids), dry_run=dry_run)
        return [each.show(dry_run=dry_run) for each in _name_once(cleaned)]
    going, staying = choose(
        find_candidates(sessions),
        states=states or ENDED,
        older_than_s=older_than_s or 0.0,
        keep=keep or 0,
        now=time.time(),
        wanted=Wanted(tuple((labels or {}).items()), (), since),
    )
    found = staying if session_ids else []
    found += _name_once(remove_sessions(going, worktrees=worktrees, dry_run=dry_run))
    gone = {each.name for each in found if each.removed}
    found += [each for each in _sweep(folder, dry_run=dry_run) if each.name not in gone]
    if gone and not dry_run and folder == Path(DEFAULT_RESULTS_DIR):  # another one was named, and stays
        remove_results_dir(folder)
    return [each.show(dry_run=dry_run) for each in found]


def _name_once(found: Iterable[Leftover]) -> list[Leftover]:
    """One of each name: several sessions may have claimed it in turn; a removal counts."""
    named: dict[tuple[object, ...], Leftover] = {}
    for each in found:
        name = each.repository, each.what, each.name
        if name not in named or each.removed:
            named[name] = each
    return list(named.values())


# --- which sessions ---


def find_candidates(sessions: Iterable[SessionDir]) -> list[Candidate]:
    """Each session that can be read, once, with the facts that decide about its removal."""
    candidates = []
    for session in {session.path.absolute(): session for session in sessions}.values():
        sizes = _measure_logs(session)
        view = load_or_warn(session, load_summary_view)
        with suppress(FileNotFoundError):  # removed while we looked
            if view is not None:
                ended_at = view["ended_at"]
                moment = parse_time(ended_at) if ended_at else session.journal_path.stat().st_mtime
                candidates.append(Candidate(session, view, sizes, moment))
    return candidates


def _measure_logs(session: SessionDir) -> tuple[int, ...]:
    """The sizes of both logs (bytes): they grow with whatever happens in a session."""
    paths = (session.journal_path, session.ledger_path)
    return tuple(path.stat().st_size if path.exists() else 0 for path in paths)


def choose(
    candidates: Sequence[Candidate],
    *,
    states: Sequence[str],
    older_than_s: float,
    keep: int,
    now: float,
    wanted: Wanted = ANY,
) -> tuple[list[Candidate], list[Leftover]]:
    """The sessions to remove, oldest first, and why the others stay.

    Of the sessions of which `wanted` is true and that are in one of the `states` the newest `keep` stay, and of
    the rest those that ended less than `older_than_s` seconds before `now` (wall time).
    """
    going, staying, left = [], [], keep
    for candidate in sorted(candidates, key=lambda candidate: candidate.ended_at, reverse=True):
        why, status = None, candidate.view["status"]
        if not wanted.takes(candidate.view):
            why = f"it does not match {wanted.describe()}"
        elif not (status in states or (status in ENDED and is_in_state(candidate.view, states))):
            hint = "; --state interrupted removes it too" if status == "interrupted" else ""
            why = f"it is {status}{hint}"
        elif left > 0:
            left -= 1
            why = f"it is one of the newest {keep}"
        elif now - candidate.ended_at < older_than_s:
            why = "it is not old enough"
        if why is None:
            going.append(candidate)
        else:
            staying.append(_tell(candidate.session, False, why))
    return going[::-1], staying


def _tell(session: SessionDir, removed: bool, why: str) -> Leftover:
    return Leftover("session", str(session.path.absolute()), removed, why, session.session_id)


# --- directories ---


def remove_sessions(going: Sequence[Candidate], *, worktrees: bool, dry_run: bool) -> Iterator[Leftover]:
    """Remove sessions, and what they left for the next one; with `worktrees`, first worktrees and branches.

    One that is gone already is left out.
    """
    places: dict[str, _Places] = {}
    gone: set[str] = set()
    for begin in range(0, len(going), _BATCH):
        with ExitStack() as held:
            ready: list[tuple[Candidate, Evidence]] = []
            for candidate in going[begin : begin + _BATCH]:
                session = candidate.session
                try:
                    evidence = read_evidence(session)
                    places[session.session_id] = _find_places(evidence)
                    why = yield from _free(candidate, evidence, held, worktrees=worktrees, dry_run=dry_run)
                except (SessionrunError, OSError) as error:
                    if not os.path.lexists(session.path):
                        continue  # another process removed it just now
                    why = str(error)
                if why is None:
                    ready.append((candidate, evidence))
                else:
                    yield _tell(session, False, why)
            for each in _remove_ready(ready, dry_run=dry_run):
                yield each
                gone |= {str(each.session_id)} if each.removed else set()
    left = [place for name, place in places.items() if worktrees or name in gone]
    yield from _sweep_places(left, dry_run=dry_run)


def _free(
    candidate: Candidate, evidence: Evidence, held: ExitStack, *, worktrees: bool, dry_run: bool
) -> Generator[Leftover, None, str | None]:
    """Why this session must stay; None: it may go, and its locks are held from here on (not in a dry run).

    Raises:
        SessionrunError, OSError: it, one of its claims or its repository cannot be read.
    """
    session = candidate.session
    inode = os.lstat(session.path)
    if not stat.S_ISDIR(inode.st_mode) or inode.st_uid != os.geteuid():
        return "it is not a directory of yours"
    if evidence.alive and not evidence.ended:
        return "it went on just now"
    found = list(_clean_worktrees(evidence, dry_run=dry_run or not worktrees))
    needed = [each.name for each in found if not (each.removed and (worktrees or _is_empty(each)))]
    if found and not (needed or worktrees or dry_run):  # all that is left are branches without work
        found = list(_clean_worktrees(evidence, dry_run=False))
        needed = [each.name for each in found if not each.removed]
    if worktrees or not needed:
        yield from found
    if needed:
        what = ", ".join(dict.fromkeys(needed))
        return f"what it made is still there: {what} (clean --worktrees removes what is merged or empty)"
    if dry_run:
        return "a process of it lives" if session.is_alive() else None
    try:
        held.enter_context(session.hold_all_locks(timeout_s=_LOCK_TIMEOUT_S))
    except StoreError:
        os.lstat(session.path)
        return "a process of it lives, or another command removes it"
    return "it went on just now" if _measure_logs(session) != candidate.log_sizes else None


def _is_empty(left: Leftover) -> bool:
    """Whether what can go holds no work of any job: a branch, or a worktree that no task has."""
    from sessionrun.workspaces.clean import NOTHING_OWN

    return left.task is None or (left.what == "branch" and left.why == NOTHING_OWN)


def _remove_ready(ready: Sequence[tuple[Candidate, Evidence]], *, dry_run: bool) -> Iterator[Leftover]:
    """Remove the directories of sessions whose locks we hold."""
    marked = find_marked() if ready else {}
    for candidate, evidence in ready:
        session = candidate.session
        living = [*marked.get(session.session_id, ()), *find_recorded(evidence.ledger)]
        if living:
            pids = ", ".join(sorted({str(each.process.pid) for each in living}))
            yield _tell(session, False, f"processes of its jobs still live: {pids}")
            continue
        exports = evidence.spec.exports if evidence.spec is not None else ()
        folders = [export.find_outputs(session) for export in open_exports(exports)]
        try:
            if not dry_run:
                sweep_left(exports)
                _remove(session)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield _tell(session, False, f"it cannot be removed: {error.strerror}")
            continue
        shown = ", ".join(folder for folder in folders if folder)
        but = f" but the links in {shown}" if shown else ""
        yield _tell(session, True, f"{candidate.view['status']}, nothing needs it{but}")


def _remove(session: SessionDir) -> None:
    """Rename the directory, remove it from the user's index, then delete it."""
    trash = session.path.with_name(f"{TRASH_PREFIX}{session.path.name}")
    if trash.exists():
        delete(trash)
    os.rename(session.path, trash)
    index.forget(session.path)
    delete(trash)


def delete(path: Path) -> None:
    """Delete a directory tree, links as links; another process may delete it at the same time."""
    from sessionrun.store.trees import remove_tree

    for _ in range(3):
        try:
            remove_tree(path)
            return
        except FileNotFoundError:
            continue  # the other process deleted this name; go on with the rest
        except OSError:
            return  # the next sweep finds the rest


def _sweep(folder: Path, *, dry_run: bool) -> Iterator[Leftover]:
    """Remove what removals and starts that were broken off left of sessions."""
    trash = find_trash(folder)
    for path in () if dry_run else trash:
        delete(path)
    ends = (
        ("its removal was broken off", [path for path in trash if dry_run or not path.exists()]),
        ("its start was broken off", find_unbegun(folder) if dry_run else sweep_unbegun(folder)),
    )
    for why, paths in ends:
        for path in paths:
            yield Leftover("trash", str(path.absolute()), True, why, path.name.partition(PREFIX)[2])


def find_trash(results_dir: Path) -> list[Path]:
    """Session directories whose removal was broken off."""
    return [results_dir / name for name in list_folders(results_dir) if _TRASH.fullmatch(name)]


# --- worktrees and branches ---


def _clean_all(sessions: Iterable[SessionDir], *, named: bool, dry_run: bool) -> Iterator[Leftover]:
    """Clean worktrees and branches of sessions that do not run; if they were `named`, say it of one that runs."""
    places = []
    for session in sessions:
        try:
            evidence = read_evidence(session)
            if evidence.require().ended is not None or not evidence.alive:
                places.append(_find_places(evidence))
                yield from _clean_worktrees(evidence, dry_run=dry_run)
            elif named:
                yield _tell(session, False, f"it is {'running' if evidence.led else 'recovering'}")
        except (SessionrunError, OSError) as error:
            if os.path.lexists(session.path):
                notify(f"{session.path}: cannot be cleaned: {error}")
    yield from _sweep_places(places, dry_run=dry_run)


def _clean_worktrees(evidence: Evidence, *, dry_run: bool) -> Iterator[Leftover]:
    """What went of the worktrees and branches of a session, or stays.

    Raises:
        SessionrunError, OSError: the session cannot be read.
    """
    from sessionrun.workspaces.clean import clean_lock, clean_seats

    tasks_at_launch = () if evidence.spec is None else evidence.spec.tasks
    if evidence.fault is evidence.journal_fault is not None and not any(map(has_worktree, tasks_at_launch)):
        return  # a damaged journal is no reason to keep it
    session, state = evidence.session, evidence.require()
    if not dry_run:
        sweep_left(state.spec.exports)
    tasks = [task for task in state.tasks.values() if has_worktree(task.spec)]
    if not tasks or not (session.path / "jobs").is_dir():
        return
    marked = find_marked().get(session.session_id, ())
    living = {survivor.task for survivor in (*marked, *find_recorded(evidence.ledger))}  # these may write there
    with clean_lock(session.path):
        for task in tasks:
            if task.spec.id in living:
                name, why = (task.place and task.place.worktree) or task.spec.id, f"task {task.spec.id} still runs"
                yield Leftover("worktree", name, False, why, session.session_id, task=task.spec.id)
            else:
                yield from _clean_task(evidence, task, dry_run=dry_run)
        seats, repository = state.spec.seats, state.spec.repository
        if not living and seats is not None and repository is not None and os.path.exists(repository.common_dir):
            for result in clean_seats(repository, seats, session.path, session.session_id, dry_run=dry_run):
                yield Leftover(session_id=session.session_id, repository=repository.top, **asdict(result))


def _clean_task(evidence: Evidence, task: TaskState, *, dry_run: bool) -> Iterator[Leftover]:
    """Clean what a task's claims name; what cannot be read, or written, stays, and the others go on."""
    from sessionrun.workspaces.clean import clean_leftover

    session_id, spec = evidence.session.session_id, evidence.require().spec
    claimed, unreadable = _list_claimed(evidence, task.spec)
    for each in claimed:
        about = session_id, each.repository.top, task.spec.id
        try:
            if os.path.exists(each.repository.common_dir) or each.upstream is not None:
                for result in clean_leftover(each, dry_run=dry_run):
                    yield Leftover(session_id=session_id, repository=each.repository.top, **asdict(result))
            elif each.path.exists():  # all its branches went with its repository
                yield Leftover("worktree", str(each.path), False, f"{each.repository.top} is gone", *about)
        except (SessionrunError, OSError) as error:
            yield Leftover("worktree", str(each.path), False, str(error), *about)
    for fault in unreadable:  # where the worktree is not known, the claim is named
        name, why = (task.place and task.place.worktree) or fault.path, f"its claim cannot be read: {fault}"
        repository = repository_of(spec, task.spec)
        top = None if repository is None else repository.top
        yield Leftover("worktree", name, False, why, session_id, top, task.spec.id)


def _list_claimed(evidence: Evidence, task: TaskSpec) -> tuple[list[Claimed], list[JobFileError]]:
    """What a task's claims name, each name once, and the claims that cannot be read."""
    from sessionrun.workspaces.clean import Leftover as Claimed
    from sessionrun.workspaces.registration import find_claims

    session, spec, worked = evidence.session, evidence.require().spec, _find_worked(evidence)
    claimed: dict[tuple[str, str], Claimed] = {}
    unreadable: list[JobFileError] = []
    for attempt, folder, claim in find_claims(session.path / "jobs" / task.id):
        if isinstance(claim, JobFileError):
            unreadable.append(claim)
            continue
        repository = repository_of(spec, task, claim.start)
        if repository is None:
            continue  # no job of ours makes a claim there
        name = claim.branch, claim.worktree  # claimed again, if nothing had come of an earlier claim
        claimed[name] = Claimed(
            repository=repository,
            session_id=session.session_id,
            task=task.id,
            title=title_of(task),
            links=task.links,
            claim=claim,
            folder=folder,
            worked=worked is None or (task.id, attempt) in worked or (name in claimed and claimed[name].worked),
            upstream=task.upstream,
        )
    return list(claimed.values()), unreadable


def _find_worked(evidence: Evidence) -> set[tuple[str, int]] | None:
    """The attempts in which a program of the user or an agent may have been started; None = any attempt.

    A job that is claimed may have run: only the claim is sure to have reached the disk before its process began.
    """
    if evidence.ledger_log.damage_at is not None or not evidence.ledger_log.payloads:
        return None
    try:
        keys = [parse_job_key(text) for text in evidence.ledger.jobs]
    except ValueError:  # a record is whole, but makes no sense
        return None
    return {(key.task, key.attempt) for key in keys if key.phase not in ("prepare", "release")}


# --- what sessions leave in a repository for the next one ---


class _Places(NamedTuple):
    """The repositories in which a session had worktrees; gates have run in that on which its work was landed."""

    session_id: str
    repositories: list[Repository]
    landed_on: Repository | None


def _find_places(evidence: Evidence) -> _Places:
    spec = evidence.spec if evidence.state is None else evidence.state.spec
    if spec is None:
        return _Places("", [], None)
    tasks = spec.tasks if evidence.state is None else [task.spec for task in evidence.state.tasks.values()]
    found = [spec.repository, *(repository_of(spec, task) for task in tasks if task.upstream is not None)]
    repositories = [repository for repository in found if repository is not None]
    return _Places(spec.session_id, repositories, spec.repository if has_landings(evidence.session) else None)


def _sweep_places(places: Sequence[_Places], *, dry_run: bool) -> Iterator[Leftover]:
    """Remove rooms of gates, locks, pins of landings, and directories that are empty.

    Each is removed under its own lock, and only if no process uses it: the next session or landing makes it anew.
    """
    from sessionrun.landing.gates import clean_rooms

    gated = {_name(place.landed_on): place for place in reversed(places) if place.landed_on is not None}
    for place in gated.values():
        assert place.landed_on is not None
        try:
            for room in clean_rooms(place.landed_on, dry_run=dry_run):
                yield Leftover(
                    "room", str(room.path), room.removed, room.why, place.session_id, place.landed_on.top
                )
        except (SessionrunError, OSError) as error:
            notify(f"rooms of gates in {place.landed_on.worktree_dir}: {error}")
    repositories = {_name(each): each for place in places for each in place.repositories}
    for repository in () if dry_run else repositories.values():
        try:
            if os.path.isdir(repository.common_dir):
                _sweep_books(repository)
        except (SessionrunError, OSError) as error:
            notify(f"locks in {repository.common_dir}: {error}")
        with suppress(OSError):  # something is in it, or it is gone
            os.rmdir(repository.worktree_dir)


def _name(repository: Repository) -> tuple[str, str]:
    return repository.common_dir, repository.worktree_dir


def _sweep_books(repository: Repository) -> None:
    from sessionrun.landing.slot import sweep_slots
    from sessionrun.workspaces.fence import open_fence
    from sessionrun.workspaces.git import WORKSPACE_LIMIT_S
    from sessionrun.workspaces.registration import LOCK_NAME, register_lock

    common = Path(repository.common_dir)
    with (
        tempfile.TemporaryDirectory(prefix="sessionrun-clean-") as folder,
        open_fence(repository, Path(folder), limit_s=WORKSPACE_LIMIT_S) as fence,
    ):
        sweep_slots(repository, fence.main())
    locks.remove_free(common / QUEUE_LOCK)
    with register_lock(repository), suppress(OSError):  # PREPARE makes the directory under the same lock
        os.rmdir(repository.worktree_dir)
    locks.remove_free(common / LOCK_NAME)
    unused = [common / "refs" / "sessionrun"]  # git leaves the directory of refs that are gone
    if not os.path.lexists(repository.worktree_dir):
        unused.append(common / "lfs")  # made by `workspaces.fence`
    for path in unused:
        with suppress(OSError):  # something is in it, or it is not there
            os.rmdir(path)
