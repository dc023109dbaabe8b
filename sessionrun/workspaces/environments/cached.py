"""What the cache has of environments: entries with their sizes and last uses, and removing them.

An entry is copied for each task and never shared, so no task needs one that it has a copy of.  The copies are not
listed here: each goes with its worktree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.store.files import list_folders
from sessionrun.workspaces.environments.copying import MANIFEST
from sessionrun.workspaces.environments.entries import discard, hold_digest
from sessionrun.workspaces.environments.request import FOLDER, EnvironmentProblem
from sessionrun.workspaces.space import Cached, measure

_ENTRY: Final = re.compile(r"(?:\.new-|\.old-)?([0-9a-f]{16,64})(?:-[^/]*)?")
"""An entry, one that is built, or one that is deleted; in each is the digest, whose lock is held meanwhile."""


def iterate_environments(cache: Path) -> Iterator[Cached]:
    """The entries of a cache, by name, and what killed processes left of others.

    They belong to no repository: others with the same inputs use them, too.
    """
    for name in list_folders(cache / FOLDER):
        path = cache / FOLDER / name
        if _ENTRY.fullmatch(name) is None:
            continue
        try:
            mark = path / MANIFEST if (path / MANIFEST).is_file() else path
            yield Cached(path, mark.stat().st_mtime, measure(path))
        except FileNotFoundError:
            continue  # removed meanwhile


def remove_environment(entry: Cached, *, dry_run: bool = False) -> str | None:
    """Remove an entry; why it stays, or None.

    Raises:
        OSError: it cannot be removed.
    """
    named = _ENTRY.fullmatch(entry.path.name)
    assert named is not None
    try:
        with hold_digest(entry.path.parent, named[1], 0.0, lambda line: None):
            if not dry_run:
                discard(entry.path, named[1])
    except EnvironmentProblem:
        return "it is in use"
    return None
