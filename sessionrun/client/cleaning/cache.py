"""The cache that sessions share: which of its entries go, by the age of their last use and by size.

`KINDS` has a row for each kind of entry.  An entry that a session uses, or that holds work, always stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.config import load_cache_dir
from sessionrun.client.evidence import find_marked
from sessionrun.model.errors import JobFileError, SessionrunError, StoreError
from sessionrun.runtime.node.directory import JOBS, find_nodes_dir
from sessionrun.store.files import list_folders
from sessionrun.store.session import SessionDir
from sessionrun.workspaces.cache import find_remains, remove_cached, whole_path
from sessionrun.workspaces.environments.removal import clear, iterate_environments
from sessionrun.workspaces.environments.request import FOLDER, TENANTS, Tenant, load_tenant, tenant_path
from sessionrun.workspaces.mirrors import iterate_mirrors, remove_mirror
from sessionrun.workspaces.registration import find_claims, hold_lock, remove_tree
from sessionrun.workspaces.space import Cached, measure
from sessionrun.workspaces.throwaway import iterate_checkouts

Record = dict[str, Any]
"""What went, or stays, and why: an object of ``clean --cache --json``."""


UNKNOWN_S: Final = 30 * 86400.0
"""An environment without a note stays until it is so old (seconds): which session it is of cannot be known."""

_LOCK_S: Final = 0.5
"""How long a lock of a session is tried for: a reader's probe holds it for an instant."""


def iterate_copies(cache: Path) -> Iterator[Cached]:
    """The environments of tasks in a cache, by name, and what killed processes left of others.

    RELEASE removes the environment of an attempt with its worktree, and so does `clean --worktrees`.  What is left
    is of a session that was deleted by hand, or of one that was killed and whose worktree was taken away.  A note
    in the cache says which attempt it is of, and its name proves the note: it is a hash of the session, task and
    attempt.
    """
    tasks, tenants = cache / FOLDER / "tasks", cache / FOLDER / TENANTS
    names = {whole_path(path).name for path in tasks.glob("*")}
    names |= {path.name.removesuffix(".json") for path in tenants.glob("*")}
    for name in sorted(names):
        places = [path for path in _places(tasks / name) if os.path.lexists(path)]
        try:
            used_at = max(path.lstat().st_mtime for path in places)
            yield Cached(tasks / name, used_at, sum(map(measure, places)))
        except (FileNotFoundError, ValueError):
            continue  # removed meanwhile


def remove_copy(copy: Cached, *, dry_run: bool = False) -> str | None:
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


def _find_obstacle(copy: Cached, tenant: Tenant | None, locks: ExitStack, *, dry_run: bool) -> str | None:
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
    try:
        locks.enter_context(nullcontext() if dry_run else session.hold_all_locks(timeout_s=_LOCK_S))
    except (StoreError, OSError):
        return f"session {tenant.session_id} uses it"
    if not tenant.in_room and _has_worktree(session, tenant):
        return f"its worktree is there: sessionrun clean --worktrees {tenant.session_id}"
    return None


def _has_worktree(session: SessionDir, tenant: Tenant) -> bool:
    """Whether the worktree of the attempt is there, as far as its claim tells."""
    found = find_claims(session.path / "jobs" / tenant.task)
    claims = [claim for attempt, _, claim in found if attempt == tenant.attempt]
    return any(isinstance(claim, JobFileError) or any(path.exists() for path in claim.paths) for claim in claims)


def _places(target: Path) -> tuple[Path, ...]:
    return target, *find_remains(target), tenant_path(target)


_REPLICAS: Final = "repositories"


def iterate_replicas() -> Iterator[Cached]:
    """The replicas of all nodes of this machine, by name."""
    nodes = find_nodes_dir(os.environ)
    for node in list_folders(nodes):
        for name in list_folders(nodes / node / _REPLICAS):
            path = nodes / node / _REPLICAS / name
            try:
                used_at = max(each.lstat().st_mtime for each in (path, *path.iterdir()))
                yield Cached(path, used_at, measure(path))
            except (OSError, ValueError):
                continue  # removed meanwhile


def find_left() -> Iterator[Path]:
    """Worktrees in replicas of nodes that have no jobs: nothing works on them, or will send them home."""
    nodes = find_nodes_dir(os.environ)
    for node in list_folders(nodes):
        if not _has_jobs(nodes / node):
            for name in list_folders(nodes / node / _REPLICAS):
                folder = nodes / node / _REPLICAS / name / "worktrees"
                yield from (folder / worktree for worktree in list_folders(folder))


