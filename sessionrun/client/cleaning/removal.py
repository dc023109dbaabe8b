"""Chooses sessions that have ended, and removes their directories.

A directory goes only while we hold all locks of its session, so that no process can start to run it; only if no
process of its jobs lives; and only if its repository has no worktree or branch that only its claims name.  It is
renamed first: a crash leaves trash that the next removal sweeps, never half a session.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from sessionrun.client.reading.selection import ANY, Wanted, is_in_state
from sessionrun.model.errors import SessionNotFound, SessionrunError, StoreError
from sessionrun.model.frozen import frozen
from sessionrun.store import index
from sessionrun.store.session import PREFIX, SessionDir

ENDED: Final = ("completed", "cancelled")
"""States of sessions that have ended: what is removed unless other states are asked for."""

REMOVABLE: Final = (*ENDED, "interrupted")
CLEANED: Final = (*REMOVABLE, "succeeded", "failed")
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

    @property
    def status(self) -> str:
        """The session's status as a reader shows it."""
        return str(self.view["status"])


@frozen
class Removal:
    """What became of one session, and why."""

    session: SessionDir
    removed: bool
    why: str


FindLeftovers = Callable[[SessionDir], Sequence[str]]
"""Returns the worktrees and branches that the session's claims still have; raises if a claim cannot be read."""


def measure_logs(session: SessionDir) -> tuple[int, ...]:
    """The sizes of both logs (bytes): they grow with whatever happens in a session."""
    sizes = []
    for path in (session.journal_path, session.ledger_path):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            sizes.append(0)
    return tuple(sizes)


def choose(
    candidates: Sequence[Candidate],
    *,
    states: Sequence[str],
    older_than_s: float,
    keep: int,
    now: float,
    wanted: Wanted = ANY,
) -> tuple[list[Candidate], list[Removal]]:
    """The sessions to remove, oldest first, and why the others stay.

    Of the sessions of which `wanted` is true and that are in one of the `states` the newest `keep` stay, and of
    the rest those that ended less than `older_than_s` seconds before `now` (wall time).
    """
    going, staying = [], []
    left = keep
    for candidate in sorted(candidates, key=lambda candidate: candidate.ended_at, reverse=True):
        if not wanted.takes(candidate.view):
            staying.append(Removal(candidate.session, False, f"it does not match {wanted.describe()}"))
        elif not _may_go(candidate, states):
            hint = "; --state interrupted removes it too" if candidate.status == "interrupted" else ""
            staying.append(Removal(candidate.session, False, f"it is {candidate.status}{hint}"))
        elif left > 0:
            left -= 1
            staying.append(Removal(candidate.session, False, f"it is one of the newest {keep}"))
        elif now - candidate.ended_at < older_than_s:
            staying.append(Removal(candidate.session, False, "it is not old enough"))
        else:
            going.append(candidate)
    return going[::-1], staying


def _may_go(candidate: Candidate, states: Sequence[str]) -> bool:
    """Whether a session is in one of the states; `succeeded` and `failed` mean only sessions that have ended."""
    return candidate.status in states or (candidate.status in ENDED and is_in_state(candidate.view, states))


def remove_sessions(
    chosen: Sequence[Candidate], find_leftovers: FindLeftovers, *, dry_run: bool
) -> Iterator[Removal]:
    """Remove these sessions' directories, or return why a session stays; one that is gone already is left out."""
    for begin in range(0, len(chosen), _BATCH):
        with ExitStack() as locks:
            ready: list[Candidate] = []
            for candidate in chosen[begin : begin + _BATCH]:
                try:
                    why = _find_obstacle(candidate, find_leftovers, locks, dry_run=dry_run)
                except (SessionrunError, OSError) as error:
                    if not os.path.lexists(candidate.session.path):
                        continue  # another process removed it just now
                    why = str(error)
                if why is None:
                    ready.append(candidate)
                else:
                    yield Removal(candidate.session, False, why)
            yield from _remove_all(ready, dry_run=dry_run)


def sweep_trash(results_dir: Path) -> list[Path]:
    """Delete what a broken off removal left behind; return what is gone now."""
    swept = find_trash(results_dir)
    for path in swept:
        _delete(path)
    return [path for path in swept if not path.exists()]


def find_trash(results_dir: Path) -> list[Path]:
    """Session directories whose removal was broken off."""
    try:
        with os.scandir(results_dir) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [results_dir / name for name in sorted(names) if _TRASH.fullmatch(name)]


def _find_obstacle(
    candidate: Candidate, find_leftovers: FindLeftovers, locks: ExitStack, *, dry_run: bool
) -> str | None:
    """Why this session must stay; None: it may go, and its locks are held from here on (not in a dry run)."""
    session = candidate.session
    inode = os.lstat(session.path)
    if not stat.S_ISDIR(inode.st_mode) or inode.st_uid != os.geteuid():
        return "it is not a directory of yours"
    leftovers = find_leftovers(session)
    if leftovers:
        what = ", ".join(leftovers)
        return f"what it made is still there: {what} (clean --worktrees removes what is merged or empty)"
    if dry_run:
        return "a process of it lives" if session.is_alive() else None
    try:
        locks.enter_context(session.hold_all_locks(timeout_s=_LOCK_TIMEOUT_S))
    except StoreError:
        os.lstat(session.path)
        return "a process of it lives, or another command removes it"
    if measure_logs(session) != candidate.log_sizes:
        return "it went on just now"
    return None


def _remove_all(ready: Sequence[Candidate], *, dry_run: bool) -> Iterator[Removal]:
    if not ready:
        return
    from sessionrun.client.evidence import find_marked, find_recorded
    from sessionrun.runtime.export_places import sweep_left
    from sessionrun.runtime.exports.writer import open_exports
    from sessionrun.store.journal import read_log
    from sessionrun.store.ledger import fold_ledger

    marked = find_marked()
    for candidate in ready:
        session = candidate.session
        living = list(marked.get(session.session_id, ()))
        living += find_recorded(fold_ledger(read_log(session.ledger_path).payloads))
        if living:
            pids = ", ".join(sorted({str(each.process.pid) for each in living}))
            yield Removal(session, False, f"processes of its jobs still live: {pids}")
            continue
        try:
            exports = session.load_spec().exports
            folders = [export.find_outputs(session) for export in open_exports(exports)]
            shown = [folder for folder in folders if folder]
            if not dry_run:
                sweep_left(exports)
                _remove(session)
        except (SessionNotFound, FileNotFoundError):
            continue
        except OSError as error:
            yield Removal(session, False, f"it cannot be removed: {error.strerror}")
            continue
        but = f" but the links in {', '.join(shown)}" if shown else ""
        yield Removal(session, True, f"{candidate.status}, nothing needs it{but}")


def _remove(session: SessionDir) -> None:
    """Rename the directory, remove it from the user's index, then delete it."""
    trash = session.path.with_name(f"{TRASH_PREFIX}{session.path.name}")
    if trash.exists():
        _delete(trash)
    os.rename(session.path, trash)
    index.forget(session.path)
    _delete(trash)


def _delete(path: Path) -> None:
    """Delete a directory tree, links as links; another process may delete it at the same time."""
    from sessionrun.workspaces.registration import remove_tree

    for _ in range(3):
        try:
            remove_tree(path)
            return
        except FileNotFoundError:
            continue  # the other process deleted this name; go on with the rest
        except OSError:
            return  # the next sweep finds the rest
