"""What a supervisor works with besides its executor, as protocols: each is handed to it, so that tests hand over
others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.events import Event, JobFinished, JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Job
from sessionrun.runtime.executors.protocol import Exit


class Jobs(Protocol):
    """Builds and judges jobs; see `jobs.JobMaker`."""

    def build(self, task: TaskState, key: JobKey, tasks: Mapping[str, TaskState]) -> Job:
        """The process for a key; `tasks` are all that there are."""

    def build_land(self, key: JobKey, tasks: Mapping[str, TaskState], *, only_mend: bool) -> Job:
        """The process of a LAND; with `only_mend` it lands nothing new."""

    def find_fates(self, ended: Exit) -> Sequence[Event]:
        """Return what became of the work of each task of a LAND that has ended."""

    def judge(self, task: TaskState, ended: Exit) -> JobFinished:
        """The verdict on its end."""

    def judge_unseen(self, task: TaskState, lost: JobLost) -> JobFinished | None:
        """The verdict where what the job left proves that it passed."""

    def measure_output(self, key: JobKey) -> int:
        """How much a job has printed (bytes)."""

    def is_final(self, state: TaskState, key: JobKey) -> bool:
        """Whether a WORK job has said its last word, and nothing that it began goes on."""

    def note_limit(self, state: TaskState, key: JobKey) -> bool:
        """Whether a silent WORK job waits for a limit; if it does, its verdict will say so."""


class Exports(Protocol):
    """Writes what others see of the session; see `exports.writer.ExportWriter`."""

    problems: list[str]

    def write(self, status: Mapping[str, Any], *, durable: bool) -> str | None:
        """Bring it up to date; what went wrong, for the log."""


class Sharing(Protocol):
    """Knows what limits other sessions of the user met; see `sharing.LimitSharing`."""

    def hear(self, state: State, at: float, mono: float) -> Sequence[Event]:
        """Tell what this session met, and return what is to be recorded of others."""


class Feeder(Protocol):
    """Brings tasks while the session runs; see `feeding.QueueFeeder`."""

    def hear(self, state: State, at: float, mono: float) -> Iterable[Event]:
        """Tell how the tasks stand, and return what is to be recorded; the state changes between two of these."""

    def finish(self, state: State) -> None:
        """The session is about to end: give back what is left."""


class Watch(Protocol):
    """Looks at the machine from time to time; see `machine.MachineWatch`, `disk.DiskWatch`."""

    look_at: float | None
    """When it wants to be asked next (monotonic), whatever happens until then."""

    def hear(self, state: State, at: float, mono: float) -> Iterable[Event]:
        """What is to be recorded."""


class Notifier(Protocol):
    """Tells others what became of the session; see `notifying.Notifying`."""

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be told."""

    def hear(self, status: Mapping[str, Any]) -> None:
        """What is shown now."""


class NoNotifier:
    """For a session without receivers."""

    is_busy = False

    def hear(self, status: Mapping[str, Any]) -> None:
        """See `Notifier.hear`."""


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
