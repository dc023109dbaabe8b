"""Finds whose work is on a branch of its own and has not landed.  Nothing here changes a repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessionrun.client.graph import walk
from sessionrun.client.reading.steps import Unlanded
from sessionrun.model.errors import SessionrunError
from sessionrun.model.words import read_landing
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.diff import is_unchanged

Task = Mapping[str, Any]


def find_unlanded(session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task]) -> Unlanded:
    """Sort the tasks whose branches are left; none where the repository or its branch is gone."""
    ended = [
        task for task in tasks if task["status"] == "completed" and task["base_commit"] and not task.get("repo")
    ]
    if not ended:
        return Unlanded()
    from sessionrun.git.private import open_fence
    from sessionrun.session.history import load_spec_now  # most sessions that are looked at have no worktrees

    repository = load_spec_now(session).repository
    if repository is None:
        return Unlanded()
    target, words = f"refs/heads/{repository.base_branch}", ("--format=%(refname:lstrip=2)", "refs/heads")
    try:
        with open_fence(repository) as fence:
            alone = set(fence.main().line("for-each-ref", f"--no-merged={target}", *words).split("\n"))
            done = set(fence.main().line("for-each-ref", f"--merged={target}", *words).split("\n"))
    except (SessionrunError, OSError):
        return Unlanded()
    landings = {task["id"]: read_landing(task) for task in view["tasks"]}
    waiting = [task for task in ended if (task["rescue_branch"] or task["branch"]) in alone]
    waiting = [task for task in waiting if landings[task["id"]] != "landed" and not is_unchanged(task)]
    ready = [task["id"] for task in waiting if not landings[task["id"]] and _is_whole(task)]
    within = _find_reached(ready, view["tasks"], repository.base_commit)
    built_on = [task["id"] for task in view["tasks"] if task["id"] in within and not is_unchanged(task)]
    return Unlanded(
        repository.base_branch,
        tuple(name for name in built_on if landings[name] != "landed"),
        tuple(task["id"] for task in waiting if landings[task["id"]] == "bounced"),
        tuple(task["id"] for task in waiting if not landings[task["id"]] and not _is_whole(task)),
        tuple(task["id"] for task in ended if task["branch"] in done - {repository.base_branch}),
    )


def _is_whole(task: Task) -> bool:
    return bool(task["outcome"] == "succeeded" and task["commit"] is not None and not task["rescue_branch"])


def _find_reached(names: Sequence[str], graph: Sequence[Task], base: str) -> set[str]:
    """The tasks and, where their worktrees began with the work of their needs, those too."""
    by_id = {node["id"]: node for node in graph}

    def next_of(name: str) -> list[str]:
        at = by_id[name]
        return [] if at["base_commit"] == base else [need for need in at["needs"] if need in by_id]

    return {*names, *walk(names, next_of)}


def locate_work(session: SessionDir, tasks: Sequence[Task]) -> dict[str, str]:
    """Where the branches of tasks with a repository of their own are, by id: in that or in its mirror."""
    own = {task["id"] for task in tasks if task.get("repo") and (task["rescue_branch"] or task["branch"])}
    places: dict[str, str] = {}
    if not own:
        return places
    from sessionrun.model.repositories import repository_of
    from sessionrun.session.history import load_spec_now

    spec = load_spec_now(session)
    for task in spec.tasks:
        repository = repository_of(spec, task) if task.id in own else None
        if repository is not None and task.upstream is not None:
            places[task.id] = task.upstream.repo if task.upstream.home else repository.top
    return places
