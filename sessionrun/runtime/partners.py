"""What a supervisor works with and a test hands over in another form."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from sessionrun.engine.state import State
from sessionrun.model.events import Event


class Sharing(Protocol):
    """Knows what limits other sessions of the user met; see `sharing.LimitSharing`."""

    def hear(self, state: State, at: float, mono: float) -> Sequence[Event]:
        """Tell what this session met, and return what is to be recorded of others."""


class Watch(Protocol):
    """Looks at the machine from time to time; see `machine.MachineWatch`, `disk.DiskWatch`."""

    look_at: float | None
    """When it wants to be asked next (monotonic), whatever happens until then."""

    def hear(self, state: State, at: float, mono: float) -> Iterable[Event]:
        """What is to be recorded."""


class Clock(Protocol):
    """Where the time comes from."""

    def wall(self) -> float:
        """Seconds since the epoch."""

    def mono(self) -> float:
        """Monotonic seconds of this boot."""


class SystemClock:
    """The clocks of this machine."""

    wall = staticmethod(time.time)
    mono = staticmethod(time.monotonic)
