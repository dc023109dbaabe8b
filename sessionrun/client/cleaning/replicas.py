"""The replicas of repositories that this machine's nodes have: how big they are, and removing those of no use.

A replica holds what tasks began with, which sessions send again.  It stays while its node has jobs, and while a
worktree of it is there: that is work which did not come home.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.runtime.node.directory import JOBS, find_nodes_dir
from sessionrun.store.files import list_folders
from sessionrun.workspaces.registration import hold_lock, remove_tree
from sessionrun.workspaces.space import measure

FOLDER: Final = "repositories"
TRASH: Final = ".trash-"
_LOCK_S: Final = 0.0


@frozen
class Replica:
    """One replica: its directory, when it was used last (wall time), and its size (bytes)."""

    path: Path
    used_at: float
    size: int

    @property
    def repo(self) -> None:
        """It is not noted of which repository it is."""

    @property
    def worktrees(self) -> list[str]:
        """The worktrees in it."""
        return list_folders(self.path / "worktrees")


def iterate_replicas(nodes: Path | None = None) -> Iterator[Replica]:
    """The replicas of all nodes of this machine, by name."""
    nodes = nodes or find_nodes_dir(os.environ)
    for node in list_folders(nodes):
        for name in list_folders(nodes / node / FOLDER):
            path = nodes / node / FOLDER / name
            try:
                used_at = max(each.lstat().st_mtime for each in (path, *path.iterdir()))
                yield Replica(path, used_at, measure(path))
            except (OSError, ValueError):
                continue  # removed meanwhile


def find_left(nodes: Path | None = None) -> Iterator[Path]:
    """Worktrees in replicas of nodes that have no jobs: nothing works on them, or will send them home."""
    nodes = nodes or find_nodes_dir(os.environ)
    for node in list_folders(nodes):
        if not _has_jobs(nodes / node):
            for name in list_folders(nodes / node / FOLDER):
                folder = nodes / node / FOLDER / name / "worktrees"
                yield from (folder / worktree for worktree in list_folders(folder))


def _has_jobs(node: Path) -> bool:
    return any(list_folders(site / JOBS) for site in node.glob("node-*"))


def remove_replica(replica: Replica, *, dry_run: bool = False) -> str | None:
    """Remove a replica; why it stays, or None.

    Raises:
        OSError: it cannot be removed.
    """
    node = replica.path.parent.parent
    if _has_jobs(node):
        return f"the node {node.name} has jobs"
    if replica.worktrees:
        return f"there are worktrees in it: {replica.path / 'worktrees' / replica.worktrees[0]}"
    try:
        with hold_lock(replica.path / "lock", 0o600, _LOCK_S):
            if not dry_run:
                trash = replica.path.with_name(f"{TRASH}{replica.path.name}")
                os.rename(replica.path, trash)
                remove_tree(trash)
            return None
    except SessionrunError:
        return "it is in use"
