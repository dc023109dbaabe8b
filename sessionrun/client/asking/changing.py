"""Another agent, model or prompt for tasks that are tried again: checked, with what a session needs for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sessionrun.agents import table
from sessionrun.client.asking.requests import check_size
from sessionrun.client.config import load_config
from sessionrun.client.launching.readiness import check_ready
from sessionrun.client.notices import notify
from sessionrun.client.planning.assemble import agents_of, foresee_costs, settle_agent, settle_prices
from sessionrun.engine.requests import find_change_fault
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import InputError
from sessionrun.model.events import Change, change_task
from sessionrun.model.spec import AgentSpec, SessionSpec


class AskedChange(NamedTuple):
    """What the options of `retry` change; None leaves it as it is."""

    agent: str | None = None
    model: str | None = None
    prompt: str | None = None


def settle_change(
    spec: SessionSpec, tasks: Sequence[TaskState], asked: AskedChange, *, ready: bool = True
) -> Change:
    """The change for these tasks of a session, with the agent and the prices that the session lacks.

    A warning says so if a budget cannot see what the tasks will cost.

    Raises:
        InputError: it makes no sense for a task, or its agent is not there, not signed in or not ready.
    """
    _check_words(asked)
    config = load_config(Path.cwd(), os.environ, table.BUILTIN)
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
    _look_ahead(spec, tasks, change, ready=ready)
    return change


def _check_words(asked: AskedChange) -> None:
    for name, word in asked._asdict().items():
        if word is not None and not word.strip():
            raise InputError(f"--{name} is empty: leave it out, or say which")
    check_size("--prompt", asked.prompt or "")


def _look_ahead(spec: SessionSpec, tasks: Sequence[TaskState], change: Change, *, ready: bool) -> None:
    changed = tuple(change_task(task.spec, change) for task in tasks)
    agents, used = {**change.agents, **spec.agents}, agents_of(changed)
    prices = {**change.prices, **spec.prices}
    known = {name: agent for name, agent in agents.items() if name in used}
    narrow = replace(spec, tasks=changed, agents=known, prices=prices)
    if change.agent is None and change.model is None:
        return
    if ready:
        check_ready(narrow)
    for remark in foresee_costs(narrow):
        notify(remark)
