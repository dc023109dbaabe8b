"""Removes rooms of gates that no landing uses: the lock of a target's slot says whether one does.

A room holds no work, and the next landing makes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from sessionrun.landing.gates import find_prefix
from sessionrun.landing.slot import lock_path
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Repository
from sessionrun.workspaces.registration import hold_lock, remove_tree


class FoundRoom(NamedTuple):
    """A room: `removed` is whether it was (or would be) removed, `why` the reason."""

    path: Path
    removed: bool
    why: str


def clean_rooms(repository: Repository, *, dry_run: bool) -> Iterator[FoundRoom]:
    """Remove the rooms of a repository that no landing uses now.

    Raises:
        OSError: one cannot be removed.
    """
    folder = Path(repository.worktree_dir)
    for path in sorted(folder.glob(f"{find_prefix(repository)}*")):
        if path.is_symlink() or not path.is_dir():
            continue  # none of ours
        try:
            with _hold(repository, path):
                if not dry_run:
                    remove_tree(path)
        except SessionrunError:
            yield FoundRoom(path, False, "a landing uses it")
        else:
            yield FoundRoom(path, True, "no landing uses it")


def _hold(repository: Repository, path: Path) -> AbstractContextManager[None]:
    """The lock of the slot whose gates run in a room, if it is free; where there is no lock, no landing was."""
    lock = lock_path(repository, path.name.rpartition("-")[2])
    return hold_lock(lock, timeout_s=0.0) if lock.exists() else nullcontext()
