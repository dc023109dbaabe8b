"""What a plan would run, in which order, and why it was read that way: records for `run --dry-run`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sessionrun.agents import table
from sessionrun.client.graph import measure_depths
from sessionrun.client.planning.plan import Planned
from sessionrun.engine.money import find_task_budget
from sessionrun.engine.task import TaskState, find_handed
from sessionrun.house import find_due
from sessionrun.model.repositories import has_worktree
from sessionrun.model.spec import SLOT, SessionSpec, TaskSpec, title_of
from sessionrun.model.words import format_time
from sessionrun.session.shared import find_counterpart


def describe_plan(planned: Planned) -> dict[str, Any]:
    """The object of `run --dry-run --json`: what would run, with tasks in the order in which they become ready."""
    spec = planned.spec
    states = {task.id: TaskState(task, num) for num, task in enumerate(spec.tasks, 1)}
    needs = {task.id: task.needs for task in spec.tasks}
    depths = measure_depths(needs)
    waves: list[list[str]] = [[] for _ in {*depths.values()}]  # each has all tasks with equally many before them
    for name in needs:
        waves[depths[name]].append(name)
    repository = spec.repository
    places: dict[str, tuple[str, str]] = {}
    for foresee in find_due("preview", spec.tasks, spec):
        places |= foresee(spec)
    return {
        "dialect": spec.dialect,
        "dialect_reason": planned.dialect_reason,
        "agent": spec.agent,
        "agent_reason": planned.agent_reason,
        "total": len(spec.tasks),
        "max_parallel": spec.resources.get(SLOT),
        "base_branch": repository and repository.base_branch,
        "base_commit": repository and repository.base_commit,
        "worktree_dir": spec.seats.directory if spec.seats else repository and repository.worktree_dir,
        "land": spec.landing
        and {"target": spec.landing.target.removeprefix("refs/heads/"), "gates": spec.landing.gates},
        "waves": waves,
        "critical_path": _find_critical_path(needs, depths),
        "starts_at": format_time(spec.limits.starts_at),
        "tasks": [
            {
                "num": states[task.id].num,
                "id": task.id,
                "title": title_of(task),
                "prompts": task.prompts,
                "agent": task.agent,
                "argv": task_argv(spec, task),
                "cwd": _foresee_directory(spec, task, places.get(task.id, (None, None))[1]),
                "branch": places.get(task.id, (None, None))[0],
                "repo": task.upstream and task.upstream.repo,
                "ref": task.upstream and task.upstream.ref,
                "sandbox": task.sandbox and task.sandbox.policy,
                "network": task.sandbox and ", ".join((task.sandbox.network, *task.sandbox.hosts)),
                "needs": task.needs,
                # the tasks whose work its worktree begins with, if each of them changes something
                "begins_at": [handed.task for handed in find_handed(states[task.id], states)]
                if has_worktree(task)
                else None,
            }
            for task in (states[name].spec for wave in waves for name in wave)
        ],
    }


def _foresee_directory(spec: SessionSpec, task: TaskSpec, worktree: str | None) -> str:
    """Where the task runs: in a worktree, the counterpart of the directory in the checkout."""
    cwd = task.cwd or spec.cwd
    if task.upstream is not None:
        return os.path.join("WORKTREE", task.cwd or "").rstrip("/")
    if worktree is None or spec.repository is None:
        return cwd
    return find_counterpart(os.path.join(spec.cwd, cwd), spec.repository.top, worktree) or cwd


def task_argv(spec: SessionSpec, task: TaskSpec) -> list[str]:
    """The argument list of a task's first job; the prompt file has no name yet."""
    return list(
        table.build_argv(
            spec.agents[task.agent],
            model=task.model,
            approve=spec.approve,
            prompt_file="PROMPT-FILE",
            budget=find_task_budget(spec.limits, task),
            extra=task.args,
        )
    )


def _find_critical_path(needs: Mapping[str, Sequence[str]], depths: Mapping[str, int]) -> list[str]:
    """The longest chain of tasks that wait for each other: the session takes at least as long as this chain."""
    path = [max(needs, key=lambda name: depths[name])] if needs else []  # of several the first
    while path and needs[path[-1]]:
        path.append(max(needs[path[-1]], key=lambda name: depths[name]))
    return path[::-1]
