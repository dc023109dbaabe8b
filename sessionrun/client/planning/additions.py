"""What a session that is there gets to do: tasks again, more of a task that has ended, more tasks.

What the session would refuse is refused here first, so that nothing is started for it.  What holds for a whole
session stays as it was launched: its agents, repository, limits and name.  More tasks are planned as for a new
session, so an option that would change such a thing is refused, and not passed over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.agents import table
from sessionrun.client.launch import check_ready
from sessionrun.client.notices import notify
from sessionrun.client.planning.assemble import Draft, agents_of, foresee_costs, settle_agent, settle_prices
from sessionrun.engine.requests import find_change_fault, find_clash, find_dependents, find_fault
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.house import find_due
from sessionrun.input.config import Config, load_config
from sessionrun.input.fields import LIMIT_FIELDS
from sessionrun.input.plan import Plan
from sessionrun.input.rows import BY_NAME
from sessionrun.model.errors import InputError
from sessionrun.model.events import Change, RequestReceived, TasksAdded, change_task
from sessionrun.model.places import Repository
from sessionrun.model.spec import RETRY_FAILED, RETRY_LOST, SLOT, AgentSpec, Limits, SessionSpec
from sessionrun.store.requests import MAX_TEXT

Shown = dict[str, Any]
"""A view, or a task of one."""

_NOT_GOOD: Final = (*RETRY_FAILED, *RETRY_LOST, "cancelled", "skipped")


class AskedChange(NamedTuple):
    """What the options of `retry` change; None leaves it as it is."""

    agent: str | None = None
    model: str | None = None
    prompt: str | None = None


# --- which ---


def choose_retried(
    shown: Sequence[Shown], tasks: Sequence[Shown], *, named: bool, failed: bool, lost: bool
) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Of the `shown` tasks of a session those that a retry of `tasks`, all or `named` ones, tries again.

    Their ids, these with all that come along, and by which outcomes (empty: all but success).  Without flags these
    are tasks that failed, timed out, were lost or interrupted; named ones may also have been cancelled or skipped.
    Tasks that were skipped because of a retried task come along.

    Raises:
        InputError: a named task cannot be tried again.
    """
    if not failed and not lost:
        failed = lost = not named
    outcomes = (*(RETRY_FAILED if failed else ()), *(RETRY_LOST if lost else ()))
    by_id = {task["id"]: task for task in shown}
    stuck = [task["id"] for task in tasks if _can_land_again(task, shown)]
    if not named and "failed" not in outcomes:
        stuck = []
    good = (task for task in tasks if task["outcome"] == "succeeded" and task["id"] not in stuck)
    if named and (refused := next(good, None)):
        raise InputError(f"task {refused['id']!r} succeeded and is not tried again; leave it out")
    bad = [task for task in tasks if task["outcome"] in (outcomes or _NOT_GOOD)]
    if named and (mend := next((task for task in bad if task.get("mends")), None)):
        raise InputError(f"task {mend['id']!r} mends {mend['mends']!r}: name that one, and new tasks mend it")
    tried = [task["id"] for task in bad if not task.get("mends")]
    chosen = tried + stuck
    skipped = {task["id"]: task["needs"] for task in by_id.values() if task["reason_class"] == "need"}

    def is_hopeless(name: str) -> bool:
        return name not in by_id or by_id[name]["outcome"] not in (None, "succeeded")

    opened = [*dict.fromkeys(chosen), *find_dependents(chosen, skipped, is_hopeless)]
    for name in chosen:
        for need in by_id[name]["needs"]:
            if need not in opened and is_hopeless(need):
                raise InputError(f"task {name!r} needs {need!r}, which did not succeed: name that one too")
    return tried, sorted(opened, key=lambda name: int(by_id[name]["num"])), outcomes


def _can_land_again(task: Shown, tasks: Sequence[Shown]) -> bool:
    """Whether the work of a task, or a mend of it, could not land and may be tried again; `tasks` are all."""
    landing = task.get("landing") or {}
    if landing.get("status") == "mending":
        return any(_can_land_again(one, tasks) for one in tasks if one.get("mends") == task["id"])
    wanted = ("held",) if task.get("mends") else ("held", "bounced")
    return landing.get("status") in wanted and landing["reason_class"] != "rescued"


# --- with what change ---


