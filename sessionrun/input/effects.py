"""Why a setting has no effect on an input: the caller expected one.  The table of settings names these checks.

A default for tasks has an effect if any task takes it.  Must not know how the input was read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sessionrun.model.events import takes_model
from sessionrun.model.spec import SessionSpec

MARKDOWN: Final = "markdown"
QUEUE: Final = "queue"
"""The formats of which a check knows; of a session with a feed the last one is told."""

Check = Callable[[SessionSpec, Any], "str | None"]
"""Why a value that was given has no effect on a spec; None: it has."""


def of_model(spec: SessionSpec, model: str) -> str | None:
    """It belongs to tasks without one."""
    takers = [task for task in spec.tasks if task.model == model]
    if any(takes_model(spec.agents[task.agent]) for task in takers):
        return None
    if not takers:
        return "every task that asks a model has its own"
    return f"agent {takers[0].agent!r} takes no model"


def of_fallback(spec: SessionSpec, fallback: Any) -> str | None:
    """It belongs to tasks without one, which ask a model."""
    if {spec.agents[task.agent].prompt_kind for task in spec.tasks} == {"script"}:
        return "all tasks are scripts, which meet no limit of a provider"
    return None if any(task.fallback == fallback for task in spec.tasks) else "every task has its own"


def of_default(*names: str) -> Check:
    """The check of the default of a field, or of one of several, of every task that has no value of its own."""

    def check(spec: SessionSpec, wanted: Any) -> str | None:
        same = (wanted, wanted or None)  # 0 means that there is no such limit
        takes = any(getattr(task, name) in same for task in spec.tasks for name in names)
        return None if takes else "every task has its own"

    return check


def of_check(spec: SessionSpec, check: Any) -> str | None:
    """A check has more than its commands, such as its rounds."""
    takes = any(task.check is not None and task.check.commands == check.commands for task in spec.tasks)
    return None if takes else "every task has its own"


def of_scripts(why: str) -> Check:
    """The check of what is for tasks that ask a model: no script does, and `why` it needs no such thing."""

    def check(spec: SessionSpec, _: Any) -> str | None:
        asks = any(agent.prompt_kind != "script" for agent in spec.agents.values())  # or may come to ask
        return None if asks else f"all tasks are scripts, {why}"

    return check


def of_auto_release(spec: SessionSpec, releases: bool) -> str | None:
    """It is for tasks that ask a model; to state the default is no mistake."""
    return None if releases else of_scripts("which meet no limit of a provider")(spec, releases)


of_money: Final = of_scripts("whose cost cannot be seen")


def of_task_budget(spec: SessionSpec, budget: float) -> str | None:
    """It belongs to tasks without one, which ask a model."""
    asking = [task for task in spec.tasks if spec.agents[task.agent].prompt_kind != "script"]
    if asking and all(task.budget_usd is not None for task in asking):
        return "every task that asks a model has its own budget_usd"
    return of_money(spec, budget)


def of_approval(spec: SessionSpec, approve: bool) -> str | None:
    """A user of ``--no-yolo`` relies on agents being restricted; to state the default is no mistake."""
    if approve or any(agent.approve_args or not agent.edits for agent in spec.agents.values()):
        return None
    return f"agent {spec.tasks[0].agent!r} has no option to leave out: it may do all that you may"


def of_template(spec: SessionSpec, _: Any) -> str | None:
    """For tasks that the input names in another way than by their prompts."""
    return None if spec.dialect in ("swebench", QUEUE) else "each task of this input has its own prompt"


def of_worktree(spec: SessionSpec, _: Any) -> str | None:
    """It belongs to tasks that do not say where they work."""
    used = any(task.workspace.kind == "worktree" for task in spec.tasks)
    return None if used else "every task has its own workspace"


def of_cache(spec: SessionSpec, wanted: Any) -> str | None:
    """For what is fetched or built; to refuse to have only the cache is no mistake."""
    if not wanted or spec.mirrors is not None or spec.cache is not None:
        return None
    return "no task names a repo, is in a mirror or has an environment"


def of_account(spec: SessionSpec, _: Any) -> str | None:
    """For inputs whose job files are recorded in a status file."""
    return None if spec.dialect == MARKDOWN else "it is for Markdown job files, which record what ran"
