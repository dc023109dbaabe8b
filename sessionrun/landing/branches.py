"""Which commit of a task is to land: that of its work, or the tip of the branch that went on from there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sessionrun.model.places import Repository
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.git import Git


def follow_branches(
    repository: Repository, commits: Mapping[str, str], branches: Mapping[str, str], folder: Path | None = None
) -> dict[str, str]:
    """What is to land for each task: its commit or, if its branch went on from there, the tip of its branch.

    A person mends a conflict there.

    Args:
        repository: where the branches are.
        commits: by task, the commit that holds its work.
        branches: by task, the name of its branch.
        folder: where a temporary directory may be made; None: among the system's.

    Raises:
        SessionrunError, OSError: git failed.
    """
    with open_fence(repository, folder) as fence:
        git = fence.main()
        listed = git.line("for-each-ref", "--format=%(objectname) %(refname:lstrip=2)", "refs/heads")
        tips = {name: tip for tip, _, name in (line.partition(" ") for line in listed.split("\n"))}
        return {task: _find_tip(git, commit, tips.get(branches.get(task, ""))) for task, commit in commits.items()}


def _find_tip(git: Git, commit: str, tip: str | None) -> str:
    if tip is None or tip == commit:
        return commit
    is_ahead = git.attempt("merge-base", "--is-ancestor", commit, tip).returncode == 0
    return tip if is_ahead else commit
