"""Settles a plan into a session spec: which agent runs each task, and that each of them can start at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import time
from typing import NamedTuple

from sessionrun import agents
from sessionrun.config import Config
from sessionrun.dialects import Plan
from sessionrun.errors import AgentNotFound, InputError
from sessionrun.model import SLOT, AgentSpec, Repository, SessionSpec, TaskSpec
from sessionrun.status import format_time
from sessionrun.validation import validate_tasks, validate_uses


class Choice(NamedTuple):
    """The session's default agent and why it was chosen, for people."""

    name: str
    why: str


def assemble_spec(
    plan: Plan,
    config: Config,
    choice: Choice,
    *,
    dialect: str,
    source: str,
    approve: bool,
    envelope: bool,
    repository: Repository | None,
) -> SessionSpec:
    """Make the spec of a new session.

    Raises:
        InputError: something in the plan cannot run; nothing was created.
    """
    tasks = tuple(task if task.agent else replace(task, agent=choice.name) for task in plan.tasks)
    used = {task.agent for task in tasks}
    resources = dict(plan.resources)
    if plan.max_parallel is not None:
        resources[SLOT] = plan.max_parallel
    spec = SessionSpec(
        session_id=str(uuid.uuid4()),
        created_at=format_time(time()) or "",
        name=plan.name,
        labels=plan.labels,
        dialect=dialect,
        source=source.encode("utf-8", "backslashreplace").decode(),
        cwd=_current_directory(),
        agent=choice.name,
        agents={name: _settle_agent(name, config.agents, approve=approve) for name in sorted(used)},
        tasks=tasks,
        resources=resources,
        limits=plan.limits,
        approve=approve,
        envelope=envelope,
        repository=repository,
    )
    validate_tasks(tasks)
    validate_uses(spec)
    _check_supported(tasks)
    _check_directories(tasks)
    if repository is not None:
        _check_worktrees(spec, repository)
    return spec


def choose_agent(plan: Plan, config: Config) -> Choice:
    """The default agent: the one asked for, else the first that is installed.

    Raises:
        AgentNotFound: none is asked for where one is needed, and none is installed.
        InputError: there is none of that name, even if no task would use it.
    """
    if plan.agent:
        _find_agent(plan.agent, config.agents)
        return Choice(plan.agent, "asked for")
    if all(task.agent for task in plan.tasks):
        return Choice(plan.tasks[0].agent, "named by the tasks")
    path = os.environ.get("PATH")
    for name in agents.FIRST_FOUND:
        if agents.find_program(config.agents[name], path):
            return Choice(name, "first found")
    looked_for = ", ".join(agents.FIRST_FOUND)
    raise AgentNotFound(f"no agent CLI found on PATH (looked for {looked_for}); name one with --agent")


def _find_agent(name: str, known: Mapping[str, AgentSpec]) -> AgentSpec:
    agent = known.get(name)
    if agent is None:
        raise InputError(f"unknown agent {name!r}; there are: {', '.join(sorted(known))}")
    return agent


def _settle_agent(name: str, known: Mapping[str, AgentSpec], *, approve: bool) -> AgentSpec:
    """The agent with its program as an absolute path, looked up once."""
    agent = _find_agent(name, known)
    agents.check_agent(agent)
    program = agents.check_startable(agent, approve=approve, euid=os.geteuid(), environ=os.environ)
    return replace(agent, argv=(program, *agent.argv[1:]))


def _current_directory() -> str:
    """Where the tasks run that name no place; spec.json can hold it only as UTF-8."""
    cwd = str(Path.cwd())
    try:
        cwd.encode()
    except UnicodeEncodeError:
        raise InputError(f"the name of the current directory is no UTF-8: {cwd!r}") from None
    return cwd


def _check_supported(tasks: tuple[TaskSpec, ...]) -> None:
    """Refuse what the model knows but this version cannot do yet."""
    for num, task in enumerate(tasks, 1):
        name = _unsupported(task)
        if name:
            raise InputError(f"task {num} (ID: {task.id}): {name} is not supported in this version; leave it out")


def _unsupported(task: TaskSpec) -> str | None:
    if task.workspace.kind not in ("none", "worktree"):
        return f'workspace "{task.workspace.kind}"'
    if task.links and task.workspace.kind == "none":
        return "links without a worktree"
    if task.land:
        return "land"
    return None if task.idle_timeout_s is None else "idle_timeout"


def _check_directories(tasks: tuple[TaskSpec, ...]) -> None:
    for cwd in {task.cwd for task in tasks if task.cwd}:
        if not os.path.isdir(cwd):
            num, task = next((num, task) for num, task in enumerate(tasks, 1) if task.cwd == cwd)
            raise InputError(f"task {num} (ID: {task.id}): cwd {cwd} is no directory")


def _check_worktrees(spec: SessionSpec, repository: Repository) -> None:
    """Refuse what would fail in every worktree, or run outside of it."""
    top = os.path.realpath(repository.top)
    for num, task in enumerate(spec.tasks, 1):
        if task.workspace.kind != "worktree":
            continue
        cwd = os.path.relpath(os.path.realpath(task.cwd or spec.cwd), top)
        if cwd == os.pardir or cwd.startswith(os.pardir + os.sep):
            raise InputError(f"task {num} (ID: {task.id}): cwd {task.cwd} lies outside {repository.top}")
        for link in task.links:
            if os.path.isabs(link) or os.path.normpath(link).startswith(os.pardir):
                raise InputError(f"task {num} (ID: {task.id}): link {link} must be a path inside the repository")
            if not os.path.lexists(os.path.join(repository.top, link)):
                raise InputError(f"task {num} (ID: {task.id}): link {link}: there is none in {repository.top}")
