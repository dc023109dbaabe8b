"""When jobs ran, from the journal: what a story, a report and a recording are made of.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sessionrun.model.events import Entry, JobClaimed, JobFinished, JobLost, JobStarted, TimerFired
from sessionrun.model.keys import JobKey


@dataclass
class Run:
    """A job: the entries of its start and of its end, and the limit that ended it; None: there is none."""

    key: JobKey
    begin: Entry | None = None
    end: Entry | None = None
    timer: str | None = None


def find_runs(entries: Iterable[Entry]) -> dict[JobKey, Run]:
    """All jobs, in the order in which they were claimed."""
    runs: dict[JobKey, Run] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, (JobClaimed, JobStarted)):
            run = runs.setdefault(event.key, Run(event.key))
            run.begin = entry if isinstance(event, JobStarted) else run.begin
        elif isinstance(event, (JobFinished, JobLost)) and event.key in runs:
            runs[event.key].end = entry
        elif isinstance(event, TimerFired) and event.key in runs:
            runs[event.key].timer = event.timer
    return runs
