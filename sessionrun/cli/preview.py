"""`run --dry-run`: what would run, in which order, and why it was read that way."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from itertools import chain, count
from pathlib import Path
from typing import Any

import click

from sessionrun import agents
from sessionrun.cli.planning import Planned
from sessionrun.cli.render import escape_line, print_json
from sessionrun.model import SLOT, Repository, SessionSpec, TaskSpec, title_of


def print_preview(planned: Planned, *, as_json: bool) -> None:
    """Print the tasks in the order in which they become ready."""
    record = preview_record(planned)
    if as_json:
        print_json(record)
        return
    click.echo(f"Dialect: {record['dialect']} ({record['dialect_reason']})")
    click.echo(f"Agent: {record['agent']} ({record['agent_reason']})")
    parallel = record["max_parallel"]
    click.echo(f"Tasks: {record['total']}, {f'at most {parallel}' if parallel else 'all'} at once")
    if record["worktree_dir"]:
        click.echo(f"Worktrees: in {escape_line(record['worktree_dir'])}")
        click.echo(f"Base: {escape_line(record['base_branch'])} at {record['base_commit'][:12]}")
    for task in record["tasks"]:
        click.echo(f"\n  Task {task['num']} (ID: {task['id']}): {escape_line(task['title'])}")
        click.echo(f"    argv: {escape_line(shlex.join(task['argv']))}")
        click.echo(f"    cwd: {escape_line(task['cwd'])}")
        if task["branch"]:
            click.echo(f"    branch: {escape_line(task['branch'])}")
        if task["needs"]:
            click.echo(f"    needs: {', '.join(task['needs'])}")


def preview_record(planned: Planned) -> dict[str, Any]:
    """What `run --dry-run --json` prints."""
    spec = planned.spec
    nums = {task.id: num for num, task in enumerate(spec.tasks, 1)}
    repository = spec.repository
    branches = {} if repository is None else _foresee_branches(repository, spec.tasks)
    return {
        "dialect": spec.dialect,
        "dialect_reason": planned.dialect_reason,
        "agent": spec.agent,
        "agent_reason": planned.choice.why,
        "total": len(spec.tasks),
        "max_parallel": spec.resources.get(SLOT),
        "base_branch": repository and repository.base_branch,
        "base_commit": repository and repository.base_commit,
        "worktree_dir": repository and repository.worktree_dir,
        "tasks": [
            {
                "num": nums[task.id],
                "id": task.id,
                "title": title_of(task),
                "agent": task.agent,
                "argv": task_argv(spec, task),
                "cwd": _foresee_directory(spec, task, branches.get(task.id)),
                "branch": branches.get(task.id),
                "needs": task.needs,
            }
            for task in order_tasks(spec.tasks)
        ],
    }


def _foresee_branches(repository: Repository, tasks: tuple[TaskSpec, ...]) -> dict[str, str]:
    """The branch that each task with a worktree gets, unless somebody takes that name before it starts."""
    from sessionrun.git import Git

    stem = f"{repository.base_branch}-task-"
    git = Git(Path(repository.top))
    taken = set(git.line("for-each-ref", "--format=%(refname:lstrip=2)", f"refs/heads/{stem}*").split("\n"))
    branches = {}
    for task in tasks:
        if task.workspace.kind == "worktree":
            names = chain((stem + task.id,), (f"{stem}{task.id}-{number}" for number in count(2)))
            branches[task.id] = next(name for name in names if not _is_taken(repository, name, taken))
    return branches


def _is_taken(repository: Repository, branch: str, taken: Collection[str]) -> bool:
    from sessionrun.workspaces import RESCUE_SUFFIX

    used = branch in taken or branch + RESCUE_SUFFIX in taken
    return used or os.path.lexists(_directory_of(repository, branch))


def _directory_of(repository: Repository, branch: str) -> str:
    return os.path.join(repository.worktree_dir, branch.replace("/", "-"))


def _foresee_directory(spec: SessionSpec, task: TaskSpec, branch: str | None) -> str:
    """Where the task runs: in its worktree in the place of the directory that was meant in the checkout."""
    cwd = os.path.join(spec.cwd, task.cwd or "")
    if branch is None or spec.repository is None:
        return task.cwd or spec.cwd
    inside = os.path.relpath(os.path.realpath(cwd), os.path.realpath(spec.repository.top))
    worktree = _directory_of(spec.repository, branch)
    return task.cwd or spec.cwd if inside.startswith("..") else os.path.normpath(os.path.join(worktree, inside))


def task_argv(spec: SessionSpec, task: TaskSpec) -> list[str]:
    """The argument list of a task's first job; the prompt file has no name yet."""
    return list(
        agents.build_argv(
            spec.agents[task.agent], model=task.model, approve=spec.approve, prompt_file="PROMPT-FILE"
        )
    )


def order_tasks(tasks: tuple[TaskSpec, ...]) -> list[TaskSpec]:
    """The tasks, each behind all it needs, else in the plan's order."""
    from heapq import heapify, heappop, heappush

    place = {task.id: num for num, task in enumerate(tasks)}
    unmet = {task.id: len(set(task.needs)) for task in tasks}
    waiting: dict[str, list[str]] = {}
    for task in tasks:
        for need in set(task.needs):
            waiting.setdefault(need, []).append(task.id)
    ready = [place[task_id] for task_id, count in unmet.items() if not count]
    heapify(ready)
    ordered = []
    while ready:
        task = tasks[heappop(ready)]
        ordered.append(task)
        for dependent in waiting.get(task.id, ()):
            unmet[dependent] -= 1
            if not unmet[dependent]:
                heappush(ready, place[dependent])
    return ordered
