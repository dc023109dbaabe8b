"""Holds and times that the state keeps, when a job ends and after a restart of the machine.

Nothing here reads a clock: times come from the entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sessionrun.engine.providers import offer, rebase
from sessionrun.engine.state import State
from sessionrun.model.events import Entry

REFUSED_RETRY_S: Final = 1.0
"""When a start was refused while no job runs whose end could help: seconds until the next try."""


def ease_holds(state: State, now: float, *, ended: bool) -> None:
    """The end of a job may free what a start was refused for; when none runs, only time can."""
    for name, hold in state.holds.items():
        if hold.until_exit and ended:
            state.holds[name] = replace(hold, until=now)
        elif hold.until_exit and hold.until is None and not state.running_jobs:
            state.holds[name] = replace(hold, until=now + REFUSED_RETRY_S)


def rebase_clock(state: State, entry: Entry) -> None:
    """After a reboot the monotonic clock counts anew: deadlines of before mean nothing."""
    now = entry.mono
    for task in state.tasks.values():
        if task.outcome is not None:
            continue
        task.deadline, task.round_deadline = None, None
        if task.started_at is not None:
            task.started_mono = now - (entry.at - task.started_at)
        if task.not_before:
            task.not_before = now
            offer(state, task)
    for name, hold in state.holds.items():
        if hold.until is not None and name not in state.providers:
            state.holds[name] = replace(hold, until=now)
    state.land.again_at = min(state.land.again_at, now)
    rebase(state, now)
