"""Environments of tasks that were left in the cache: which sessions they are of, and removing those of none.

RELEASE removes the environment of an attempt with its worktree, and so does `clean --worktrees`.  What is left is
of a session that was deleted by hand, or of one that was killed and whose worktree was taken away.  A note in the
cache says which attempt it is of, and its name proves the note: it is a hash of the session, task and attempt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from sessionrun.client.cleaning.leftovers import find_marked
from sessionrun.model.errors import JobFileError, StoreError
from sessionrun.model.frozen import frozen
from sessionrun.store.session import LOCK_NAMES, SessionDir
from sessionrun.workspaces.clean import find_claims
from sessionrun.workspaces.environments.removal import beside_path, clear, trash_path
from sessionrun.workspaces.environments.request import FOLDER, TENANTS, Tenant, load_tenant, tenant_path
from sessionrun.workspaces.space import measure

UNKNOWN_S: Final = 30 * 86400.0
"""An environment without a note stays until it is so old (seconds): which session it is of cannot be known."""

_LOCK_S: Final = 0.5
"""How long a lock of a session is tried for: a reader's probe holds it for an instant."""


@frozen
class CachedCopy:
    """One environment of a task: where it is or would be, when it was made (wall time), its size (bytes)."""

    path: Path
    used_at: float
    size: int

    @property
    def repo(self) -> None:
        """It is not noted of which repository it is."""


def iterate_copies(cache: Path) -> Iterator[CachedCopy]:
    """The environments of tasks in a cache, by name, and what killed processes left of others."""
    tasks, tenants = cache / FOLDER / "tasks", cache / FOLDER / TENANTS
    names = {name.removeprefix(".new-").removeprefix(".trash-") for name in _list_names(tasks)}
    names |= {name.removesuffix(".json") for name in _list_names(tenants)}
    for name in sorted(names):
        places = [path for path in _places(tasks / name) if os.path.lexists(path)]
        try:
            used_at = max(path.lstat().st_mtime for path in places)
            yield CachedCopy(tasks / name, used_at, sum(map(measure, places)))
        except (FileNotFoundError, ValueError):
            continue  # removed meanwhile


def remove_copy(copy: CachedCopy, *, dry_run: bool = False) -> str | None:
    """Remove the environment of a task whose attempt cannot go on; why it stays, or None.

    Raises:
        OSError: it cannot be removed.
    """
    tenant = load_tenant(copy.path)
    with ExitStack() as locks:
        why = _find_obstacle(copy, tenant, locks, dry_run=dry_run)
        if why is None and not dry_run:
            clear(copy.path)
    return why


def _find_obstacle(copy: CachedCopy, tenant: Tenant | None, locks: ExitStack, *, dry_run: bool) -> str | None:
    """Why it has to stay; None: it may go, and the locks of its session are held (not in a dry run)."""
    if tenant is None:
        old = time.time() - copy.used_at >= UNKNOWN_S
        return None if old else "it is not noted which session it is of, and it is younger than 30 days"
    if tenant.worktree is not None and os.path.lexists(tenant.worktree):
        return f"a node of this machine has its worktree: {tenant.worktree}"
    session = SessionDir(Path(tenant.session))
    if any(survivor.task == tenant.task for survivor in find_marked().get(tenant.session_id, ())):
        return f"a process of session {tenant.session_id} still runs"
    if not session.path.is_dir():
        return None  # it was deleted
    if session.is_alive():
        return f"session {tenant.session_id} uses it"
    for name in () if dry_run else LOCK_NAMES:
        try:
            locks.callback(os.close, session.hold_lock(name, timeout_s=_LOCK_S))
        except (StoreError, OSError):
            return f"session {tenant.session_id} uses it"
    if not tenant.in_room and _has_worktree(session, tenant):
        return f"its worktree is there: sessionrun clean --worktrees {tenant.session_id}"
    return None


def _has_worktree(session: SessionDir, tenant: Tenant) -> bool:
    """Whether the worktree of the attempt is there, as far as its claim tells."""
    claims = [claim for attempt, _, claim in find_claims(session.path, tenant.task) if attempt == tenant.attempt]
    return any(isinstance(claim, JobFileError) or any(path.exists() for path in claim.paths) for claim in claims)


def _places(target: Path) -> tuple[Path, ...]:
    return target, beside_path(target), trash_path(target), tenant_path(target)


def _list_names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
