"""Finds how the user gets the work of tasks with worktrees: which branches to look at, and which to merge.

Branches come in the order of the graph, without those that another branch contains.  Nothing here changes a
repository.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.client.reading.changes import is_unchanged
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Repository, Start
from sessionrun.model.repositories import repository_of
from sessionrun.store.session import SessionDir
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.git import Git, GitError

MAX_COMPARED: Final = 500
"""How many branches are compared with each other at most."""

Task = Mapping[str, Any]


class Inspected(NamedTuple):
    """A task whose work the user should look at before a merge, and the branches that hold this work."""

    task: Task
    branches: tuple[str, ...]


class Merged(NamedTuple):
    """A task whose work can be merged; if it is `inside` another branch, `holder` is that branch, if known."""

    task: Task
    inside: bool
    holder: str | None


class Merges(NamedTuple):
    """What to look at first, and what to merge in this order.

    `landing` are the ids of the tasks that one `sessionrun merge` lands; empty: it cannot.  `landed` are the
    branches whose work is where it was to land.
    """

    inspected: tuple[Inspected, ...]
    merged: tuple[Merged, ...]
    landing: tuple[str, ...] = ()
    landed: tuple[str, ...] = ()


def group_by_repository(session: SessionDir, tasks: Sequence[Task]) -> list[tuple[Repository, list[Task]]]:
    """The tasks that have a repository, by that and by the ref at which they began.

    Its `top` is where a user merges; of a mirror of a repository elsewhere it is the mirror.
    """
    from sessionrun.runtime.history import load_spec_now

    spec = load_spec_now(session)
    by_id = {task.id: task for task in spec.tasks}
    groups: dict[tuple[str, str], tuple[Repository, list[Task]]] = {}
    for task in tasks:
        own = by_id.get(task["id"])
        named, commit = task.get("ref_name"), task.get("ref_commit")
        start = Start(named, commit) if named and commit else None
        repository = spec.repository if own is None else repository_of(spec, own, start)
        if repository is None or (repository.upstream and start is None):
            continue
        if own is not None and own.upstream is not None and own.upstream.home:
            repository = replace(repository, top=own.upstream.repo)
        groups.setdefault((repository.common_dir, repository.base_commit), (repository, []))[1].append(task)
    return list(groups.values())


def plan_merges(view: Mapping[str, Any], tasks: Sequence[Task], repository: Repository) -> Merges:
    """How to get the work of tasks that ran in worktrees.

    Args:
        view: the session.
        tasks: the tasks to show.
        repository: where the session was started.
    """
    with ExitStack() as stack:
        try:
            git = stack.enter_context(open_fence(repository)).main()
            branches = _list_branches(git)
        except (SessionrunError, OSError):  # the repository is gone
            git, branches = Git(Path(repository.top)), {}
        return _plan(view, tasks, repository, git, branches)


def _plan(
    view: Mapping[str, Any],
    tasks: Sequence[Task],
    repository: Repository,
    git: Git,
    branches: Mapping[str, str],
) -> Merges:
    ended = [task for task in tasks if task["status"] == "completed" and task["base_commit"]]
    holders = {task["id"]: _find_holders(task, branches) for task in ended}
    sound = [task for task in ended if task["outcome"] == "succeeded" and task["commit"] is not None]
    graph = view["tasks"]
    there = {node["id"] for node in graph if read_landing(node) == "landed"}
    stuck = [task for task in ended if read_landing(task) in ("bounced", "mending", "waiting")]
    ended = [task for task in ended if task["id"] not in there or task["worktree"]]
    good = [task for task in sound if holders[task["id"]] == [task["branch"]] and task not in stuck]
    landed = tuple(task["branch"] for task in good if task["id"] in there and not task["worktree"])
    good = [task for task in good if task["id"] not in there]
    others = [task for task in ended if holders[task["id"]] or task["worktree"] or task.get("worktree_remark")]
    inspected = tuple(Inspected(task, tuple(holders[task["id"]])) for task in others if task not in good)
    if not good:
        return Merges(inspected, (), (), landed)
    reached = {task["id"]: _find_reached(task, graph, repository.base_commit) for task in good}
    ordered = order_by_needs(good, graph)
    listed = _leave_out_contained(git, ordered, branches, reached)
    merged = []
    for task in ordered:
        inside = not any(other is task for other in listed)
        holder = next((other["branch"] for other in listed if task["id"] in reached[other["id"]]), None)
        merged.append(Merged(task, inside, holder if inside else None))
    within = {name for task in good for name in reached[task["id"]]}
    can_land = repository.base_branch in branches and not any(task.get("repo") for task in good)
    nodes = [node["id"] for node in graph if node["id"] in within - there and not is_unchanged(node)]
    landing = tuple(nodes) if can_land else ()
    return Merges(inspected, tuple(merged), landing, landed)


def read_landing(task: Task) -> str | None:
    """Where a task's work stands on its way to a branch; None: nothing has tried to land it."""
    landing = task.get("landing")
    return landing["status"] if landing else None


