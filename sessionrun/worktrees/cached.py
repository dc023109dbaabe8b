"""What lies in the cache for one task alone: its environment, and checkouts for a short time.

In such a checkout are the files of one commit as a task finds them, and no task works there.

Each is in a directory of its own below `CHECKOUTS`.  Its process holds a shared flock(2) on that directory, and
gives it to the programs that read the checkout.  A directory without the lock is what a killed process left, and
goes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from sessionrun.client.evidence import find_marked
from sessionrun.git.clone import make_excerpt, open_clean_room
from sessionrun.git.private import open_fence
from sessionrun.git.repository import ignore_words
from sessionrun.model.errors import JobFileError, StoreError
from sessionrun.store.files import list_folders, make_directories
from sessionrun.store.session import SessionDir
from sessionrun.store.space import Cached, measure
from sessionrun.store.trees import (
    find_remains,
    iterate_entries,
    remove_tree,
    remove_unused,
    share_entry,
    whole_path,
)
from sessionrun.worktrees.bringing import bring_files
from sessionrun.worktrees.crossing import add_tests
from sessionrun.worktrees.env_request import FOLDER, TENANTS, Tenant, clear, load_tenant, tenant_path
from sessionrun.worktrees.mirrored import hold_mirror
from sessionrun.worktrees.registration import find_claims
from sessionrun.worktrees.request import WorkspaceRequest

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
    return any(isinstance(claim, JobFileError) or os.path.exists(claim.worktree) for claim in claims)


CHECKOUTS: Final = "checkouts"
"""Directory in the cache."""


@contextmanager
def open_folder(cache: Path) -> Iterator[tuple[Path, int]]:
    """Make a directory for one checkout, with the file descriptor of its lock; it goes at the end.

    What killed processes left of others goes first.

    Raises:
        OSError: the cache cannot be written.
    """
    make_directories(cache / CHECKOUTS, 0o700)
    for name in list_folders(cache / CHECKOUTS):
        remove_unused(cache / CHECKOUTS / name)
    fd = None
    while fd is None:  # another process may take it for what is left of a killed one
        path = Path(tempfile.mkdtemp(dir=cache / CHECKOUTS))
        fd = share_entry(path)
    try:
        yield path, fd
    finally:
        remove_tree(path)
        os.close(fd)


@contextmanager
def open_checkout(request: WorkspaceRequest, commit: str, folder: Path, tests: str = "") -> Iterator[Path]:
    """Check out a commit as PREPARE does, in a repository of its own; it goes at the end.

    Args:
        request: as for a PREPARE; its repository has `folder` for worktrees.
        folder: of `open_folder`.
        tests: a patch with tests that the checkout gets, as a clean room does.

    Raises:
        SessionrunError, OSError: it cannot be made.
    """
    upstream, objects = request.upstream, folder / "objects"
    common_dir = Path(request.repository.common_dir)
    with hold_mirror(upstream):
        if upstream is not None and upstream.history is not None:
            make_excerpt(common_dir, Path(upstream.mirror), commit, upstream.history, limit_s=request.git_limit_s)
        with open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence:
            main = fence.main().on_trial(objects, common_dir)
            whole = add_tests(main, commit, commit, tests.encode("utf-8", "surrogateescape"), folder)
            with open_clean_room(fence, request.owner, whole, objects) as top:
                if not tests:  # a clean room for tests gets none
                    rules = ignore_words(request.repository, folder)
                    bring_files(fence.main(), request, top, rules, in_room=True)
                yield top


def iterate_checkouts(cache: Path) -> Iterator[Cached]:
    """The directories of checkouts in a cache, by name; each is what a killed process left, or is in use."""
    return iterate_entries(cache / CHECKOUTS, lambda name: True)
