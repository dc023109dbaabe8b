"""How often a job that ended without a result is started again.

Pure.  A job that dies alone may well die again, so it has three starts.  One that dies together with its keeper is
hardly the cause: a user or the machine ended all processes.  Five of those count as one.
"""

from __future__ import annotations

from typing import Final

from sessionrun.engine.state import State
from sessionrun.engine.task import Keeper, RunningJob
from sessionrun.engine.transitions import MAX_STARTS
from sessionrun.model.events import JobFinished, JobLost

ALONE: Final = 5
"""What a try counts that ended alone; one that ended with its keeper counts 1."""

MAX_TRIES: Final = MAX_STARTS * ALONE
"""With so much the phase is not started again."""


def find_keeper(state: State) -> Keeper:
    """The keeper that runs the jobs now."""
    lives = state.supervisor
    return (None, None) if lives is None else (lives.keeper, lives.keeper_started)


def count_try(state: State, job: RunningJob, event: JobFinished | JobLost) -> int:
    """What a try that ended without a result counts; 0: the job never ran, for a reason that is not its own."""
    if isinstance(event, JobLost) and event.verdict == "void" and not event.counts:
        return 0
    return ALONE if find_keeper(state) == job.keeper else 1
