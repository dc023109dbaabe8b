"""How many tasks of a session may run at once, changed while it runs.

What a launch writes into spec.json stays as it is there; `State.spec` is what holds now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.engine.tokens import span_tokens
from sessionrun.model.cluster import uses_replicas
from sessionrun.model.spec import SLOT

if TYPE_CHECKING:  # a launch needs neither
    from sessionrun.model.cluster import SlotsOffered
    from sessionrun.model.events import RequestReceived


def find_width_fault(state: State, event: RequestReceived) -> str | None:
    """Why the session cannot have this width: a task holds more slots than there would be."""
    width = event.max_parallel
    if width is None:
        return "set without max_parallel changes nothing"
    for task in state.tasks.values():
        slots = task.spec.uses.get(SLOT)
        if slots is not None and task.outcome is None and not 0 < slots <= width:
            return f"task {task.spec.id!r:.140} uses {slots} of {SLOT!r}"
    return None


def set_width(state: State, width: int) -> None:
    """So many tasks may run at once from now on, 0 = any number; what runs goes on, also if that is more."""
    resources = {name: amount for name, amount in state.spec.resources.items() if name != SLOT}
    state.spec = replace(state.spec, resources={**resources, SLOT: width} if width else resources)
    state.free.pop(SLOT, None)
    limit = find_limit(state, width)
    if limit is not None:
        state.free[SLOT] = limit
        state.free[SLOT] -= sum(_count_slots(state, task) for task in state.tasks.values())
        state.queue.unpark(SLOT)
    else:
        for rank, num, name in state.queue.drain(SLOT):
            state.queue.push(rank, num, name)


def offer_slots(state: State, offered: SlotsOffered) -> None:
    """The session's cluster has so many slots now: more tasks do not run at once, whatever was asked for."""
    state.offered = offered
    set_width(state, state.spec.resources.get(SLOT, 0))


def find_limit(state: State, width: int) -> int | None:
    """How many tasks may run at once where `width` was asked for (0 = any number); None: any number."""
    if not uses_replicas(state.spec.cluster):
        return width or None
    offered = state.offered.slots if state.offered else 0
    return min(width, offered) if width else offered


def _count_slots(state: State, task: TaskState) -> int:
    return sum(amount for name, amount in span_tokens(state, task) if name == SLOT)
