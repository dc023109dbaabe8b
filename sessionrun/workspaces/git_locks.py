"""Takes away locks that a git of ours left when it was killed: git never does, and each later command would fail.

Git locks a file by making another beside it, ``NAME.lock``.  If it is killed, that stays.  A job of ours that is
killed begins again, and so it removes the locks that its earlier start can have left.  A RELEASE of a mirror also
fetches into the user's repository, where a killed fetch leaves the lock of a branch, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.model.places import Repository
from sessionrun.workspaces.registration import find_admin, find_branch_lock
from sessionrun.workspaces.request import RESCUE_SUFFIX, WorkspaceRequest

STALE_LOCK_S: Final = 10.0
"""Git holds the lock of a ref for moments.  A lock of this age (seconds) is from a crash."""

_BEGUN: Final = "begun"
"""File in a job's folder: the job has begun once, and when."""

_POLL_S: Final = 0.1


def break_own_locks(request: WorkspaceRequest, folder: Path, worktree: Path | None) -> None:
    """At the start of a job: if it has begun before, remove the locks made since then on what is the task's alone.

    The lock of all packed refs may be another program's.  That one goes when it is older than `STALE_LOCK_S`.

    Args:
        request: its place names the branch.
        folder: of the job.
        worktree: where it is; None: it is gone.

    Raises:
        OSError: the folder cannot be written.
    """
    begun = folder / _BEGUN
    try:
        os.close(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return
    except FileExistsError:
        since = begun.lstat().st_mtime
    common = Path(request.repository.common_dir)
    home = request.upstream and request.upstream.home
    for lock in (*_find_own(request, common, worktree), *(_find_of_branches(request, Path(home)) if home else ())):
        if (_made(lock) or 0.0) >= since:
            _remove(lock)
    packed = common / "packed-refs.lock"
    while (made := _made(packed)) is not None and made >= since:
        if time.time() - made > STALE_LOCK_S:
            _remove(packed)
        else:
            time.sleep(_POLL_S)


def _find_own(request: WorkspaceRequest, common: Path, worktree: Path | None) -> Iterator[Path]:
    """Locks on refs of the task, and in the books of its worktree; no other process of the task runs now."""
    git_dir = find_admin(request.repository, worktree) if worktree is not None else None
    if git_dir is not None:
        yield from git_dir.glob("*.lock")
    yield from _find_of_branches(request, common)


def _find_of_branches(request: WorkspaceRequest, common: Path) -> Iterator[Path]:
    if request.place is not None and request.place.branch is not None:
        branch = common / "refs" / "heads" / request.place.branch
        yield branch.with_name(f"{branch.name}.lock")
        yield from branch.parent.glob(f"{branch.name}{RESCUE_SUFFIX}*.lock")


def break_old_lock(repository: Repository, branch: str) -> None:
    """Remove an old lock on a branch of a session of which no process lives."""
    lock = find_branch_lock(repository, branch)
    made = _made(lock)
    if made is not None and time.time() - made > STALE_LOCK_S:
        _remove(lock)


def _made(lock: Path) -> float | None:
    """When a lock was last written (Unix time), or None if there is none."""
    try:
        return lock.lstat().st_mtime
    except OSError:
        return None


def _remove(lock: Path) -> None:
    with suppress(OSError):
        lock.unlink()
