"""More tasks for a session that runs: what of them is as at a launch, and what the session keeps.

The input is planned as for a new session.  What holds for a whole session stays as it was launched: its agents,
repository, limits and name.  So an option that would change such a thing is refused, and not passed over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sessionrun.client.config import Config
from sessionrun.client.planning.asked import spell
from sessionrun.client.planning.limits import PACE
from sessionrun.engine.requests import find_clash
from sessionrun.input.plan import Plan
from sessionrun.model.errors import InputError
from sessionrun.model.events import TasksAdded
from sessionrun.model.places import Repository
from sessionrun.model.spec import SLOT, Limits, SessionSpec, TaskSpec

OF_A_SESSION: Final = (
    *("name", "labels", "max_parallel", "envelope", "stop_on_fail", "halt", "max_load", "min_free_memory"),
    *(
        "stagger_s",
        "max_failures",
        "hold",
        "starts_at",
        "notify",
        "cluster",
        "slurm",
        "base",
        "worktree_dir",
        "keep",
    ),
    *("cache_dir", "require_cache", "budget_usd", "soft_budget_usd", "land", "land_into", "gates", "mends"),
)
"""Options of `run` that hold for a whole session."""

_LIMITS: Final = ("budget_usd", "soft_budget_usd", *PACE)


def refuse_session_options(given: Mapping[str, Any], into: SessionSpec) -> None:
    """Refuse options that would hold for the whole session.

    Raises:
        InputError: such an option was given.
    """
    words = [spell(name) for name in OF_A_SESSION if given.get(name)]
    words += [spell("auto_release")] if given.get("auto_release") is False else []
    if given.get("approve") not in (None, into.approve):
        words.append("--yolo" if given["approve"] else spell("approve"))
    if words:
        hint = f" (sessionrun set {into.session_id} {words[0]} N)" if words[0] == "--max-parallel" else ""
        raise InputError(_describe_whole(words[0]) + hint)


def join_config(config: Config, into: SessionSpec) -> Config:
    """The configuration where the session, which has its own agents and limits, comes before it."""
    no_limits: dict[str, Any] = dict.fromkeys(("max_parallel", "task_budget_usd", *_LIMITS))
    return replace(
        config,
        agents={**config.agents, **into.agents},
        agent=into.agent,
        model=config.model if config.agent in (None, into.agent) else None,
        approve=into.approve,
        **no_limits,
    )


def join_repository(plan: Plan, into: SessionSpec) -> Repository | None:
    """The repository of the session, if a task wants a worktree.

    Raises:
        InputError: the session has none, or the tasks want one of another.
    """
    wanted = next((task for task in plan.tasks if task.workspace.kind == "worktree"), None)
    if wanted is None:
        return None
    if into.repository is None:
        raise InputError(
            f"task {wanted.id!r} wants a worktree, but session {into.session_id} was started without a repository"
        )
    from sessionrun.workspaces.git import Git

    wish = plan.repository
    known = into.repository
    folder = wish.worktree_dir and os.path.realpath(wish.worktree_dir)
    has = {
        "base": wish.base in (None, known.base_branch, known.base_commit),
        "worktree_dir": folder in (None, os.path.realpath(known.worktree_dir)),
        "keep": wish.keep in (None, known.keep),
    }
    other = next((name for name, same in has.items() if not same), None)
    if other is not None:
        raise InputError(_describe_whole(wish.keys.get(other, other)))
    place = Path(wish.path) if wish.path else Path.cwd()
    done = Git(place).attempt("rev-parse", "--path-format=absolute", "--git-common-dir")
    common = os.path.realpath(os.fsdecode(done.stdout).removesuffix("\n"))
    if done.returncode != 0 or common != os.path.realpath(known.common_dir):
        where = f"the worktrees of session {into.session_id} are of {known.top}"
        raise InputError(f"{where}, and {place} is not in it")
    return known


def join_plan(plan: Plan, into: SessionSpec) -> tuple[Plan, list[str]]:
    """The plan with what the session has already, and what the user should know of what has no effect.

    Raises:
        InputError: the plan has limits that hold for a whole session.
    """
    remarks = []
    if plan.landing is not None:
        raise InputError(_describe_whole("land"))
    if plan.seats is not None:
        raise InputError(_describe_whole("worktrees"))
    for name in ("max_failures", *_LIMITS):
        wanted = getattr(plan.limits, name)
        if wanted not in (None, getattr(into.limits, name)):
            raise InputError(_describe_whole(name))
    if plan.max_parallel not in (None, into.resources.get(SLOT)):
        how = f"sessionrun set {into.session_id} --max-parallel {plan.max_parallel}"
        remarks.append(f"max_parallel has no effect on the session ({how})")
    if plan.exports:
        remarks.append("the results file of this input is not written: its tasks are added to a session that runs")
    limit = plan.limits.task_budget_usd
    tasks = plan.tasks
    if limit is not None:
        tasks = tuple(task if task.budget_usd is not None else replace(task, budget_usd=limit) for task in tasks)
    known = {name: amount for name, amount in into.resources.items() if name != SLOT}
    return replace(
        plan,
        tasks=tasks,
        exports=(),
        max_parallel=None,
        resources={**known, **plan.resources},
        limits=Limits(budget_usd=into.limits.budget_usd),
    ), remarks


def settle_addition(planned: SessionSpec, into: SessionSpec) -> TasksAdded:
    """What is to be added; without an id.

    Raises:
        InputError: it does not fit the session.
    """
    from sessionrun.agents.table import leavings

    new = {name: agent for name, agent in planned.agents.items() if name not in into.agents}
    event = TasksAdded(
        "",
        tuple(_settle_directory(task, planned, into) for task in planned.tasks),
        new,
        {name: price for name, price in planned.prices.items() if name not in into.prices},
        {name: amount for name, amount in planned.resources.items() if into.resources.get(name) != amount},
        tuple(leavings(new.values())),
    )
    clash = find_clash(into, event)
    if clash is not None:
        raise InputError(f"session {into.session_id}: {clash}")
    return event


def _settle_directory(task: TaskSpec, planned: SessionSpec, into: SessionSpec) -> TaskSpec:
    """The task, which runs where it was asked for, not where the session was."""
    if task.cwd is not None or task.upstream is not None or planned.cwd == into.cwd:
        return task
    return replace(task, cwd=planned.cwd)


def _describe_whole(name: str) -> str:
    return f"{name} holds for a whole session, and --into adds to one that runs: leave it out"
