"""What every door to a landing says of the work: which commit of a task is to land, and whose work it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sessionrun.model.places import Repository
from sessionrun.model.spec import TaskSpec
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


def gather_links(tasks: Iterable[TaskSpec]) -> tuple[str, ...]:
    """The links of the worktrees of tasks; those of repositories elsewhere are not among them."""
    return tuple(dict.fromkeys(link for task in tasks if task.upstream is None for link in task.links))


def word_trailers(
    task: str, session_id: str, agent: str, model: str | None, cost_usd: float | None
) -> tuple[str, ...]:
    """The lines at the end of the message of a task's merge: whose work it is."""
    said = {
        "Task": task,
        "Session": session_id,
        "Agent": agent,
        "Model": model,
        "Cost": None if cost_usd is None else f"{cost_usd:.4f} USD",
    }
    return tuple(f"Sessionrun-{name}: {' '.join(str(value).split())}" for name, value in said.items() if value)
