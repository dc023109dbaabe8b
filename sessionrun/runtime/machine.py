"""Holds the starts of a session while its machine has too much to do, or too little memory.

The load is the average of the last minute, as the system has it; free memory is what programs can still get
before anything is swapped out.  Both are read when a task could start.  While the machine holds that task, they
are read again every `LOOK_S` seconds, and nothing is recorded unless something has changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from sessionrun.engine.pace import MACHINE, has_work_to_start
from sessionrun.engine.state import State
from sessionrun.model.events import Event, HoldLifted, HoldPlaced
from sessionrun.model.sizes import format_size
from sessionrun.model.spec import Limits

LOOK_S: Final = 5.0
RENEW_S: Final = 60.0
"""How old the figure of a hold may become: then the hold is recorded again, with that of now."""


def measure_load() -> float | None:
    """The average of the last minute; None: the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def measure_free_memory() -> int | None:
    """What programs can still get (bytes); None: the system does not say, which is so of all but Linux."""
    try:
        with open("/proc/meminfo", "rb") as stream:
            lines = (line.split() for line in stream)
            return next((int(words[1]) * 1024 for words in lines if words[0] == b"MemAvailable:"), None)
    except OSError:
        return None


class MachineWatch:
    """Says when the machine holds a session's starts; `look_at` is when it is to be asked next (monotonic)."""

    def __init__(
        self,
        limits: Limits,
        load: Callable[[], float | None] = measure_load,
        free_memory: Callable[[], int | None] = measure_free_memory,
    ) -> None:
        self._limits = limits
        self._load, self._free_memory = load, free_memory
        self._renew_at = 0.0
        self.look_at: float | None = None

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        """What is to be recorded now."""
        held = MACHINE in state.holds
        if not has_work_to_start(state):
            self.look_at = None
            if held:
                yield HoldLifted(MACHINE)
            return
        if held and self.look_at is not None and mono < self.look_at:
            return
        reason = self._find_reason()
        self.look_at = None if reason is None else mono + LOOK_S
        if reason is None and held:
            yield HoldLifted(MACHINE)
        elif reason is not None and (not held or mono >= self._renew_at):
            self._renew_at = mono + RENEW_S
            yield HoldPlaced(MACHINE, reason)

    def _find_reason(self) -> str | None:
        most, least = self._limits.max_load, self._limits.min_free_memory
        load = self._load() if most else None
        if most and load is not None and load > most:
            return f"load {load:.3g} is above {most:g}"
        free = self._free_memory() if least else None
        if least and free is not None and free < least:
            return f"free memory {format_size(free)} is below {format_size(least)}"
        return None
