"""`clean`: takes away sessions that have ended, and what they left in their repositories that is not needed.

A session's directory goes only while we hold all its locks, so that no process can start to run it; only if no
process of its jobs lives; and only if its repository has no worktree or branch that only its claims name.  It is
renamed first: a crash leaves trash that the next `clean` sweeps, never half a session.

A dry run walks the same way; what a worktree holds is put on a branch, and judged, only by a real run.

With `--cache` entries of the cache that sessions share go, by the age of their last use and by size.  Businesses
say which kinds there are.  One that a session uses, or that holds work, always stays.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from sessionrun.client.evidence import Evidence, Living, find_marked, find_recorded, read_evidence
from sessionrun.client.findings import Cleaned, Leftover, load_findings
from sessionrun.client.lookup import Wanted, find_results_dir, is_in_state, open_session
from sessionrun.client.notices import notify
from sessionrun.client.reading.view import load_or_warn, load_summary_view
from sessionrun.input.config import load_setting
from sessionrun.model.errors import SessionrunError, StoreError
from sessionrun.model.frozen import frozen
from sessionrun.model.repositories import repository_of
from sessionrun.model.words import parse_time
from sessionrun.session.exports import open_exports
from sessionrun.store.creation import remove_results_dir
from sessionrun.store.files import list_folders
from sessionrun.store.index import find_cache_folder
from sessionrun.store.session import DEFAULT_RESULTS_DIR, PREFIX, SessionDir, iterate_sessions

ENDED: Final = ("completed", "cancelled")
"""States of sessions that have ended: what is removed unless other states are asked for."""

CLEANED: Final = (*ENDED, "interrupted", "succeeded", "failed")
"""What `clean --state` takes; see `is_in_state` for the last two, which mean only sessions that have ended."""

TRASH_PREFIX: Final = ".trash-"
_TRASH: Final = re.compile(rf"{re.escape(TRASH_PREFIX + PREFIX)}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")


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

    Of named sessions (ids, beginnings of ids, or names) a record also says why one stays.  Of all others go those
    of these states, else that completed or were cancelled, with all the labels, that began `since` (wall time)
    and ended `older_than_s` ago, but for the newest `keep`.  Their `worktrees` and branches that are not needed go
    first; without `directories` these alone, of all sessions.  A `dry_run` says what would go at most.
    """
    folder = find_results_dir(results_dir)
    named = [open_session(results_dir, session_id) for session_id in session_ids]
    going, staying = choose(
        find_candidates(named or list(iterate_sessions(folder))),
        states=(states or ENDED) if directories else (*ENDED, "interrupted"),
        older_than_s=older_than_s or 0.0,
        keep=keep or 0,
        wanted=Wanted(tuple((labels or {}).items()), (), since),
    )
    # several sessions may have claimed one name in turn: a removal counts
    by_name: dict[tuple[object, ...], Leftover] = {}
    for each in remove_sessions(going, worktrees=worktrees, directories=directories, dry_run=dry_run):
        name = each.repository, each.what, each.name
        by_name[name] = each if each.removed else by_name.get(name, each)
    found = [*(staying if named else ()), *by_name.values()]
    has_removed = directories and any(each.removed for each in found)
    for path in find_trash(folder) if directories else ():
        if not dry_run:
            delete(path)
        if dry_run or not path.exists():
            why, session_id = "its removal was broken off", path.name.partition(PREFIX)[2]
            found.append(Leftover("trash", str(path.absolute()), True, why, session_id))
    if has_removed and not dry_run and folder == Path(DEFAULT_RESULTS_DIR):  # another one was named, and stays
        remove_results_dir(folder)
    return [each.show(dry_run=dry_run) for each in found]


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
    wanted: Wanted,
) -> tuple[list[Candidate], list[Leftover]]:
    """The sessions to remove, oldest first, and why the others stay; see `clean`."""
    going, staying, left = [], [], keep
    for candidate in sorted(candidates, key=lambda candidate: candidate.ended_at, reverse=True):
        status = candidate.view["status"]
        if not wanted.takes(candidate.view):
            why = f"it does not match {wanted.describe()}"
        elif not (status in states or (status in ENDED and is_in_state(candidate.view, states))):
            why = f"it is {status}" + ("; --state interrupted removes it too" if status == "interrupted" else "")
        elif left > 0:
            left -= 1
            why = f"it is one of the newest {keep}"
        elif time.time() - candidate.ended_at < older_than_s:
            why = "it is not old enough"
        else:
            going.append(candidate)
            continue
        staying.append(_tell(candidate.session, False, why))
    return going[::-1], staying


