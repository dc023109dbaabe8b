"""More tasks for a session that runs.

What a launch writes into spec.json stays as it is there; `State.spec` is what holds now.  Whether the tasks fit is
asked before they are recorded (see `requests.find_fault`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from sessionrun.engine.mending import note_mend
from sessionrun.engine.moves import cancel, enlist, give_up
from sessionrun.engine.state import BUDGET, State
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import InputError
from sessionrun.model.events import Entry, TaskAdded, TasksAdded
from sessionrun.model.places import Repository
from sessionrun.model.repositories import has_worktree, repository_of
from sessionrun.model.spec import PROVIDER_PREFIX, SLOT, SessionSpec, TaskSpec
from sessionrun.model.upstreams import MirrorSite
from sessionrun.model.validation import validate_tasks, validate_uses, validate_wishes

Ruled = TypeVar("Ruled", Repository, MirrorSite)
"""What has rules of what git ignores."""


def add_task(state: State, entry: Entry, event: TaskAdded) -> None:
    """Append the task that a feed brought, or the mend of bounced work."""
    if event.task.mend is not None:
        note_mend(state, event.task)
    if event.task.id in state.tasks:
        return  # a feed may bring again what it brought before a crash
    task = TaskState(event.task, len(state.tasks) + 1, held=state.held)
    enlist(state, task)
    state.tasks[event.task.id] = task
    state.spec = replace(state.spec, tasks=(*state.spec.tasks, event.task))
    if task.decided is None and state.cancelled:
        cancel(state, task)
    elif task.decided is None and state.halted:
        give_up(state, task)


def add_tasks(state: State, entry: Entry, event: TasksAdded) -> None:
    """Append the tasks of a request; a request that was taken before counts once."""
    if event.request_id in state.requests:
        return
    state.requests.add(event.request_id)
    for name, amount in event.resources.items():
        state.free.setdefault(name, amount)
    state.spec = widen_spec(state.spec, event)
    added = [TaskState(task, num, held=state.held) for num, task in enumerate(event.tasks, len(state.tasks) + 1)]
    state.tasks.update((task.spec.id, task) for task in added)
    for task in added:
        enlist(state, task)


def widen_spec(spec: SessionSpec, event: TasksAdded) -> SessionSpec:
    """The spec with what came; what the session has by the same name stays as it was launched."""
    return replace(
        spec,
        tasks=(*spec.tasks, *event.tasks),
        agents={**event.agents, **spec.agents},
        prices={**event.prices, **spec.prices},
        resources={**event.resources, **spec.resources},
        repository=spec.repository and _ignore(spec.repository, event.leavings),
        mirrors=spec.mirrors and _ignore(spec.mirrors, event.leavings),
    )


def _ignore(ruled: Ruled, leavings: tuple[str, ...]) -> Ruled:
    """The same with more rules of what git ignores; the user's own come last."""
    present = ruled.excludes
    new: list[str] = [rule for rule in leavings if rule not in present.split("\n")]
    return replace(ruled, excludes="\n".join((*new, present))) if new else ruled


def find_addition_fault(state: State, event: TasksAdded) -> str | None:
    """Why these tasks cannot be added to the session as it stands now; None: they can."""
    if state.ended is not None:
        return "the session has ended"
    if state.cancelled:
        return "the session is being cancelled"
    if state.halted:
        return "too many tasks failed (max_failures), and the session starts nothing more"
    return find_clash(state.spec, event)


def find_clash(spec: SessionSpec, event: TasksAdded) -> str | None:
    """What of the tasks does not fit the session that was asked for so far; None: all does."""
    if not event.tasks:
        return "there are no tasks"
    for name, amount in event.resources.items():
        if name not in spec.resources and (name in (SLOT, BUDGET) or name.startswith(PROVIDER_PREFIX)):
            return f"the resource {name!r:.140} counts from a session's launch on: leave it out"
        if spec.resources.get(name, amount) != amount:
            return f"the session has {spec.resources[name]} of the resource {name!r:.140}, not {amount}"
    taken = {task.id.casefold(): task.id for task in spec.tasks}
    for task in event.tasks:
        twin = taken.get(task.id.casefold())
        if twin is not None:
            same = "" if twin == task.id else f" ({twin!r:.140}; ids differ in more than case)"
            return f"the session has a task {task.id!r:.140} already{same}"
    wide = widen_spec(spec, event)
    for task in event.tasks:
        problem = _find_own(task) or _find_lack(wide, task)
        if problem is not None:
            return f"task {task.id!r:.140} {problem}"
    try:
        validate_tasks(event.tasks, frozenset(taken.values()))
        validate_uses(replace(wide, tasks=event.tasks))
        validate_wishes(replace(wide, tasks=event.tasks))
    except InputError as error:
        return str(error)
    return None


def _find_own(task: TaskSpec) -> str | None:
    """What the task says that only a session or a launch says of its own tasks.

    Later events look up the tasks that these name: one that is not there would stop every supervisor from then on.
    """
    if task.mend is not None:
        return "has a mend: a session adds its mends by itself"
    return "has handed: only a launch says what earlier sessions hand on" if task.handed else None


def _find_lack(spec: SessionSpec, task: TaskSpec) -> str | None:
    """What the task needs that a session gets at its launch alone, or that came without it."""
    for name in (task.agent, *(other.agent for other in task.fallback)):
        if name not in spec.agents:
            return f"has the agent {name!r:.80}, which the session does not know"
    if has_worktree(task) and repository_of(spec, task) is None:
        return "wants a worktree, but the session was started without a repository"
    if task.upstream is not None and spec.mirrors is None:
        return "has a repository of its own, but the session was started without such tasks"
    if task.environment is not None and spec.cache is None:
        return "wants an environment, but the session was started without such tasks"
    return None
