"""Whether a node is given more jobs than it has slots: those beyond wait at the scheduler, and begin at once when
another one there ends.

For jobs of a moment the way to the session and back would take longer than the job.  For others it would be wrong:
a job could wait behind a long one while another node has room.  So it is done only while jobs are short, and what
waits for too long is called back.
"""

from __future__ import annotations

from typing import Final

SHORT_S: Final = 0.5
"""Jobs that last so long on average, or longer, do not wait for each other."""

MOMENT_S: Final = 0.1
"""Of jobs that last less there are several in a message and in a sync: else these cost more than the jobs."""

ENOUGH: Final = 8
"""So many jobs must have ended before their average means anything."""

CALL_BACK_S: Final = 2.0
"""A job that has waited so long goes elsewhere, if there is room."""

_WEIGHT: Final = 0.2


class Ahead:
    """What is known of how long jobs last, and since when those wait that have not begun."""

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._seen = 0
        self._waiting: dict[str, float] = {}

    @property
    def factor(self) -> int:
        """How many jobs there may be for each slot."""
        if self._seen < ENOUGH or self._mean_s >= SHORT_S:
            return 1
        return 2 if self._mean_s >= MOMENT_S else 8

    def submitted(self, job: str, now: float) -> None:
        """A job was sent."""
        self._waiting[job] = now

    def begun(self, job: str) -> None:
        """It runs, or ran."""
        self._waiting.pop(job, None)

    def ended(self, job: str, seconds: float | None) -> None:
        """It has ended; `seconds` is how long it ran, if its node says so."""
        self.begun(job)
        if seconds is not None:
            self._seen += 1
            self._mean_s += (seconds - self._mean_s) * (1.0 if self._seen == 1 else _WEIGHT)

    def find_stuck(self, now: float) -> list[str]:
        """The jobs that have waited for too long."""
        return [job for job, since in self._waiting.items() if now - since > CALL_BACK_S]
