"""The replicas of repositories on the nodes of this machine: which there are, and which may go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.runtime.node.directory import JOBS, find_nodes_dir
from sessionrun.store.files import list_folders
from sessionrun.store.locks import hold_lock
from sessionrun.store.space import Cached, measure
from sessionrun.store.trees import remove_tree

_REPLICAS: Final = "repositories"


def iterate_replicas(_: Path) -> Iterator[Cached]:
    """The replicas of all nodes of this machine, by name: they lie beside the cache."""
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
