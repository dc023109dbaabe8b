"""The state of a session before its first record: what a launch shows, and what `fold` begins with."""

from __future__ import annotations

from sessionrun.engine.moves import enlist
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.engine.width import set_width
from sessionrun.model.spec import SLOT, SessionSpec


def begin(spec: SessionSpec) -> State:
    """The state before anything happened."""
    state = State(spec=spec, free=dict(spec.resources), feed_open=spec.open_feed)
    if spec.cluster is not None:
        set_width(state, spec.resources.get(SLOT, 0))
    for num, task in enumerate(spec.tasks, 1):
        state.tasks[task.id] = TaskState(task, num)
    for known in state.tasks.values():
        enlist(state, known)
    return state
