"""What a business adds to the engine: a row of pure functions, which the engine calls at named moments.

The engine knows the moments, and no business.  A session is folded with the rows of the businesses that it has
(`moves.begin` takes them), and does everything else without them.  A row names functions of modules alone, so that
a state can be pickled.  The rows are called in the order of the house.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from sessionrun.engine.task import RunningJob, TaskState
from sessionrun.model.events import Entry, Event, JobFinished, JobLost, RequestReceived
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.spec import TaskSpec
from sessionrun.model.words import LandWord

_State: TypeAlias = Any
"""`engine.state.State`, which keeps these rows: so this module cannot know it."""

Act: TypeAlias = "Callable[[_State, Entry, Any], None]"
"""What an event of the journal changes in the state."""


def _add_nothing(*_: object) -> None:
    """Stand for a moment at which a business has nothing to do."""


class Rules(NamedTuple):
    """What one business does at which moment; a moment that it leaves out means nothing to it.

    A function that returns nothing is part of the fold; the others only look.

    Attributes:
        begin: the session has no tasks yet: the place for what the business keeps in `State.parts`.
        events: what those events of the journal change that are its own.
        phase: the phase whose jobs are the session's and no task's: one job for the work of many.
        claimed: a job of that phase is claimed.
        job_ended: a job of that phase has ended, or was lost.
        starts: the job of that phase that is to start now; None: none is.
        owed: the event that is to be recorded now; None: there is none.
        is_open: whether the session has to go on, although all its tasks have ended.
        task_added: a task comes while the session runs; it is not among the tasks yet.
        task_ended: the task has its outcome, and those that wait for it know.
        task_continued: a follow-up is noted, and the task is about to begin anew.
        requested: a request was done to the tasks.
        find_fault: why a task that has ended cannot be continued now; None: it can.
        find_stage: where the work of a task that has ended stands on its way; None: it has no such way.
        show: keys of the task in status.json, in the place of the engine's own; None: there are none.
    """

    begin: Callable[[_State], None] = _add_nothing
    events: Mapping[type, Act] = {}
    phase: Phase | None = None
    claimed: Callable[[_State, Entry, JobKey], None] = _add_nothing
    job_ended: Callable[[_State, Entry, RunningJob, JobFinished | JobLost], None] = _add_nothing
    starts: Callable[[_State], JobKey | None] = _add_nothing
    owed: Callable[[_State], Event | None] = _add_nothing
    is_open: Callable[[_State], bool | None] = _add_nothing
    task_added: Callable[[_State, TaskSpec], None] = _add_nothing
    task_ended: Callable[[_State, TaskState], None] = _add_nothing
    task_continued: Callable[[_State, TaskState], None] = _add_nothing
    requested: Callable[[_State, RequestReceived], None] = _add_nothing
    find_fault: Callable[[_State, TaskState], str | None] = _add_nothing
    find_stage: Callable[[_State, TaskState], LandWord | None] = _add_nothing
    show: Callable[[_State, TaskState], Mapping[str, object] | None] = _add_nothing
