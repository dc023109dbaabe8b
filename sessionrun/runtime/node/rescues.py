"""Makes packs of the work in progress of a node's jobs, one after the other, each at an interval.

Git may take long, and the link must answer the cluster; so a process of its own makes each pack.  It is started
with the folder of a job, and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.runtime.keeper.command import module_command, say
from sessionrun.runtime.node.jobs import NodeJob

LOOK_S: Final = 0.2
"""How often to look whether a pack is made."""

NICE: Final = 10


class Rescues:
    """When which job's work is packed: every `interval_s` seconds, 0: never."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._last: dict[str, float] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._job: NodeJob | None = None

    def look(self, jobs: Iterable[NodeJob]) -> None:
        """Take a pack that is made, and begin the next one that is due."""
        if self.interval_s <= 0:
            return
        if self._process is not None and self._process.poll() is None:
            return
        if self._job is not None:
            self._job.take_rescues()
        self._process, self._job = None, None
        now = time.monotonic()
        running = [job for job in jobs if job.rescue is not None and job.end is None]
        self._last = {job.job: self._last.get(job.job, now) for job in running}
        due = [
            job for job in running if now - self._last[job.job] >= self.interval_s and not job.has_rescue_to_send
        ]
        if due:
            self._job = min(due, key=lambda job: self._last[job.job])
            self._last[self._job.job] = now
            self._start(self._job)

    def _start(self, job: NodeJob) -> None:
        argv = module_command(__name__, str(job.folder / str(job.rescue)), str(job.scratch))
        try:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        except OSError as error:
            say(f"{job.job}: its work cannot be packed: {error.strerror}")

    def next_time(self) -> list[float]:
        """When to look again (monotonic)."""
        if self.interval_s <= 0:
            return []
        if self._process is not None:
            return [time.monotonic() + LOOK_S]
        return [max(when + self.interval_s, time.monotonic() + LOOK_S) for when in self._last.values()]


def main() -> None:
    """Make one pack: ``argv[1]`` is the folder of the job, ``argv[2]`` one for other files."""
    from sessionrun.workspaces.rescues import make_pack

    os.nice(NICE)
    try:
        make_pack(Path(sys.argv[1]), Path(sys.argv[2]))
    except (SessionrunError, OSError) as error:
        say(f"{sys.argv[1]}: its work cannot be packed: {error}")
        sys.exit(1)
