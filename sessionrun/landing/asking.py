"""Asks for a landing: whose work is to land, which of its commits, and in what surroundings its gates run.

A LAND of the session and `merge` ask here alike, by the state of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState, find_end
from sessionrun.landing.mends import find_first
from sessionrun.landing.records import Entry, Gates, LandRequest, digest_target, room_path
from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.spec import SessionSpec, title_of
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.environments.request import EnvironmentRequest, find_cache


def make_request(
    session: SessionDir,
    state: State,
    target: str,
    gates: Gates,
    works: Iterable[TaskState],
    *,
    is_wanted: Callable[[TaskState], bool],
    is_to_land: Callable[[TaskState], bool],
    batch: int | None,
    trailers: bool = True,
) -> LandRequest:
    """Ask for the landing of the work of tasks, in this order.

    `is_to_land` says of a need whether it has work that lands before that of the task.
    """
    spec, tasks = state.spec, state.tasks
    assert spec.repository is not None
    entries = []
    for task in works:
        if (place := find_end(task)) is not None:
            has_ended = task.outcome == "succeeded"  # a follow-up goes on with the branch
            entry = Entry(
                task=task.spec.id,
                tip=place.commit or "",
                base=place.work_base or "",
                title=" ".join(title_of(task.spec).split()),
                needs=tuple(find_first(task, tasks, is_to_land)),
                wanted=is_wanted(task),
                trailers=_word_trailers(spec, task) if trailers else (),
                branch=(place.branch if has_ended else None) or "",
                walled=task.spec.sandbox is not None,
            )
            entries.append(entry)
    setups = (task.place.setup_commit for task in tasks.values() if task.place is not None)
    return LandRequest(
        repository=spec.repository,
        session_id=spec.session_id,
        folder=str(session.path.absolute() / LANDING_FOLDER / digest_target(target)),
        target=target,
        entries=tuple(entries),
        gates=_make_gates(gates, state, target),
        batch=batch,
        setups=tuple(commit for commit in setups if commit is not None),
    )


def _word_trailers(spec: SessionSpec, task: TaskState) -> tuple[str, ...]:
    """The lines at the end of the message of a task's merge: whose work it is."""
    cost_usd = task.usage.cost_usd if task.usage is not None else None
    trailers = {
        "Task": task.spec.id,
        "Session": spec.session_id,
        "Agent": task.agent,
        "Model": task.last_model or task.asked_model,
        "Cost": None if cost_usd is None else f"{cost_usd:.4f} USD",
    }
    return tuple(f"Sessionrun-{name}: {' '.join(str(value).split())}" for name, value in trailers.items() if value)


def _make_gates(gates: Gates, state: State, target: str) -> Gates:
    """Gates in the surroundings that the tasks of a session have; those with a repository elsewhere do not count.

    If all that want an environment want the same, the gates have one, too: a copy of an entry of the cache, as
    a task has, and never one in which an agent worked.
    """
    spec, own = state.spec, [task.spec for task in state.tasks.values() if task.spec.upstream is None]
    gates = replace(gates, links=tuple(dict.fromkeys(link for task in own for link in task.links)))
    wanted = {task.environment for task in own if task.environment is not None}
    if len(wanted) != 1 or not gates.commands or spec.repository is None:
        return gates
    room = str(room_path(spec.repository, target))
    environment = EnvironmentRequest(
        top=room,
        directory=room,
        cache=find_cache(spec.cache),
        python=wanted.pop().python,
        require_cache=spec.cache is not None and spec.cache.require_cache,
    )
    return replace(gates, environment=environment)
