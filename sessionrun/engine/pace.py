"""How fast a session starts work: pauses between two starts, and the hold while the machine has enough to do.

The pause follows from the journal alone, so it outlives a restart of the supervisor.  What the machine has to do
is measured elsewhere, and comes in as a hold (see `runtime.machine`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from sessionrun.engine.state import State
from sessionrun.engine.task import UP_TO_WORK
from sessionrun.model.keys import Phase
from sessionrun.model.spec import SLOT

if TYPE_CHECKING:
    from sessionrun.model.events import HoldPlaced

STAGGER: Final = "stagger"
"""The name under which tasks wait until WORK may start again after the last start of one."""

MACHINE: Final = "machine"
"""The name under which tasks wait while the machine has too much to do, or too little memory."""

START: Final = "start"
"""The name under which all tasks wait until the time at which the session is to begin."""

PACED: Final = (STAGGER, MACHINE, START)
"""Holds that only slow a session down: no user has to do anything for it to go on."""


def delay_start(state: State, wall: float, mono: float) -> HoldPlaced | None:
    """The hold until the session is to begin: for its first supervisor, and anew for each that finds it.

    None: there is no such time, it is over, or a user has released the session.
    """
    at = state.spec.limits.starts_at
    if at is None or at <= wall or (state.epoch and START not in state.holds):
        return None
    from sessionrun.model.events import HoldPlaced

    return HoldPlaced(START, "the session begins later, as asked for", mono + at - wall)


def begin_pause(state: State, phase: Phase, now: float) -> None:
    """A job of `phase` was claimed: after one of WORK the next one has to wait for `stagger_s`."""
    pause = state.spec.limits.stagger_s
    if pause and phase == "work":
        from sessionrun.model.events import HoldPlaced  # those that only read need no events

        reason = f"{pause:g} s between two starts of work"
        state.holds[STAGGER] = HoldPlaced(STAGGER, reason, now + pause)


def count_start(state: State, phase: Phase, taken: dict[str, int]) -> None:
    """A job of `phase` is about to start: with pauses no other WORK may start together with one."""
    if phase == "work" and state.spec.limits.stagger_s:
        taken[STAGGER] = 1


def paced_by(state: State, phase: Phase, taken: Mapping[str, int]) -> Iterator[str]:
    """What keeps a job of `phase` from starting now, beside what is `taken` by others that start with it."""
    if START in state.holds:
        yield START
    if phase in UP_TO_WORK and MACHINE in state.holds:
        yield MACHINE
    if phase == "work" and (STAGGER in state.holds or STAGGER in taken):
        yield STAGGER


def has_work_to_start(state: State) -> bool:
    """Whether a task would start its next job now, or waits for nothing but the machine."""
    if START in state.holds:
        return False
    full = SLOT in state.free and state.free[SLOT] <= 0
    return state.queue.is_parked(MACHINE) or state.queue.is_ready(1 if full else 2)
