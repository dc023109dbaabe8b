"""The times of a cluster.  Its scheduler has them, and tells them to its nodes."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Final

from sessionrun.model.frozen import frozen

ROOT_SLACK_S: Final = 0.5
BRIDGE_SLACK_S: Final = 1.0
"""So long after the end of a lease the other watchers of a node kill what still runs."""

CALL_SLACK_S: Final = 3.0
"""A call that waits has failed when its answer is so much later than it should be."""

KILL_ROUND_S: Final = 0.5
DRIFT: Final = 0.001
"""How much faster or slower than another a machine's clock may run."""


@frozen
class Timers:
    """All in seconds.

    Attributes:
        tick: how long a call of a node or a session waits at the scheduler for news.
        lease: how long a node may run jobs after it sent the last tick that was answered.
        grace: so long before the end of its lease a node stops its jobs with TERM; at the end with KILL.
        margin: so long after the end of a lease, as the scheduler measures it, nothing of it runs any more.
    """

    tick: float = 2.0
    lease: float = 60.0
    grace: float = 10.0
    margin: float = 5.0

    @property
    def silence(self) -> float:
        """After so long without a tick there is no contact with a node: it sends one at least every `tick`."""
        return 3 * self.tick

    @property
    def call_timeout(self) -> float:
        """When a call has failed."""
        return self.tick + CALL_SLACK_S


def find_fault(timers: Timers) -> str | None:
    """Why two attempts of a task could run at once with these times, or no job for long; None: they are right."""
    margin = BRIDGE_SLACK_S + ROOT_SLACK_S + KILL_ROUND_S + 2 * DRIFT * timers.lease
    if min(timers.tick, timers.grace) <= 0:
        return "tick and grace must be more than 0"
    if timers.margin < margin:
        return f"margin must be at least {margin:g} s, for a lease of {timers.lease:g} s"
    if timers.lease < 3 * timers.tick + timers.grace:
        return f"lease must be at least three ticks and the grace, {3 * timers.tick + timers.grace:g} s"
    return None


def parse_timers(text: str) -> Timers:
    """Read ``lease=60,tick=2``; what is not named has its default.

    Raises:
        ValueError: the text is not of that form, or the times do not go together.
    """
    known = {field.name for field in fields(Timers)}
    found: dict[str, float] = {}
    for pair in filter(None, text.replace(" ", "").split(",")):
        name, _, number = pair.partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(sorted(known))}")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
        if not math.isfinite(found[name]):
            raise ValueError(f"{pair!r} is no time: write seconds, as in lease=60")
    timers = Timers(**found)
    if fault := find_fault(timers):
        raise ValueError(fault)
    return timers


def name_epoch(unique: str, timers: Timers) -> str:
    """The name of an epoch: it tells its lease, for the next scheduler may have another one."""
    return f"{unique}-{timers.lease:g}"


def lease_of(epoch: str) -> float:
    """The lease of an epoch by its name (seconds); 0 if the name does not tell it."""
    try:
        return float(epoch.rpartition("-")[2])
    except ValueError:
        return 0.0