def _has_jobs(node: Path) -> bool:
    return any(list_folders(site / JOBS) for site in node.glob("node-*"))


def remove_replica(replica: Cached, *, dry_run: bool = False) -> str | None:
    """Remove a replica; why it stays, or None.

    It holds what tasks began with, which sessions send again.  It stays while its node has jobs, and while a
    worktree of it is there: that is work which did not come home.

    Raises:
        OSError: it cannot be removed.
    """
    node = replica.path.parent.parent
    if _has_jobs(node):
        return f"the node {node.name} has jobs"
    worktrees = list_folders(replica.path / "worktrees")
    if worktrees:
        return f"there are worktrees in it: {replica.path / 'worktrees' / worktrees[0]}"
    try:
        with hold_lock(replica.path / "lock", 0o600, 0.0):
            if not dry_run:
                trash = replica.path.with_name(f".trash-{replica.path.name}")
                os.rename(replica.path, trash)
                remove_tree(trash)
            return None
    except SessionrunError:
        return "it is in use"


class Kind(NamedTuple):
    """How entries of one kind are listed and removed; the latter says why one stays.  `what` is its word."""

    what: str
    iterate: Callable[[Path], Iterator[Any]]
    remove: Callable[..., str | None]


KINDS: Final = (
    Kind("mirror", iterate_mirrors, remove_mirror),
    Kind("environment", iterate_environments, remove_cached),
    Kind("environment", iterate_copies, remove_copy),
    Kind("checkout", iterate_checkouts, remove_cached),
)


_REPLICA: Final = Kind("replica", lambda _: iterate_replicas(), remove_replica)
"""The replicas of this machine's nodes lie elsewhere."""


def clean_cache(
    *,
    cache_dir: Path | None = None,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> list[Record]:
    """Remove entries of the cache that nothing needs; say what went and what stays.

    Args:
        cache_dir: the cache; None: the configured one.
        older_than_s: only entries that were used last so many seconds ago.
        max_bytes: remove the longest unused ones until the cache takes no more room than that; with `older_than_s`
            an entry goes if either says so.  Without both all go that nothing needs.
        dry_run: change nothing, and say what would go: `would_remove`.

    Raises:
        InputError: a file of the configuration cannot be used.
    """
    cache = find_cache(cache_dir)
    now = time.time()
    entries: list[tuple[Kind, Cached]] = [(kind, entry) for kind in KINDS for entry in kind.iterate(cache)]
    if cache_dir is None:
        entries += [(_REPLICA, entry) for entry in iterate_replicas()]
    entries.sort(key=lambda pair: pair[1].used_at)
    left = sum(entry.size for _, entry in entries)
    records = []
    for kind, entry in entries:
        old = older_than_s is not None and now - entry.used_at >= older_than_s
        large = max_bytes is not None and left > max_bytes
        if not (old or large or (older_than_s is None and max_bytes is None)):
            continue
        why = _remove(kind, entry, dry_run=dry_run)
        left -= 0 if why else entry.size
        records.append(_describe(kind, entry, why, now, dry_run=dry_run))
    return records


def find_cache(cache_dir: Path | None) -> Path:
    """The cache in use: the one that is named, or else the configured one."""
    return Path(os.path.realpath(cache_dir or load_cache_dir(Path.cwd(), os.environ)))


def _remove(kind: Kind, entry: Cached, *, dry_run: bool) -> str | None:
    try:
        return kind.remove(entry, dry_run=dry_run)
    except (SessionrunError, OSError) as error:
        return f"it cannot be removed: {error}"


def _describe(kind: Kind, entry: Cached, why: str | None, now: float, *, dry_run: bool) -> Record:
    days = max(0.0, now - entry.used_at) / 86400
    words = f"{entry.size / 2**20:.1f} MiB, last used {days:.1f} days ago"
    return {
        "session_id": None,
        "repository": entry.repo,
        "what": kind.what,
        "name": str(entry.path),
        "id": None,
        "bytes": entry.size,
        "removed": why is None and not dry_run,
        "would_remove": why is None if dry_run else None,
        "why": words if why is None else why,
    }
