"""What status.json shows of tokens and money: of a task and of the session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sessionrun.engine.budget import to_usd
from sessionrun.engine.state import BUDGET

if TYPE_CHECKING:
    from sessionrun.engine.state import State
    from sessionrun.engine.task import TaskState
    from sessionrun.model.usage import Usage


def project_usage(usage: Usage) -> dict[str, Any]:
    """Tokens and cost of one job or of several."""
    return {
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if usage.cost_usd is None else round(usage.cost_usd, 9),
        "cost_source": usage.cost_source,
        "unpriced_jobs": usage.unpriced_jobs,
    }


def project_usage_by_model(totals: Mapping[str, Usage]) -> dict[str, Any] | None:
    """The same of each model; None: nothing was used."""
    return {model: project_usage(used) for model, used in totals.items()} or None


def project_usage_by_agent(task: TaskState) -> dict[str, Any] | None:
    """The same of each agent and model, if another one than the task's own used some of it."""
    by_agent: dict[str, dict[str, Usage]] = {}
    for (agent, model), used in task.usage_by_agent.items():
        by_agent.setdefault(agent, {})[model] = used
    if by_agent.keys() <= {task.agent}:
        return None
    return {agent: project_usage_by_model(models) for agent, models in by_agent.items()}


def project_session_usage(state: State) -> dict[str, Any] | None:
    """What the jobs that have ended used; `cost_usd` is a lower bound unless `cost_complete`."""
    if not state.usage_by_model:
        return None
    first, *others = state.usage_by_model.values()
    for used in others:
        first = first.plus(used)
    return {**project_usage(first), "cost_complete": not first.unpriced_jobs}


def project_budget(state: State) -> dict[str, Any] | None:
    """The session's budgets and its account; null without a budget of the session."""
    limits, money = state.spec.limits, state.money
    if limits.budget_usd is None and limits.soft_budget_usd is None:
        return None
    return {
        "budget_usd": limits.budget_usd,
        "soft_budget_usd": limits.soft_budget_usd,
        "spent_usd": to_usd(money.spent),
        "reserved_usd": to_usd(money.reserved),
        "held": BUDGET in state.holds,
    }
