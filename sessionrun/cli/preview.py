"""`run --dry-run`: what would run, in which order, and why it was read that way."""

from __future__ import annotations

import shlex
from typing import Any

import click

from sessionrun import agents
from sessionrun.cli.planning import Planned
from sessionrun.cli.render import escape_line, print_json
from sessionrun.model import SLOT, SessionSpec, TaskSpec, title_of


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
    for task in record["tasks"]:
        click.echo(f"\n  Task {task['num']} (ID: {task['id']}): {escape_line(task['title'])}")
        click.echo(f"    argv: {escape_line(shlex.join(task['argv']))}")
        click.echo(f"    cwd: {escape_line(task['cwd'])}")
        if task["needs"]:
            click.echo(f"    needs: {', '.join(task['needs'])}")


def preview_record(planned: Planned) -> dict[str, Any]:
    """What `run --dry-run --json` prints."""
    spec = planned.spec
    nums = {task.id: num for num, task in enumerate(spec.tasks, 1)}
    return {
        "dialect": spec.dialect,
        "dialect_reason": planned.dialect_reason,
        "agent": spec.agent,
        "agent_reason": planned.choice.why,
        "total": len(spec.tasks),
        "max_parallel": spec.resources.get(SLOT),
        "tasks": [
            {
                "num": nums[task.id],
                "id": task.id,
                "title": title_of(task),
                "agent": task.agent,
                "argv": task_argv(spec, task),
                "cwd": task.cwd or spec.cwd,
                "needs": task.needs,
            }
            for task in order_tasks(spec.tasks)
        ],
    }


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
