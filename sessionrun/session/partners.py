"""What stands beside the supervisor.  All calls come from its thread.

The session's own partners are opened first; then each business of the table adds those that the spec asks of it.
A test hands them over in another form.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sessionrun.engine.state import State
from sessionrun.model.asked import Sandbox
from sessionrun.model.events import Event, JobClaimed
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Job
from sessionrun.session.executor import Notice


class Executor(Protocol):
    """Runs jobs somewhere: it owns processes and nothing else, no policy and no journal."""

    needs_sync: bool
    """Whether a claim has to be durable before its job is started: nothing else keeps it from a second start."""

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        """The claim of a job that is to be started now.

        Args:
            node: where the task's attempt was; None: nowhere.
            sandbox: that of the task.
        """

    def settle(self) -> None:
        """All that was told is recorded durably."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """Claim all of `jobs` durably, then start them; tell of each what became of it."""

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        """Begin to stop a job's process tree: TERM, its grace, KILL; with `now` KILL, whatever was begun before.

        Its `Exit` comes later, as always.
        """

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        """Block until something ended, one of `wake_fds` is readable or the time (seconds) is up."""

    def close(self) -> None:
        """Give up descriptors.  Running jobs go on."""


class Watch(Protocol):
    """Looks at what lies outside of the session; see `limits.LimitSharing`."""

    look_at: float | None
    """When it wants to be asked next (monotonic), whatever happens until then; None: at no time of its own."""

    fds: tuple[int, ...]
    """Each is readable when it wants to be asked: those of its workers."""

    def hear(self, state: State, at: float, mono: float) -> Iterable[Event]:
        """What is to be recorded."""


class Feeder(Watch, Protocol):
    """Brings tasks into the session."""

    def finish(self, state: State) -> None:
        """The session is about to end: wait, for a limited time, until its source is told."""


class Exports(Protocol):
    """Shows the session in files of other programs."""

    problems: list[str]
    """What could not be brought up to date by the last `write`, and why."""

    def write(self, status: Mapping[str, Any], *, durable: bool) -> str | None:
        """Bring the exports up to date; never raises.  What went wrong, if that is something new."""


class Notifier(Protocol):
    """Tells receivers what becomes of the session."""

    fds: tuple[int, ...]
    """When one is readable, there is something to `note`."""

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be told."""

    def show(self, status: Mapping[str, Any]) -> None:
        """Look at what is shown now, and have told what is new."""

    def note(self) -> None:
        """Write down what became of what was to be told."""


class Partners(NamedTuple):
    """All that stands beside one supervisor."""

    executor: Executor
    exports: Exports | None = None
    feeder: Feeder | None = None
    watches: tuple[Watch, ...] = ()
    notifier: Notifier | None = None


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
