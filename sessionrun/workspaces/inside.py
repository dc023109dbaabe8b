"""Repositories inside a worktree: submodules and clones, whose work no commit of the worktree can hold.

A submodule's own repository lies in the worktree's administrative directory and goes with it; a clone that was
added to the index looks unchanged to git whatever was committed in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sessionrun.git import Git, GitError


def find_repositories(git: Git, git_dir: Path, gitlinks: Sequence[str]) -> Iterator[str]:
    """Say of each repository inside the worktree whose work would be lost with it what is the matter.

    Args:
        git: in the worktree.
        git_dir: the worktree's administrative directory.
        gitlinks: paths at which the index holds a commit of another repository.
    """
    for name in gitlinks:
        if (git.directory / name / ".git").is_dir():
            yield f"{name}/ is a repository of its own"
    if gitlinks:
        yield from _find_dirty(git)
    for repository in _submodules(git_dir / "modules"):
        if _has_own_commits(git, repository):
            yield f"submodule {repository.relative_to(git_dir / 'modules')} has commits of its own"


def _find_dirty(git: Git) -> Iterator[str]:
    """Submodules with another commit checked out or with changes, also where settings say to overlook them."""
    words = ("status", "--porcelain=v2", "-z", "--untracked-files=no", "--ignore-submodules=none")
    entries = iter(git.names(*words))
    for entry in entries:
        parts = entry.split(" ")
        if parts[0] == "2":
            next(entries, None)  # a rename's old name is an entry of its own
        if parts[0] in ("1", "2") and parts[2].startswith("S") and parts[2] != "S...":
            name = entry.split(" ", 8 if parts[0] == "1" else 9)[-1]
            yield f"submodule {name} has changes of its own"


def _submodules(modules: Path) -> Iterator[Path]:
    """The repositories of submodules, and those of their submodules."""
    for root, folders, files in os.walk(modules):
        if "HEAD" in files and "objects" in folders:
            yield Path(root)
            folders[:] = [name for name in folders if name == "modules"]


def _has_own_commits(git: Git, repository: Path) -> bool:
    """Whether a commit was made here that its origin, as of the last fetch, does not have."""
    words = ("rev-list", "--max-count=1", "HEAD", "--branches", "--glob=refs/stash", "--not", "--remotes")
    try:
        return bool(git(f"--git-dir={repository}", *words))
    except GitError:
        return True  # it cannot be read, so nobody can say that nothing is in it
