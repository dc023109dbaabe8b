"""More tasks for a session that runs: what of them is as at a launch, and what the session keeps.

The input is planned as for a new session.  What holds for a whole session stays as it was launched: its agents,
repository, limits and name.  So an option that would change such a thing is refused, and not passed over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sessionrun.client.planning.assemble import Draft
from sessionrun.engine.requests import find_clash
from sessionrun.input.config import Config
from sessionrun.input.fields import LIMIT_FIELDS
from sessionrun.input.plan import Plan
from sessionrun.input.rows import BY_NAME
from sessionrun.model.errors import InputError
from sessionrun.model.events import TasksAdded
from sessionrun.model.places import Repository
from sessionrun.model.spec import SLOT, Limits, SessionSpec


def refuse_session_options(options: Mapping[str, Any], into: SessionSpec) -> None:
    """Refuse what would hold for the whole session."""
    for name, value in options.items():
        row = BY_NAME[name]
        if row.scope != "session" or (name == "approve" and value == into.approve):
            continue
        hint = f" (sessionrun set {into.session_id} --max-parallel N)" if name == "max_parallel" else ""
        raise InputError(describe_whole(row.spell(value)) + hint)


def join_config(config: Config, into: SessionSpec) -> Config:
    """The configuration where the session, which has its own agents and limits, comes before it."""
    known = config.values
    own = {"agent": into.agent, "approve": into.approve}
    own |= {"model": known["model"]} if "model" in known and known.get("agent") in (None, into.agent) else {}
    kept = {name: value for name, value in known.items() if name not in (*_LIMITS, "max_parallel", "model")}
    return config._replace(agents={**config.agents, **into.agents}, values={**kept, **own})


_LIMITS = {field.name for field in LIMIT_FIELDS.values()} - {"workspace_timeout_s"}
"""The limits that a session has once, for all of its tasks."""


def _join_repository(plan: Plan, into: SessionSpec) -> Repository | None:
    """The repository of the session, if a task wants a worktree."""
    wanted = any(task.workspace.kind == "worktree" for task in plan.tasks)
    if not wanted or into.repository is None:  # then what is to be added does not fit the session
        return None
    from sessionrun.git.git import Git

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
        raise InputError(describe_whole(wish.keys.get(other, other)))
    place = Path(wish.path) if wish.path else Path.cwd()
    done = Git(place).attempt("rev-parse", "--path-format=absolute", "--git-common-dir")
    common = os.path.realpath(os.fsdecode(done.stdout).removesuffix("\n"))
    if done.returncode != 0 or common != os.path.realpath(known.common_dir):
        where = f"the worktrees of session {into.session_id} are of {known.top}"
        raise InputError(f"{where}, and {place} is not in it")
    return known


def join_session(draft: Draft) -> Draft:
    """The tasks with what the session has already; refuse what holds for it as a whole, or it does not have."""
    plan, spec, into = draft.plan, draft.spec, draft.into
    assert into is not None
    repository = _join_repository(plan, into)
    # the feed comes first: it sets `land` and `worktrees` by itself, so the user may have asked for neither
    asked = {"feed": plan.feed, "land": plan.landing and plan.landing.lands, "worktrees": plan.seats}
    for name in sorted(_LIMITS - {"task_budget_usd"}):
        asked[name] = getattr(plan.limits, name) not in (None, getattr(into.limits, name))
    for name, value in asked.items():
        if value not in (None, False):
            raise InputError(describe_whole(name))
    if plan.max_parallel not in (None, into.resources.get(SLOT)):
        how = f"sessionrun set {into.session_id} --max-parallel {plan.max_parallel}"
        draft = draft.remark(f"max_parallel has no effect on the session ({how})")
    if plan.exports:
        why = "its tasks are added to a session that runs"
        draft = draft.remark(f"the results file of this input is not written: {why}")
    limit, tasks = spec.limits.task_budget_usd, spec.tasks
    if limit is not None:
        tasks = tuple(task if task.budget_usd is not None else replace(task, budget_usd=limit) for task in tasks)
    known = {name: amount for name, amount in into.resources.items() if name != SLOT}
    return draft.settle(
        tasks=tasks,
        repository=repository,
        exports=(),
        resources={**known, **plan.resources},
        limits=Limits(budget_usd=into.limits.budget_usd),
    )


def settle_addition(planned: SessionSpec, into: SessionSpec) -> TasksAdded:
    """What is to be added, without an id; InputError says that it does not fit the session."""
    from sessionrun.agents.table import leavings

    new = {name: agent for name, agent in planned.agents.items() if name not in into.agents}
    tasks = planned.tasks
    if planned.cwd != into.cwd:  # a task runs where it was asked for, not where the session was
        tasks = tuple(
            replace(task, cwd=planned.cwd) if task.cwd is None and task.upstream is None else task
            for task in tasks
        )
    event = TasksAdded(
        "",
        tasks,
        new,
        {name: price for name, price in planned.prices.items() if name not in into.prices},
        {name: amount for name, amount in planned.resources.items() if into.resources.get(name) != amount},
        tuple(leavings(new.values())),
    )
    clash = find_clash(into, event)
    if clash is not None:
        raise InputError(f"session {into.session_id}: {clash}")
    return event


def describe_whole(name: str) -> str:
    """What is said where something would hold for a whole session."""
    return f"{name} holds for a whole session, and --into adds to one that runs: leave it out"
