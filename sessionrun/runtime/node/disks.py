"""Ends jobs of a node that have filled more of the disk than their sandbox lets them (compare `runtime.disk`).

A thread measures, since that takes long for many files, and the link must answer the cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import orjson

from sessionrun.runtime.node.spool import SpooledJob
from sessionrun.store.files import read_regular
from sessionrun.walls.space import FOLDERS, LOOK_S, find_pause, is_over


class Disks:
    """Which jobs are over their limit."""

    def __init__(self) -> None:
        self._looker: threading.Thread | None = None
        self._full: list[str] = []
        self._began = 0.0
        self._look_at: float | None = None

    def look(self, jobs: Mapping[str, SpooledJob]) -> list[SpooledJob]:
        """Take what the last look has found, and begin the next one; the jobs that have to end."""
        limited = [job for job in jobs.values() if job.disk is not None and job.end is None and not job.filled]
        now = time.monotonic()
        if not limited:
            self._look_at = None
            return []
        if self._look_at is not None and now < self._look_at:
            return []
        if self._looker is None:
            self._looker, self._began = threading.Thread(target=self._measure, args=(limited,), daemon=True), now
            self._looker.start()
        elif not self._looker.is_alive():
            self._looker, self._look_at = None, now + find_pause(now - self._began)
            return [job for job in limited if job.job in self._full]
        self._look_at = now + LOOK_S / 10
        return []

    def next_time(self) -> list[float]:
        """When to look again (monotonic)."""
        return [] if self._look_at is None else [self._look_at]

    def _measure(self, jobs: Iterable[SpooledJob]) -> None:
        self._full = [job.job for job in jobs if is_over(list(_find_folders(job)), job.disk or 0)]


def _find_folders(job: SpooledJob) -> Iterator[str]:
    """What a job can write, as its own process has found out; nothing before that has built its walls."""
    with suppress(OSError, ValueError):
        yield from orjson.loads(read_regular(job.own_folder / FOLDERS))
