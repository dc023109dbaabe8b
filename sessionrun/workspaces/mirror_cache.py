"""What is in the cache: mirrors with their sizes and last uses, and removing those that nothing needs.

A mirror stays while a process uses it, while a worktree of it is registered, and while a branch of a task in it
holds work that is nowhere else.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.phrases import name_some
from sessionrun.model.upstreams import is_path
from sessionrun.store.files import list_folders
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.mirrors import DRAFT, FOLDER, MARKER, SUFFIX, TRASH, Marker, lock_path
from sessionrun.workspaces.registration import hold_lock, remove_tree
from sessionrun.workspaces.space import Cached, measure
from sessionrun.workspaces.transport import open_room

_LOCK_S: Final = 0.0
"""A lock that is held is not waited for: its holder uses the mirror."""

_MOST_NAMED: Final = 3


def iterate_mirrors(cache: Path) -> Iterator[Cached]:
    """The mirrors of a cache, by name, and what killed processes left of others."""
    folder = cache / FOLDER
    for name in list_folders(folder):
        path = folder / name
        if not name.endswith(SUFFIX) and not name.startswith((DRAFT, TRASH)):
            continue
        try:
            marker = load_record_if_any(path / MARKER, Marker)
            used_at = (path / MARKER if marker else path).stat().st_mtime
        except JobFileError:
            marker, used_at = None, path.stat().st_mtime
        except FileNotFoundError:
            continue  # removed meanwhile
        yield Cached(path, used_at, measure(path), marker.repo if marker else None)


def remove_mirror(mirror: Cached, *, dry_run: bool = False) -> str | None:
    """Remove a mirror; why it stays, or None.

    Raises:
        OSError: it cannot be removed.
    """
    path = mirror.path
    stem = path.name
    for prefix in (DRAFT, TRASH):
        if stem.startswith(prefix):  # the random end of the name is cut off
            stem = stem.removeprefix(prefix).rpartition("-")[0]
    try:
        lock = lock_path(path.with_name(stem))
        with hold_lock(lock, 0o600, _LOCK_S):
            why = _remove_unused(mirror, dry_run=dry_run) if path.name == stem else None
            if path.name != stem:
                _delete(path, dry_run=dry_run)
            if not (dry_run or lock.with_suffix(SUFFIX).exists()):
                lock.unlink()
            return why
    except SessionrunError:
        return "it is in use"


def _remove_unused(mirror: Cached, *, dry_run: bool) -> str | None:
    path = mirror.path
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return "it is in use"
        why = _find_obstacle(mirror)
        if why is None and not dry_run:
            trash = path.with_name(f"{TRASH}{path.name}-{os.getpid()}")
            os.rename(path, trash)
            _delete(trash, dry_run=False)
        return why
    finally:
        os.close(fd)


def _delete(path: Path, *, dry_run: bool) -> None:
    if not dry_run:
        remove_tree(path)


def _find_obstacle(mirror: Cached) -> str | None:
    """Why a mirror that no process uses must stay."""
    if mirror.repo is None:
        return f"its {MARKER} cannot be read: look at it"
    try:
        worktrees = sorted(os.listdir(mirror.path / "worktrees"))
    except FileNotFoundError:
        worktrees = []
    if worktrees:
        return f"it has worktrees: {name_some(worktrees, _MOST_NAMED)} (sessionrun clean --worktrees)"
    with open_room(mirror.path, "") as room:
        unmerged = _find_unmerged(room.git)
    home = _list_branches_at_home(mirror.repo) if unmerged else {}
    branches = sorted(name for name, commit in unmerged.items() if home.get(name) != commit)
    return f"branches of tasks in it hold work: {name_some(branches, _MOST_NAMED)}" if branches else None


def _find_unmerged(git: Git) -> dict[str, str]:
    """The branches of tasks whose commits are not among what was fetched, with these."""
    unmerged = {}
    for name, commit in _list_branches(git).items():
        words = ("--not", "--remotes", "--tags", "--glob=refs/sessionrun/*")
        done = git.attempt("rev-list", "--max-count=1", commit, *words)
        if done.returncode != 0 or done.stdout:
            unmerged[name] = commit
    return unmerged


def _list_branches(git: Git) -> dict[str, str]:
    listed = git.line("for-each-ref", "--format=%(objectname) %(refname:lstrip=2)", "refs/heads")
    return {name: commit for commit, _, name in (line.partition(" ") for line in listed.split("\n")) if name}


def _list_branches_at_home(repo: str) -> dict[str, str]:
    """The branches of a local repository, to which those of tasks are brought; none if it is no such."""
    for common in (Path(repo, ".git"), Path(repo)):
        if is_path(repo) and (common / "objects").is_dir():
            with open_room(common, "") as room:
                return _list_branches(room.git)
    return {}