def _tell(session: SessionDir, removed: bool, why: str) -> Leftover:
    return Leftover("session", str(session.path.absolute()), removed, why, session.session_id)


# --- directories ---


def remove_sessions(
    going: Sequence[Candidate], *, worktrees: bool, dry_run: bool, directories: bool = True
) -> Iterator[Leftover]:
    """Remove sessions, and what they left for the next one; with `worktrees`, first worktrees and branches.

    One that is gone already is left out.  Without `directories` the sessions themselves stay.
    """
    cleaned: dict[str, Cleaned] = {}
    gone: set[str] = set()
    # one look for all: a job that began after it made the logs longer than they were for the candidate
    marked = find_marked() if going and directories else {}
    for candidate in going:
        session = candidate.session
        try:
            evidence = read_evidence(session)
            cleaned[session.session_id] = _describe_cleaned(evidence)
            inode = os.lstat(session.path)
            if directories and (not stat.S_ISDIR(inode.st_mode) or inode.st_uid != os.geteuid()):
                raise StoreError("it is not a directory of yours")
            why = yield from _free(candidate, evidence, worktrees=worktrees, dry_run=dry_run)
            if not directories:
                continue
            living = [*marked.get(session.session_id, ()), *find_recorded(evidence.ledger)]
            ended = _tell(session, False, why) if why else _remove(candidate, evidence, living, dry_run=dry_run)
        except (SessionrunError, OSError) as error:
            if not os.path.lexists(session.path):
                continue  # another process removed it just now
            why = f"it cannot be removed: {error.strerror}" if isinstance(error, OSError) else str(error)
            ended = _tell(session, False, why)
        yield ended
        gone |= {session.session_id} if ended.removed else set()
    left = [each for name, each in cleaned.items() if worktrees or name in gone]
    yield from _sweep_repositories(left, dry_run=dry_run)


def _free(
    candidate: Candidate, evidence: Evidence, *, worktrees: bool, dry_run: bool
) -> Generator[Leftover, None, str | None]:
    """Take away what a session made, as far as that is not needed; why the session must stay, or None."""
    if evidence.alive and not evidence.ended:
        return "it went on just now"

    def take_away(*, dry_run: bool) -> list[Leftover]:
        return [each for business in load_findings() for each in business.take_away(evidence, dry_run=dry_run)]

    found = take_away(dry_run=dry_run or not worktrees)
    needed = [each.name for each in found if not (each.removed and (worktrees or each.empty))]
    if found and not (needed or worktrees or dry_run):  # all that is left are branches without work
        found = take_away(dry_run=False)
        needed = [each.name for each in found if not each.removed]
    if worktrees or not needed:
        yield from found
    if not needed:
        return None
    what = ", ".join(dict.fromkeys(needed))
    return f"what it made is still there: {what} (clean --worktrees removes what is merged or empty)"


def _remove(candidate: Candidate, evidence: Evidence, living: Sequence[Living], *, dry_run: bool) -> Leftover:
    """Rename the directory, then delete it, while we hold all its locks."""
    session = candidate.session
    exports = evidence.spec.exports if evidence.spec is not None else ()
    folders = [folder for export in open_exports(exports) if (folder := export.find_outputs(session))]
    try:
        with nullcontext() if dry_run else session.hold_all_locks():
            if dry_run and session.is_alive():
                return _tell(session, False, "a process of it lives")
            if _measure_logs(session) != candidate.log_sizes:
                return _tell(session, False, "it went on just now")
            if living:
                pids = ", ".join(sorted({str(each.process.pid) for each in living}))
                return _tell(session, False, f"processes of its jobs still live: {pids}")
            if not dry_run:
                trash = session.path.with_name(f"{TRASH_PREFIX}{session.path.name}")
                delete(trash)
                os.rename(session.path, trash)
                delete(trash)
    except StoreError:
        os.lstat(session.path)
        return _tell(session, False, "a process of it lives, or another command removes it")
    but = f" but the links in {', '.join(folders)}" if folders else ""
    return _tell(session, True, f"{candidate.view['status']}, nothing needs it{but}")


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


