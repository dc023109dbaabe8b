"""One job that is open at Slurm, and what its record and squeue together say of it.  Pure.

The record wins: it has the raw status of wait(2).  What Slurm says counts only without one, or of a job that was
told to end by something else than its session.
"""

from __future__ import annotations

from typing import Any, Final

from sessionrun.cluster.slurm_programs import Row, describe
from sessionrun.model.events import HoldPlaced, JobLost, JobStarted, Verdict
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT
from sessionrun.session.executor import Notice, read_end

RECORD_WAIT_S: Final = 10.0
"""How long a record may take to be seen here once Slurm says that the job is over: file systems have caches."""

NODE_WAIT_S: Final = 60.0
"""How long a node that came back may take to end what Slurm has given up (its KillWait is 30 seconds)."""

STATE_WAIT_S: Final = 120.0
"""How long Slurm may take to say why it told a job to end."""

RETRY_S: Final = 5.0


class OpenJob:
    """A job; `index` is its place in the batch, None if it never came into one.  Times are monotonic."""

    def __init__(self, key: JobKey, batch: str, index: int | None, grace_s: float, array: str | None) -> None:
        self.key = key
        self.batch = batch
        self.index = index
        self.grace_s = grace_s
        self.array = array
        self.claim: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.row: Row | None = None
        self.reported = False
        self.over_since: float | None = None
        self.stop: str | None = None
        self.stop_at = 0.0
        self.signalled_at: float | None = None

    @property
    def job(self) -> str | None:
        """Slurm's name of it, ``ARRAY_INDEX``; None: not known (yet)."""
        if self.row is not None:
            return self.row.job
        if self.claim is not None and self.claim.get("by") == "node":
            return str(self.claim["job"])
        return f"{self.array}_{self.index}" if self.array is not None else None

    def tell_start(self) -> list[Notice]:
        """That it began, unless that was reported."""
        if self.reported or self.claim is None or self.claim.get("by") != "node":
            return []
        self.reported = True
        return [JobStarted(self.key, 0, 0, 0, node=f"{self.claim['node']}, Slurm job {self.claim['job']}")]

    def judge_end(self, now: float, *, fresh: bool) -> list[Notice] | None:
        """What its record says; None: Slurm has to say first why it told the job to end.

        Raises:
            KeyError, ValueError: the record is damaged.
        """
        end = self.end
        assert end is not None
        if end.get("told") and self.stop is None:
            self.over_since = now if self.over_since is None else self.over_since
            waits = not fresh or (self.row is not None and self.row.meaning == "lives")
            if waits and now - self.over_since < STATE_WAIT_S:
                return None
            if self.row is not None and self.row.meaning not in ("lives", "ended"):
                return [JobLost(self.key, _judge(self.row), describe(self.row), gone=True)]
        notice = read_end(end, self.key, f"{end.get('node')}, Slurm job {end.get('job')}")
        if isinstance(notice, JobLost) and notice.verdict == "void":  # there was no room for a process
            return [HoldPlaced(SLOT, notice.reason, until=now + RETRY_S), notice]
        return [notice]

    def judge_over(self, now: float) -> list[Notice] | None:
        """It has begun, left no record, and Slurm says that it is over, or knows nothing of it; None: wait.

        What ran around it is dead: whether Slurm has found all of its tree depends on how it tracks processes.
        """
        self.over_since = now if self.over_since is None else self.over_since
        is_back = self.row is not None and self.row.meaning == "node"
        if now - self.over_since < (NODE_WAIT_S if is_back else RECORD_WAIT_S):
            return None
        if self.row is None:
            why = f"Slurm knows nothing of job {self.job} any more, and it left no record"
            return [JobLost(self.key, "lost", why)]
        return [JobLost(self.key, _judge(self.row), describe(self.row))]

    def judge_unbegun(self, now: float) -> list[Notice]:
        """It can never begin: the head has taken its claim, or it was in no batch."""
        row = self.row
        if row is not None and row.meaning in ("cancelled", "limit"):
            return [JobLost(self.key, "interrupted", describe(row))]
        if row is not None and row.meaning in ("ended", "memory"):
            why = f"nothing ran: {describe(row)}; see slurm/log-{self.batch}.txt in the session's directory"
            return [HoldPlaced(SLOT, why, until=now + RETRY_S), JobLost(self.key, "void", why)]
        why = "Slurm does not have it" if row is None else describe(row)
        return [HoldPlaced(SLOT, why, until=now + RETRY_S), JobLost(self.key, "void", why, counts=False)]


def _judge(row: Row) -> Verdict:
    return "interrupted" if row.meaning in ("cancelled", "limit", "preempted") else "lost"
