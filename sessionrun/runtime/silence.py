"""Ends agents that are silent and do not work: they wait for a limit of their provider, or linger after their end.

Some agents ask again for hours, and print nothing meanwhile.  Others print their last word and do not exit.  So
when an agent has printed nothing for a while, what it printed or logged last is looked at: after 30 s, when it has
lingered for as long as it may, and then each time when the silence is twice as long.  Whether that is a limit, or
a last word, is the agents' business.  A node without contact sends nothing that its jobs print: no silence counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.engine.state import State
from sessionrun.model.events import Event, TimerFired
from sessionrun.model.keys import JobKey

if TYPE_CHECKING:
    from sessionrun.runtime.jobs.maker import JobMaker

SILENT_S: Final = 30.0
LOOK_S: Final = 5.0
SOON_S: Final = 0.2


class SilenceWatch:
    """Says which jobs wait for a limit or linger; `look_at` is when it is to be asked next (monotonic)."""

    fds: tuple[int, ...] = ()

    def __init__(self, jobs: JobMaker, contact_path: Path, silent_s: float = SILENT_S) -> None:
        """`contact_path` is there while a node or the head of the cluster has no contact."""
        self._jobs, self._contact_path, self._silent_s = jobs, contact_path, silent_s
        self._seen: dict[JobKey, tuple[int, float, float]] = {}  # size, since when, when to look at what it says
        self.look_at: float | None = None

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        """What is to be recorded now."""
        if not state.running_jobs:
            self.look_at = None
        if not state.running_jobs or (self.look_at is not None and mono < self.look_at):
            return
        self.look_at = mono + min(LOOK_S, self._silent_s / 2)
        before, self._seen = self._seen, {}
        if self._contact_path.exists():
            return
        for task in state.tasks.values():
            lingers = task.spec.linger_s or math.inf
            job = task.job
            if job is None or job.stopping is not None or job.key.phase != "work" or job.pid is None:
                continue
            size = self._jobs.measure_output(job.key)
            was, since, due = before.get(job.key, (-1, mono, 0.0))
            if size != was:
                since, due = mono, mono + min(self._silent_s, lingers)
            elif mono >= due:
                silent = mono - since
                due = since + (lingers if silent < lingers < 2 * silent else 2 * silent)
                if silent >= lingers and self._jobs.is_final(task, job.key):
                    yield TimerFired(job.key, "linger")
                elif silent >= self._silent_s and self._jobs.note_limit(task, job.key):
                    yield TimerFired(job.key, "silent_limit")
            self.look_at = min(self.look_at, max(due, mono + SOON_S))
            self._seen[job.key] = (size, since, due)