def find_trash(results_dir: Path) -> list[Path]:
    """Session directories whose removal was broken off."""
    return [results_dir / name for name in list_folders(results_dir) if _TRASH.fullmatch(name)]


# --- what they left ---


def _describe_cleaned(evidence: Evidence) -> Cleaned:
    spec = evidence.spec if evidence.state is None else evidence.state.spec
    if spec is None:
        return Cleaned("", None, [])
    tasks = spec.tasks if evidence.state is None else [task.spec for task in evidence.state.tasks.values()]
    found = [spec.repository, *(repository_of(spec, task) for task in tasks if task.upstream is not None)]
    repositories = [repository for repository in found if repository is not None]
    return Cleaned(spec.session_id, spec.repository, repositories)


def _sweep_repositories(cleaned: Sequence[Cleaned], *, dry_run: bool) -> Iterator[Leftover]:
    """Remove what sessions left in repositories for the next one, under its own lock, if no process uses it.

    A business that stands on another one goes first: the last of the house.
    """
    businesses = load_findings()[::-1]
    for business in businesses:
        yield from business.sweep(cleaned, dry_run=dry_run)
    found = (repository for each in cleaned for repository in each.repositories)
    repositories = {(each.common_dir, each.worktree_dir): each for each in found}
    for repository in () if dry_run else repositories.values():
        for business in businesses:
            try:
                business.sweep_repository(repository)
            except (SessionrunError, OSError) as error:
                notify(f"locks in {repository.common_dir}: {error}")


def clean_cache(
    *,
    cache_dir: Path | None = None,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> list[dict[str, Any]]:
    """Remove entries of the cache that nothing needs; say what went and what stays, as ``clean --json`` does.

    Args:
        cache_dir: the cache; None: the configured one, and the replicas of this machine's nodes.
        older_than_s: only entries that were used last so many seconds ago.
        max_bytes: remove the longest unused ones until the cache takes no more room than that; with `older_than_s`
            an entry goes if either says so.  Without both all go that nothing needs.
        dry_run: change nothing, and say what would go.
    """
    named = (
        cache_dir or os.environ.get("SESSIONRUN_CACHE_DIR") or load_setting("cache_dir", Path.cwd(), os.environ)
    )
    cache = Path(os.path.realpath(named or find_cache_folder()))
    kinds = [kind for found in load_findings() for kind in found.list_kinds()]
    mine = [kind for kind in kinds if cache_dir is None or not kind.beside]
    entries = [(kind.what, kind.remove, entry) for kind in mine for entry in kind.iterate(cache)]
    entries.sort(key=lambda row: row[2].used_at)
    now, left = time.time(), sum(entry.size for _, _, entry in entries)
    cleaned = []
    for what, remove, entry in entries:
        age_s = now - entry.used_at
        is_old = older_than_s is not None and age_s >= older_than_s
        is_too_much = max_bytes is not None and left > max_bytes
        if not (is_old or is_too_much or (older_than_s is None and max_bytes is None)):
            continue
        try:
            why = remove(entry, dry_run=dry_run)
        except (SessionrunError, OSError) as error:
            why = f"it cannot be removed: {error}"
        left -= 0 if why else entry.size
        words = f"{entry.size / 2**20:.1f} MiB, last used {max(0.0, age_s) / 86400:.1f} days ago"
        about = Leftover(what, str(entry.path), why is None, why or words, repository=entry.repo, size=entry.size)
        cleaned.append(about.show(dry_run=dry_run))
    return cleaned
