"""What sessions leave in a repository for the next one: locks, pins of landings, directories that are empty.

`clean` removes them with sessions.  Each is removed under its own lock, and only if no process uses it: a session
that begins meanwhile makes it anew.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sessionrun.client.notices import notify
from sessionrun.model.errors import SessionrunError
from sessionrun.model.repositories import repository_of
from sessionrun.queue.place import LOCK_NAME as QUEUE_LOCK
from sessionrun.runtime.history import load_spec_now
from sessionrun.store import locks
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.model.places import Repository


def find_repositories(session: SessionDir) -> list[Repository]:
    """The repositories in which a session's tasks had worktrees."""
    try:
        spec = load_spec_now(session)
    except (SessionrunError, OSError):
        return []  # what removes the session says so
    found = [spec.repository, *(repository_of(spec, task) for task in spec.tasks if task.upstream is not None)]
    return [repository for repository in found if repository is not None]


def make_lock_path(repository: Repository) -> Path:
    """Where the lock of a repository's worktrees is, while there is one."""
    from sessionrun.workspaces.registration import LOCK_NAME

    return Path(repository.common_dir, LOCK_NAME)


def sweep_books(repositories: Iterable[Repository]) -> None:
    """Remove what is left there; what cannot be removed is a warning."""
    for repository in {(one.common_dir, one.worktree_dir): one for one in repositories}.values():
        try:
            if os.path.isdir(repository.common_dir):
                _sweep(repository)
        except (SessionrunError, OSError) as error:
            notify(f"locks in {repository.common_dir}: {error}")
        with suppress(OSError):  # something is in it, or it is gone
            os.rmdir(repository.worktree_dir)


def _sweep(repository: Repository) -> None:
    from sessionrun.landing.slot import sweep_slots
    from sessionrun.workspaces.fence import open_fence
    from sessionrun.workspaces.registration import LOCK_NAME, register_lock
    from sessionrun.workspaces.request import WORKSPACE_LIMIT_S

    common = Path(repository.common_dir)
    with (
        tempfile.TemporaryDirectory(prefix="sessionrun-clean-") as place,
        open_fence(repository, Path(place), limit_s=WORKSPACE_LIMIT_S) as fence,
    ):
        sweep_slots(repository, fence.main())
    locks.remove_free(common / QUEUE_LOCK)
    with register_lock(repository), suppress(OSError):  # PREPARE makes the directory under the same lock
        os.rmdir(repository.worktree_dir)
    locks.remove_free(common / LOCK_NAME)
    unused = [common / "refs" / "sessionrun"]  # git leaves the directory of refs that are gone
    if not os.path.lexists(repository.worktree_dir):
        unused.append(common / "lfs")  # made by `workspaces.fence`
    for folder in unused:
        with suppress(OSError):  # something is in it, or it is not there
            os.rmdir(folder)
