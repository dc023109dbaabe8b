"""The landing queue of a session, part of its state: in which lane the work of a task stands.

Pure.  Work is ready for the next LAND job, waits for the work of other tasks, or is held.  Work that has landed or
is bounced is in no lane.  Why work moves is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.frozen import changeable
from sessionrun.model.places import LandEntry
from sessionrun.model.words import LandWord

READY: Final = LandEntry("ready")


@changeable
class LandQueue:
    """The work that is to land, and the LAND job that lands it; one such job runs at a time.

    Its key names one of the tasks whose work it takes, and `turns` counts these jobs.
    """

    ready: dict[str, None] = field(default_factory=dict)
    """The tasks whose work the next LAND job takes, in their order."""
    waiting: dict[str, None] = field(default_factory=dict)
    """The tasks whose work waits for that of others."""
    held: dict[str, None] = field(default_factory=dict)
    """The tasks whose work could not land for a reason that is not its own: the next LAND job tries it again."""
    to_mend: dict[str, str] = field(default_factory=dict)
    """The tasks whose bounced work is owed a mend, each with the task with whose work that begins."""
    mends: dict[str, int] = field(default_factory=dict)
    """By task: how many mends of its work were added."""
    turns: int = 0
    """How many LAND jobs were claimed."""
    tries: int = 0
    """How many LAND jobs in a row ended without an answer; see `transitions.count_try`."""
    lander: str | None = None
    """The task in whose name a LAND job runs; None: there is none."""
    taken: tuple[str, ...] = ()
    """The tasks whose work it took."""
    owed: bool = False
    """Whether a LAND job was broken off, so that the next one has to mend what it left."""


def land_of(state: State) -> LandQueue:
    """The landing queue of a session that lands."""
    land: LandQueue = state.parts[LandQueue]
    return land


def leave_queue(state: State, name: str, landing: LandEntry) -> None:
    """The work of a task is not in the queue any more: `landing` says why."""
    land = land_of(state)
    for lane in (land.ready, land.waiting, land.held):
        lane.pop(name, None)
    state.tasks[name].landing = landing._replace(seq=state.seq)


def requeue(state: State, names: list[str]) -> None:
    """Put the work of these tasks at the end of the queue, and let that come along which waited for it."""
    land = land_of(state)
    for name in names:
        leave_queue(state, name, READY)
        land.ready[name] = None
    sort_out(state, [*names, *land.waiting])


def requeue_waiting(state: State) -> None:
    """See whether what waits for other work may land now."""
    land = land_of(state)
    sort_out(state, [*land.ready, *land.waiting])


def sort_out(state: State, names: Iterable[str]) -> None:
    """Find which work is ready: its needs have landed, or are ready too and land before it."""
    land, left = land_of(state), list(dict.fromkeys(names))
    for name in left:
        land.waiting.pop(name, None)
        land.ready[name] = None
        state.tasks[name].landing = READY
    while left:  # what waits makes others wait
        lacking = {name: need for name in left if (need := _find_lacking(state, state.tasks[name])) is not None}
        for name, need in lacking.items():
            land.ready.pop(name)
            land.waiting[name] = None
            state.tasks[name].landing = LandEntry("waiting", "needs", f"it needs {need!r}, not landed")
        left = [name for name in left if name not in lacking] if lacking else []


def _find_lacking(state: State, task: TaskState) -> str | None:
    """A task whose work has to land first, and is neither in the branch nor ready."""
    return next(
        (name for name, landing in find_first(task, state.tasks) if landing not in ("landed", "ready")), None
    )


def find_first(task: TaskState, tasks: Mapping[str, TaskState]) -> Iterator[tuple[str, LandWord]]:
    """Yield the tasks whose work has to land before that of a task, and where that work is.

    A need without work stands for its own needs.  A mend has the needs of the task whose work it mends.
    """
    seen, queue = {task.spec.id}, [task]
    for at in queue:  # grows while it is walked
        mend = at.spec.mend
        for need in at.spec.needs if mend is None else tasks[mend.task].spec.needs:
            needed = tasks.get(need)
            if needed is None or need in seen:
                continue
            seen.add(need)
            if needed.landing is None:
                queue.append(needed)
            else:
                yield need, needed.landing.status


def is_mending(owner: TaskState) -> bool:
    """Whether mends of a task's work still count: after a follow-up it has other work."""
    return owner.landing is not None and owner.landing.status == "mending"
