"""What the cache has of environments: entries with their sizes and last uses, and removing them.

An entry is copied for each task and never shared, so no task needs one that it has a copy of.  The copies are not
listed here: each goes with its worktree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.store.files import list_folders
from sessionrun.workspaces.environments.entries import hold_digest
from sessionrun.workspaces.environments.manifest import MANIFEST
from sessionrun.workspaces.environments.request import FOLDER, EnvironmentProblem
from sessionrun.workspaces.registration import remove_tree
from sessionrun.workspaces.space import measure

_ENTRY: Final = re.compile(r"(?:\.new-|\.old-)?([0-9a-f]{16,64})(?:-[^/]*)?")
"""An entry, one that is built, or one that is deleted; in each is the digest, whose lock is held meanwhile."""


@frozen
class CachedEnvironment:
    """One entry: where it is, its digest, when it was used last (wall time), and its size (bytes)."""

    path: Path
    digest: str
    used_at: float
    size: int

    @property
    def repo(self) -> None:
        """It belongs to no repository: others with the same inputs use it, too."""


def iterate_environments(cache: Path) -> Iterator[CachedEnvironment]:
    """The entries of a cache, by name, and what killed processes left of others."""
    folder = cache / FOLDER
    for name in list_folders(folder):
        named, path = _ENTRY.fullmatch(name), folder / name
        if named is None:
            continue
        try:
            mark = path / MANIFEST if (path / MANIFEST).is_file() else path
            yield CachedEnvironment(path, named[1], mark.stat().st_mtime, measure(path))
        except FileNotFoundError:
            continue  # removed meanwhile


def remove_environment(entry: CachedEnvironment, *, dry_run: bool = False) -> str | None:
    """Remove an entry; why it stays, or None.

    Raises:
        OSError: it cannot be removed.
    """
    path = entry.path
    try:
        with hold_digest(path.parent, entry.digest, 0.0, lambda line: None):
            if dry_run:
                return None
            if not path.name.startswith("."):
                trash = path.with_name(f".old-{entry.digest}-{os.getpid()}")
                os.rename(path, trash)
                path = trash
            remove_tree(path)
    except EnvironmentProblem:
        return "it is in use"
    return None
