"""Tasks that are asked for again: which they are, and with what change.

`retry` takes tasks that did not succeed, and `continue` asks more of a task that has ended.  What the session
would refuse is refused here first, so that nothing is started for it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.agents import table
from sessionrun.client.launch import check_ready
from sessionrun.client.notices import notify
from sessionrun.client.planning.assemble import agents_of, foresee_costs, settle_agent, settle_prices
from sessionrun.engine.requests import find_change_fault, find_dependents, find_fault
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.house import find_due
from sessionrun.input.config import load_config
from sessionrun.model.errors import InputError
from sessionrun.model.events import Change, RequestReceived, change_task
from sessionrun.model.spec import RETRY_FAILED, RETRY_LOST, AgentSpec, SessionSpec
from sessionrun.store.requests import MAX_TEXT

Shown = dict[str, Any]
"""A view, or a task of one."""

_NOT_GOOD: Final = (*RETRY_FAILED, *RETRY_LOST, "cancelled", "skipped")


class AskedChange(NamedTuple):
    """What the options of `retry` change; None leaves it as it is."""

    agent: str | None = None
    model: str | None = None
    prompt: str | None = None


class Retried(NamedTuple):
    """Ids of chosen tasks, and these with all that come along; by which outcomes (empty: all but success)."""

    tried: list[str]
    every: list[str]
    outcomes: tuple[str, ...]


# --- which ---


def choose_retried(
    shown: Sequence[Shown], tasks: Sequence[Shown], *, named: bool, failed: bool, lost: bool
) -> Retried:
    """Of the `shown` tasks of a session those that a retry of `tasks`, all or `named` ones, tries again.

    Without flags these are tasks that failed, timed out, were lost or interrupted; named ones may also have been
    cancelled or skipped.  Tasks that were skipped because of a retried task come along.

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
    return Retried(tried, sorted(opened, key=lambda name: int(by_id[name]["num"])), outcomes)


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


# --- as more for a task that has ended ---


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
