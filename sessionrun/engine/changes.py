"""Another agent, model or prompt for tasks that are tried again.

Pure.  Whether the agent's program is there is the client's business; what the session itself would refuse is said
here, for the client and for the supervisor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sessionrun.engine.additions import widen_spec
from sessionrun.engine.moves import leave_thread, resign
from sessionrun.engine.state import State
from sessionrun.engine.task import Ran, TaskState
from sessionrun.model.changes import Change, change_task, takes_model
from sessionrun.model.events import TasksAdded
from sessionrun.model.spec import AgentSpec


def find_change_fault(tasks: Sequence[TaskState], change: Change, known: Mapping[str, AgentSpec]) -> str | None:
    """Why these tasks, which would be tried again, cannot be changed so; None: they can.

    Args:
        tasks: those that are chosen, without those that come along.
        change: what is asked for.
        known: the agents of the session.
    """
    if not tasks:
        return "there is no task to try again"
    if change.prompt is not None and len(tasks) > 1:
        return f"a prompt is for one task, and {len(tasks)} would be tried again: name one"
    agents = {**change.agents, **known}
    if change.agent is not None and change.agent not in agents:
        return f"the session does not know the agent {change.agent!r:.80}"
    faults = (_find_fault(task, change, agents) for task in tasks)
    return next((fault for fault in faults if fault is not None), None)


def change_tasks(state: State, tasks: Sequence[TaskState], change: Change) -> None:
    """Change what is asked of these tasks; the attempts so far keep the agent and model that they had."""
    state.spec = widen_spec(state.spec, TasksAdded("", (), change.agents, change.prices, leavings=change.leavings))
    changed = {}
    for task in tasks:
        resign(state, task)
        before, spec = (task.agent, task.asked_model), change_task(task.spec, change)
        if before != (spec.agent, spec.model):
            note_ran(task)
        if task.agent != spec.agent:
            task.last_conversation = None
            leave_thread(task)
        if not task.follow_ups:  # else it stays with the agent that knows the conversation
            task.fallbacks = 0
        task.spec = changed[spec.id] = spec
    state.spec = replace(state.spec, tasks=tuple(changed.get(task.id, task) for task in state.spec.tasks))


def note_ran(task: TaskState) -> None:
    """The next attempt has another agent or model: note what those so far had."""
    if task.known_outcome != "skipped":  # else its attempt is still to come
        task.ran = (*task.ran, Ran(task.attempt, task.agent, task.last_model or task.asked_model))
    task.last_model = None


def find_ran(task: TaskState, attempt: int) -> Ran:
    """What an attempt had, or has."""
    now = Ran(attempt, task.agent, task.last_model or task.asked_model)
    return next((ran for ran in task.ran if attempt <= ran.attempt), now)


def _find_fault(task: TaskState, change: Change, agents: Mapping[str, AgentSpec]) -> str | None:
    name, spec = f"task {task.spec.id!r:.140}", change_task(task.spec, change)
    agent = agents[spec.agent]
    if task.follow_ups:
        if change.prompt is not None:
            return f"{name} goes on with a follow-up, not with its prompt: use sessionrun continue"
        if task.fallbacks or spec.agent != task.agent:
            whose = f"its conversation with {task.agent!r:.80}"
            return f"{name} goes on in {whose}, of which another agent knows nothing"
    if change.model is not None and not takes_model(agent):
        return f"agent {agent.name!r:.80} of {name} takes no model"
    turns = spec.prompt_mode == "continue" and len(spec.prompts) > 1
    if turns and agent.prompt_kind == "text" and not agent.continue_args:
        return f"{name} has several prompts, and agent {agent.name!r:.80} cannot go on with a conversation"
    return None