def _list_branches(git: Git) -> dict[str, str]:
    """All branches with their tips now; users often delete merged branches, and `clean` may have made others."""
    listed = git.line("for-each-ref", "--format=%(objectname) %(refname:lstrip=2)", "refs/heads")
    return {name: tip for tip, _, name in (line.partition(" ") for line in listed.split("\n"))}


def _find_holders(task: Task, branches: Collection[str]) -> list[str]:
    """Return the branches that hold a task's work; without a recorded commit, all that may hold it."""
    branch, rescue = task["branch"], task["rescue_branch"]
    if is_unchanged(task):
        return []
    if task["commit"] is not None:
        return [name for name in (rescue or branch,) if name in branches]
    rescues = re.compile(re.escape(f"{branch}-rescue") + "(-[0-9]+)?")
    return [name for name in branches if name == branch or rescues.fullmatch(name)]


def order_by_needs(tasks: Sequence[Task], graph: Sequence[Task]) -> list[Task]:
    """The tasks in order: each behind all tasks of the graph that it needs, else by number."""
    from graphlib import TopologicalSorter

    needs = {task["id"]: task["needs"] for task in graph}
    depths: dict[str, int] = {}
    for name in TopologicalSorter(needs).static_order():
        depths[name] = 1 + max((depths[need] for need in needs.get(name, ())), default=-1)
    return sorted(tasks, key=lambda task: (depths[task["id"]], task["num"]))


def _find_reached(task: Task, graph: Sequence[Task], base: str) -> set[str]:
    """The ids of the tasks whose work is in a task's branch: the task's own, and what its worktree began with."""
    by_id = {node["id"]: node for node in graph}
    reached, queue = {task["id"]}, [task]
    while queue:
        at = queue.pop()
        if at["base_commit"] == base:
            continue  # it began with the session, not with its needs
        for need in at["needs"]:
            if need in by_id and need not in reached:
                reached.add(need)
                queue.append(by_id[need])
    return reached


def _leave_out_contained(
    git: Git, tasks: list[Task], branches: Mapping[str, str], reached: Mapping[str, set[str]]
) -> list[Task]:
    """The tasks whose branches no other branch contains, by git or, if they are many, by the graph."""
    if all(len(reached[task["id"]]) == 1 for task in tasks):
        return tasks
    tips = {branches[task["branch"]]: task for task in reversed(tasks)}
    if len(tips) > MAX_COMPARED:
        inside = {name for task in tasks for name in reached[task["id"]] - {task["id"]}}
        return [task for task in tasks if task["id"] not in inside]
    try:
        alone = git.line("merge-base", "--independent", *tips).split("\n")
    except GitError:
        return tasks
    kept = {tips[tip]["id"] for tip in alone if tip in tips}
    return [task for task in tasks if task["id"] in kept]
