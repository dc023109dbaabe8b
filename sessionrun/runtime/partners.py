"""What a supervisor works with and a test hands over in another form."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from sessionrun.engine.state import State
from sessionrun.model.events import Event


class Watch(Protocol):
    """Looks at what lies outside of the session; see `limits.LimitSharing`, `disk.DiskWatch`."""

    look_at: float | None
    """When it wants to be asked next (monotonic), whatever happens until then; None: at no time of its own."""

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