def settle_change(
    spec: SessionSpec, tasks: Sequence[TaskState], asked: AskedChange, *, ready: bool = True
) -> Change:
    """The change for these tasks of a session, with the agent and the prices that the session lacks.

    A warning says so if a budget cannot see what the tasks will cost.
    """
    for name, word in asked._asdict().items():
        if word is not None and not word.strip():
            raise InputError(f"--{name} is empty: leave it out, or say which")
    _check_size("--prompt", asked.prompt or "")
    config = load_config(Path.cwd(), os.environ)
    agents: dict[str, AgentSpec] = {}
    if asked.agent is not None:
        known = {**config.agents, **spec.agents}
        agent = settle_agent(asked.agent, known, None, approve=spec.approve)
        if asked.agent not in spec.agents:
            agents[agent.name] = agent
    prices = settle_prices(config, agents.values())
    new = {name: price for name, price in prices.items() if name not in spec.prices}
    change = Change(asked.agent, asked.model, asked.prompt, agents, new, table.leavings(agents.values()))
    fault = find_change_fault(tasks, change, spec.agents)
    if fault is not None:
        raise InputError(fault)
    if asked.agent is not None or asked.model is not None:
        changed = tuple(change_task(task.spec, change) for task in tasks)
        known, used = {**agents, **spec.agents}, agents_of(changed)
        narrow = replace(
            spec,
            tasks=changed,
            agents={name: agent for name, agent in known.items() if name in used},
            prices={**new, **spec.prices},
        )
        if ready:
            check_ready(narrow)
        for remark in foresee_costs(narrow):
            notify(remark)
    return change


def _check_size(what: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InputError(f"{what} is not UTF-8; write it as UTF-8") from None
    if size > MAX_TEXT:
        raise InputError(f"{what} has {size} bytes, and may have {MAX_TEXT}: put it into a file and name that")


# --- more of a task that has ended ---


def check_follow_up(view: Shown, state: State, shown: Shown, text: str) -> None:
    """Refuse a follow-up of a task that cannot go on; warn if its agent cannot go on with its conversation."""
    if not text.strip():
        raise InputError("the follow-up is empty: write what the task shall do")
    _check_size("the follow-up", text)
    if view["status"] == "interrupted":
        raise InputError(f"session {view['session_id']} was interrupted: sessionrun resume lets it go on first")
    name = shown["id"]
    fault = find_fault(state, RequestReceived("", "continue", (name,), text=text))
    if fault is not None:
        raise InputError(fault)
    task = state.tasks[name]
    for check in find_due("continue", [task.spec]):
        check(state.spec, task)
    agent = state.spec.agents.get(shown["agent"])
    needs = agent is not None and agent.prompt_kind != "script"  # a script has no conversation
    if needs and not (agent and agent.continue_args and shown["conversation"] is not None):
        notify(f"task {name}: its agent has no conversation to go on with: it is told what was done before")


# --- more tasks ---


_LIMITS: Final = {field.name for field in LIMIT_FIELDS.values()} - {"workspace_timeout_s"}
"""The limits that a session has once, for all of its tasks."""


def join_config(config: Config, options: Mapping[str, Any], into: SessionSpec) -> Config:
    """The configuration where the session comes before it; InputError: an option would hold for all of that."""
    for name, value in options.items():
        row = BY_NAME[name]
        if row.scope != "session" or (name == "approve" and value == into.approve):
            continue
        hint = f" (sessionrun set {into.session_id} --max-parallel N)" if name == "max_parallel" else ""
        raise InputError(describe_whole(row.spell(value)) + hint)
    known = config.values
    own = {"agent": into.agent, "approve": into.approve}
    own |= {"model": known["model"]} if "model" in known and known.get("agent") in (None, into.agent) else {}
    kept = {name: value for name, value in known.items() if name not in (*_LIMITS, "max_parallel", "model")}
    return config._replace(agents={**config.agents, **into.agents}, values={**kept, **own})


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
        tuple(table.leavings(new.values())),
    )
    clash = find_clash(into, event)
    if clash is not None:
        raise InputError(f"session {into.session_id}: {clash}")
    return event


def describe_whole(name: str) -> str:
    """What is said where something would hold for a whole session."""
    return f"{name} holds for a whole session, and --into adds to one that runs: leave it out"
