"""Frozen records of the orders that the scheduler gives and the supervisor carries out."""

from __future__ import annotations

from typing import TypeAlias

from sessionrun.model.events import Event, SessionEnded, StopReason, Timer
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey


@frozen
class StartJob:
    """Claim and start this job."""

    key: JobKey


@frozen
class CancelJob:
    """Stop this job's process tree; with `now` at once, also when it is being stopped already."""

    key: JobKey
    reason: StopReason
    now: bool = False


@frozen
class CheckOutput:
    """Look at what this job has printed: record `OutputSeen` if it has changed, else that `timer` has fired."""

    key: JobKey
    timer: Timer


@frozen
class Record:
    """Append this event to the journal and apply it: a decision that needs no process."""

    event: Event


@frozen
class WakeAt:
    """Nothing to do until this monotonic time, unless an event comes first."""

    mono: float


@frozen
class EndSession:
    """Append this last event, publish, and leave."""

    event: SessionEnded


Order: TypeAlias = StartJob | CancelJob | CheckOutput | Record | WakeAt | EndSession
