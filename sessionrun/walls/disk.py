"""Ends jobs inside of walls that have filled more of the disk than their sandbox lets them.

No limit of the kernel counts folders for an ordinary user, so what a task can write is measured from time to time:
its worktree, its /tmp, its git directory, its environment, the folders of its agents, and the room of a proof.  It
may come to more between two looks.  A job's own process says which folders these are, when it builds its walls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.events import Event, TimerFired
from sessionrun.model.keys import Phase, parse_job_key
from sessionrun.model.kinds import PathText
from sessionrun.session.worker import Worker, serve
from sessionrun.store.jobfiles import FOLDERS, load_usable
from sessionrun.store.session import SessionDir
from sessionrun.store.space import measure

if TYPE_CHECKING:
    from sessionrun.session.partners import Partners

LOOK_S: Final = 1.0
"""How long the pause between two looks is at least (seconds)."""

BUSY_FACTOR: Final = 10.0
"""A pause is at least so many times as long as the look took."""

_WALLED: Final[frozenset[Phase]] = frozenset(("setup", "work", "check", "prove"))


def open_partners(partners: Partners, session: SessionDir, state: State) -> Partners:
    """The partners, with a watch: any task that comes may have walls."""
    return partners._replace(watches=(*partners.watches, DiskWatch(session)))


class DiskLook:
    """Which jobs are over their limit.  A thread measures, since that takes long for many files.

    `look_at` is when it is to be asked next (monotonic); also when one of `fds` is readable.
    """

    def __init__(self) -> None:
        self._looker: Worker[Mapping[str, tuple[Path, int]], list[str]] = Worker("disk", serve(_measure))
        self._began: float | None = None
        self.fds: tuple[int, ...] = (self._looker.fd,)
        self.look_at: float | None = None

    def look(self, limited: Mapping[str, tuple[Path, int]], mono: float) -> list[str]:
        """Take what the last look has found, or begin the next one; which of these jobs have to end.

        Args:
            limited: folder and limit (bytes) of each job that has one and runs, by its key.
        """
        found = [] if self._began is None else self._looker.take()
        if self._began is not None:
            if found or self._looker.fault is not None:
                self.look_at = mono + max(LOOK_S, BUSY_FACTOR * (mono - self._began))
                self._began = None
        elif not limited:
            self.look_at = None
        elif self.look_at is None or mono >= self.look_at:
            self._began, self.look_at = mono, None
            self._looker.ask(limited)
        return [job for full in found for job in full if job in limited]


def _measure(limited: Mapping[str, tuple[Path, int]]) -> Iterator[list[str]]:
    full = []
    for job, (folder, limit) in limited.items():
        folders = load_usable(folder / FOLDERS, list[PathText])  # None: the job has not built its walls
        if folders is not None and measure(*folders, most=limit) > limit:
            full.append(job)
    yield full


class DiskWatch(DiskLook):
    """Says which jobs of a session are over their limit."""

    def __init__(self, session: SessionDir) -> None:
        super().__init__()
        self._session = session
        self._known = 0
        self._limited: list[str] = []

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        if len(state.tasks) != self._known:
            self._known = len(state.tasks)
            self._limited = [task.spec.id for task in state.tasks.values() if _limit_of(task)]
        limited = {}
        for task in map(state.tasks.__getitem__, self._limited):
            if task.job is not None and task.job.stopping is None and task.job.key.phase in _WALLED:
                limited[task.job.key.text()] = self._session.job_path(task.job.key), _limit_of(task)
        for job in self.look(limited, mono):
            yield TimerFired(parse_job_key(job), "disk_limit")


def _limit_of(task: TaskState) -> int:
    """The limit of a task's sandbox (bytes); 0: it has none."""
    return (task.spec.sandbox.disk if task.spec.sandbox is not None else None) or 0
