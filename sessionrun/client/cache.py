"""`clean --cache`: which entries of the cache that sessions share go, by the age of their last use and by size.

`KINDS` has a row for each kind of entry.  An entry that a session uses, or that holds work, always stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.config import load_cache_dir
from sessionrun.client.evidence import find_marked
from sessionrun.client.findings import Leftover
from sessionrun.model.errors import JobFileError, SessionrunError, StoreError
from sessionrun.runtime.node.directory import JOBS, find_nodes_dir
from sessionrun.store.files import list_folders
from sessionrun.store.locks import hold_lock
from sessionrun.store.session import SessionDir
from sessionrun.store.space import Cached, measure
from sessionrun.store.trees import remove_tree
from sessionrun.store.user_directories import find_cache_folder
from sessionrun.workspaces.cache import find_remains, remove_cached, whole_path
from sessionrun.workspaces.environments.removal import clear, iterate_environments
from sessionrun.workspaces.environments.request import FOLDER, TENANTS, Tenant, load_tenant, tenant_path
from sessionrun.workspaces.mirrors import iterate_mirrors, remove_mirror
from sessionrun.workspaces.registration import find_claims
from sessionrun.workspaces.throwaway import iterate_checkouts

UNKNOWN_S: Final = 30 * 86400.0
"""An environment without a note stays until it is so old (seconds): which session it is of cannot be known."""

_LOCK_S: Final = 0.5
"""How long a lock of a session is tried for: a reader's probe holds it for an instant."""

_REPLICAS: Final = "repositories"


# --- environments of tasks ---


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
    for target in (tasks / name for name in sorted(names)):
        places = [path for path in (target, *find_remains(target), tenant_path(target)) if os.path.lexists(path)]
        try:
            yield Cached(target, max(path.lstat().st_mtime for path in places), sum(map(measure, places)))
        except (FileNotFoundError, ValueError):
            continue  # removed meanwhile


def remove_copy(copy: Cached, *, dry_run: bool = False) -> str | None:
    """Remove the environment of a task whose attempt cannot go on; why it stays, or None.

    Raises:
        OSError: it cannot be removed.
    """
    tenant = load_tenant(copy.path)
    with ExitStack() as held:
        if tenant is None:
            is_old = time.time() - copy.used_at >= UNKNOWN_S
            why = None if is_old else "it is not noted which session it is of, and it is younger than 30 days"
        else:
            why = _find_user(tenant, held, dry_run=dry_run)
        if why is None and not dry_run:
            clear(copy.path)
    return why


def _find_user(tenant: Tenant, held: ExitStack, *, dry_run: bool) -> str | None:
    """Who may use an environment; None: no process, and the locks of its session are held (not in a dry run)."""
    if tenant.worktree is not None and os.path.lexists(tenant.worktree):
        return f"a node of this machine has its worktree: {tenant.worktree}"
    session = SessionDir(Path(tenant.session))
    if any(survivor.task == tenant.task for survivor in find_marked().get(tenant.session_id, ())):
        return f"a process of session {tenant.session_id} still runs"
    if not session.path.is_dir():
        return None  # it was deleted
    in_use = f"session {tenant.session_id} uses it"
    if session.is_alive():
        return in_use
    try:
        if not dry_run:
            held.enter_context(session.hold_all_locks(timeout_s=_LOCK_S))
    except (StoreError, OSError):
        return in_use
    if not tenant.in_room and _has_worktree(session, tenant):
        return f"its worktree is there: sessionrun clean --worktrees {tenant.session_id}"
    return None


def _has_worktree(session: SessionDir, tenant: Tenant) -> bool:
    """Whether the worktree of the attempt is there, as far as its claim tells."""
    found = find_claims(session.path / "jobs" / tenant.task)
    claims = [claim for attempt, _, claim in found if attempt == tenant.attempt]
    return any(isinstance(claim, JobFileError) or any(path.exists() for path in claim.paths) for claim in claims)


# --- replicas on nodes of this machine: they lie beside the cache ---


def iterate_replicas() -> Iterator[Cached]:
    """The replicas of all nodes of this machine, by name."""
    for path in _list_replicas():
        try:
            yield Cached(path, max(each.lstat().st_mtime for each in (path, *path.iterdir())), measure(path))
        except (OSError, ValueError):
            continue  # removed meanwhile


def find_stranded() -> Iterator[Path]:
    """Worktrees in replicas of nodes that have no jobs: nothing works on them, or will send them home."""
    for replica in _list_replicas():
        if not _has_jobs(replica.parent.parent):
            yield from (replica / "worktrees" / name for name in list_folders(replica / "worktrees"))


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


def _list_replicas() -> list[Path]:
    nodes = find_nodes_dir(os.environ)
    folders = (nodes / node / _REPLICAS for node in list_folders(nodes))
    return [folder / name for folder in folders for name in list_folders(folder)]


def _has_jobs(node: Path) -> bool:
    return any(list_folders(site / JOBS) for site in node.glob("node-*"))


# --- what goes ---


class Kind(NamedTuple):
    """How entries of one kind are listed and removed; the latter says why one stays.  `what` is its word."""

    what: str
    iterate: Callable[[Path], Iterator[Cached]]
    remove: Callable[..., str | None]


KINDS: Final = (
    Kind("mirror", iterate_mirrors, remove_mirror),
    Kind("environment", iterate_environments, remove_cached),
    Kind("environment", iterate_copies, remove_copy),
    Kind("checkout", iterate_checkouts, remove_cached),
)


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
        dry_run: change nothing, and say what would go: `would_remove`.

    Raises:
        InputError: a file of the configuration cannot be used.
    """
    cache = Path(os.path.realpath(cache_dir or load_cache_dir(Path.cwd(), os.environ) or find_cache_folder()))
    entries = [(kind.what, kind.remove, entry) for kind in KINDS for entry in kind.iterate(cache)]
    if cache_dir is None:
        entries += [("replica", remove_replica, entry) for entry in iterate_replicas()]
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
