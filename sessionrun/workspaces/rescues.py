"""Rescue branches: those that a task has, and new ones for what only the HEAD of a lost worktree holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sessionrun.workspaces.git import Git
from sessionrun.workspaces.park import make_rescue
from sessionrun.workspaces.registration import find_lost_admins, load_owner
from sessionrun.workspaces.request import RESCUE_SUFFIX, WorkspaceRequest


def rescue_lost_head(request: WorkspaceRequest, main: Git, path: Path) -> Iterator[tuple[str, str]]:
    """Make a rescue branch for each commit that only the HEAD of a worktree holds whose directory is gone.

    Yields commit and branch of each; no branch changes while `main` is on trial.

    Raises:
        SessionrunError: no branch can be made.
    """
    place = request.place
    for admin in find_lost_admins(request.repository, path):
        if place is None or place.branch is None or load_owner(admin) != request.owner or path.exists():
            continue
        commit = replace(main, git_dir=admin).commit_of("HEAD")
        if commit is not None and not main.line("for-each-ref", "--count=1", "--contains", commit):
            yield make_rescue(main, place.branch, commit, ours=False)


def find_rescues(main: Git, branch: str) -> list[str]:
    """The rescue branches of a task branch, oldest first."""
    stem = f"refs/heads/{branch}{RESCUE_SUFFIX}"
    listed = main.line("for-each-ref", "--format=%(refname)", f"{stem}*").split("\n")
    names = [name for name in listed if re.fullmatch(r"(-[0-9]+)?", name.removeprefix(stem)) and name]
    return [name.removeprefix("refs/heads/") for name in sorted(names, key=lambda name: (len(name), name))]
