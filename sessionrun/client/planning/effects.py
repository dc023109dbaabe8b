"""Refuses options of `run` that have no effect on this input: the caller expected an effect.

One table names every option, and when it has no effect.  A default for tasks has an effect if any task takes it.
Must not know how the input was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sessionrun.client.planning.asked import spell
from sessionrun.model.errors import InputError
from sessionrun.model.events import takes_model
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec

MARKDOWN: Final = "markdown"


class Case(NamedTuple):
    """The options, by the names of their parameters, and the spec that they and the input gave."""

    options: Mapping[str, Any]
    spec: SessionSpec

    def agent_of(self, task: TaskSpec) -> AgentSpec:
        """The agent that begins the task."""
        return self.spec.agents[task.agent]

    @property
    def only_scripts(self) -> bool:
        """Whether no task may come to ask a model."""
        return all(agent.prompt_kind == "script" for agent in self.spec.agents.values())


def _of_model(case: Case) -> str | None:
    takers = [task for task in case.spec.tasks if task.model == case.options["model"]]
    if any(takes_model(case.agent_of(task)) for task in takers):
        return None
    if not takers:
        return "every task that asks a model has its own"
    return f"agent {takers[0].agent!r} takes no model"


def _of_fallback(case: Case) -> str | None:
    starters = {case.agent_of(task).prompt_kind for task in case.spec.tasks}
    if starters == {"script"}:
        return "all tasks are scripts, which meet no limit of a provider"
    wanted = tuple(case.options["fallback"])
    named = [
        tuple(f"{choice.agent}/{choice.model}" if choice.model else choice.agent for choice in task.fallback)
        for task in case.spec.tasks
    ]
    return None if wanted in named else "every task has its own"


def _of_default(name: str) -> Callable[[Case], str | None]:
    """The check of an option that is the default of every task without a value of its own."""

    def check(case: Case) -> str | None:
        wanted = case.options[name] or None
        takes = any(getattr(task, name) == wanted for task in case.spec.tasks)
        return None if takes else "every task has its own"

    return check


def _of_timeout(case: Case) -> str | None:
    """In a format with rounds it is the limit of each."""
    wanted = case.options["timeout_s"] or None
    takes_it = any(task.round_timeout_s == wanted for task in case.spec.tasks)
    return None if takes_it else _of_default("timeout_s")(case)


def _of_scripts(why: str) -> Callable[[Case], str | None]:
    """The check of an option that is for what asks a model: no script does, and `why` it needs no such option."""
    return lambda case: f"all tasks are scripts, {why}" if case.only_scripts else None


_of_money: Final = _of_scripts("whose cost cannot be seen")


def _of_task_budget(case: Case) -> str | None:
    asking = [task for task in case.spec.tasks if case.agent_of(task).prompt_kind != "script"]
    if asking and all(task.budget_usd is not None for task in asking):
        return "every task that asks a model has its own budget_usd"
    return _of_money(case)


def _of_approval(case: Case) -> str | None:
    """A user of ``--no-yolo`` relies on agents being restricted."""
    if any(agent.approve_args or not agent.edits for agent in case.spec.agents.values()):
        return None
    return f"agent {case.spec.tasks[0].agent!r} has no option to leave out: it may do all that you may"


def _of_worktree(case: Case) -> str | None:
    used = any(task.workspace.kind == "worktree" for task in case.spec.tasks)
    return None if used else "every task has its own workspace"


def _of_account(case: Case) -> str | None:
    """Options for inputs whose job files are recorded in a status file."""
    return None if case.spec.dialect == MARKDOWN else "it is for Markdown job files, which record what ran"


RULES: Final[Mapping[str, Callable[[Case], str | None]]] = {
    "model": _of_model,
    "fallback": _of_fallback,
    "timeout_s": _of_timeout,
    "idle_timeout_s": _of_default("idle_timeout_s"),
    "budget_usd": _of_money,
    "soft_budget_usd": _of_money,
    "task_budget_usd": _of_task_budget,
    "approve": _of_approval,
    "envelope": _of_scripts("which are run as they were written"),
    "auto_release": _of_scripts("which meet no limit of a provider"),
    "worktree": _of_worktree,
    "only": _of_account,
    "include_stuck": _of_account,
}
"""By the name of the parameter, in the order in which they are checked: why it has no effect, or None."""


def refuse_idle_options(options: Mapping[str, Any], spec: SessionSpec, keys: Mapping[str, Any]) -> None:
    """Refuse the first option, or key of all tasks, that was given and has no effect; where no task is left, none.

    Raises:
        InputError: which option, why, and what to do.
    """
    if not spec.tasks:
        return
    _refuse_idle_keys(keys, spec)
    case = Case(options, spec)
    for name, check in RULES.items():
        why = check(case) if _was_given(name, options[name]) else None
        if why is not None:
            raise InputError(f"{spell(name)} has no effect here: {why}; leave it out")


def _was_given(name: str, value: Any) -> bool:
    if name in ("approve", "auto_release"):
        return value is False  # to state a default is not a mistake
    return value is not None and value is not False and value != ()


def _refuse_idle_keys(keys: Mapping[str, Any], spec: SessionSpec) -> None:
    for name in ("retries", "rounds", "setup", "check"):
        if name in keys and not any(_has(task, name, keys[name]) for task in spec.tasks):
            raise InputError(f"--{name} has no effect here: every task has its own; leave it out")


def _has(task: TaskSpec, name: str, wanted: Any) -> bool:
    if name == "check":
        return (task.check.commands if task.check else ()) == (wanted.commands if wanted else ())
    return bool(getattr(task, name) == wanted)
