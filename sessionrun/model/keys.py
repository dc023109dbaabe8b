"""What names one process of a session: its task, attempt, round, phase and start.  Pure; part of `model`."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Phase = Literal["prepare", "setup", "work", "check", "park", "prove", "land", "release"]
PHASES: Final[tuple[Phase, ...]] = ("prepare", "setup", "work", "check", "park", "prove", "land", "release")


class JobKey(NamedTuple):
    """Names one process of a session, once and for ever."""

    task: str
    attempt: int
    round: int
    phase: Phase
    start: int

    def text(self) -> str:
        """The key as the ledger and `SESSIONRUN_JOB` spell it; ids hold no slash."""
        return f"{self.task}/{self.attempt}/{self.round}/{self.phase}/{self.start}"


def parse_job_key(text: str) -> JobKey:
    """Read what `JobKey.text` wrote.

    Raises:
        ValueError: the text is not a job key.
    """
    task, attempt, round_, phase, start = text.split("/")
    if phase not in PHASES:
        raise ValueError(f"unknown phase {phase!r}")
    return JobKey(task, int(attempt), int(round_), phase, int(start))
