"""What a retry changes of the tasks that are tried again.

Must not know tasks' states, files or agents' programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.model.spec import AgentSpec, Alternative, Price, TaskSpec

_NAMED: Final = ("agent", "model")
"""Labels by which tasks are grouped where they have them: they have to name what the task has now."""


@frozen
class Change:
    """Another agent, model or prompt for the next attempts at a task; None leaves it as it is.

    A model belongs to its agent: with another agent and no model, the agent chooses.  `agents`, `prices` and
    `leavings` are what the session lacks for it; see `TasksAdded`.
    """

    agent: str | None = None
    model: str | None = None
    prompt: str | None = None
    agents: Mapping[str, AgentSpec] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    leavings: tuple[str, ...] = ()


def change_task(task: TaskSpec, change: Change) -> TaskSpec:
    """The task as it is tried next.

    Arguments were for the agent that the task had, so another one does not get them.
    """
    agent = change.agent or task.agent
    same = agent == task.agent
    model = change.model or (task.model if same else None)
    return replace(
        task,
        agent=agent,
        model=model,
        args=task.args if same else (),
        fallback=tuple(other for other in task.fallback if other != Alternative(agent, model)),
        prompts=task.prompts if change.prompt is None else (change.prompt,),
        labels=_rename(task, agent, model),
    )


def takes_model(agent: AgentSpec) -> bool:
    """Whether a model has an effect: the agent is told of it, or reports what it used, which the model prices."""
    return bool(agent.model_args) or (agent.prompt_kind != "script" and agent.output != "text")


def _rename(task: TaskSpec, agent: str, model: str | None) -> Mapping[str, str]:
    if (agent, model) == (task.agent, task.model):
        return task.labels
    names = dict(zip(_NAMED, (agent, model or "default"), strict=True))
    return {key: names.get(key, value) for key, value in task.labels.items()}
