"""An executor without processes: every job's fate is scripted, and time jumps to the next event.

What tests and dry experiments use: a day of work takes milliseconds and comes out the same each time.  It
knows jobs and its own clock only; nothing of it may read the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Final, Literal, TypeAlias

from sessionrun.model.asked import Sandbox
from sessionrun.model.events import HoldPlaced, JobClaimed, JobLost, JobStarted
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT, Job
from sessionrun.session.executor import Exit, Notice

SIGKILL: Final = 9
SIGTERM: Final = 15
REFUSED_RETRY_S: Final = 1.0

FateKind: TypeAlias = Literal["exits", "lost", "interrupted", "void", "refused", "unstartable"]


@frozen
class Fate:
    """What becomes of one job; times in seconds.

    `exits`: after `duration_s`, with the raw `wait_status` of wait(2).  `lost`, `interrupted`: it runs as long,
    then it is not known.  `void`: claimed, but it never runs.  `refused`: the system has no room for it (a hold).
    `unstartable`: its program cannot be executed, for `errno`.  A stopped job ends `grace_s` later, by
    `stop_signal`, unless it ends by itself before; one that is stopped `now` at once, by SIGKILL.
    `prints_at` are the times after its start at which it prints a byte.
    """

    kind: FateKind = "exits"
    duration_s: float = 0.0
    wait_status: int = 0
    errno: int = 2
    grace_s: float = 0.0
    stop_signal: int = SIGTERM
    prints_at: tuple[float, ...] = ()


class SimulatedExecutor:
    """Plays the fates that `script` gives to jobs; see `Executor` for the methods it shares."""

    def __init__(self, script: Callable[[Job], Fate], *, start_at: float = 0.0) -> None:
        self._script = script
        self._now = start_at
        self._numbers = count(1)
        self._ends: list[tuple[float, int, JobKey, int | None]] = []
        self._running: dict[JobKey, Fate] = {}
        self._begun_at: dict[JobKey, float] = {}

    def clock(self) -> float:
        """Simulated monotonic time in seconds."""
        return self._now

    @property
    def running(self) -> int:
        """How many jobs run."""
        return len(self._running)

    needs_sync = False

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        return JobClaimed(key)

    def settle(self) -> None:
        """See `Executor.settle`."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """See `Executor.start`.  After a refusal the rest of `jobs` never runs either."""
        notices: list[Notice] = []
        for place, job in enumerate(jobs):
            fate = self._script(job)
            if fate.kind == "refused":
                reason = "no room for another process"
                notices.append(HoldPlaced(SLOT, reason, until=self._now + REFUSED_RETRY_S, until_exit=True))
                notices += [JobLost(rest.key, "void", reason, counts=False) for rest in jobs[place:]]
                break
            notices.append(self._begin(job.key, fate))
        return notices

    def _begin(self, key: JobKey, fate: Fate) -> Notice:
        number = next(self._numbers)
        if fate.kind == "void":
            return JobLost(key, "void", "it never ran")
        if fate.kind == "unstartable":
            return Exit(key, None, number, errno=fate.errno, detail="no such program")
        self._running[key], self._begun_at[key] = fate, self._now
        heappush(self._ends, (self._now + fate.duration_s, number, key, None))
        return JobStarted(key, pid=number, started=number, ledger=number)

    def measure_output(self, key: JobKey) -> int:
        """How much a running job has printed (bytes)."""
        return sum(self._begun_at[key] + time <= self._now for time in self._running[key].prints_at)

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        fate = self._running.get(key)
        if fate is not None:
            wait_s, signal = (0.0, SIGKILL) if now else (fate.grace_s, fate.stop_signal)
            heappush(self._ends, (self._now + wait_s, next(self._numbers), key, signal))

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        """Jump to the next end, or by `timeout_s`; all that ends at that moment is told.

        Raises:
            RuntimeError: nothing runs and no time was given, so a real executor would wait for ever.
        """
        until = None if timeout_s is None else self._now + max(0.0, timeout_s)
        end_at = self.next_end()
        if end_at is not None and (until is None or end_at <= until):
            until = end_at
        if until is None:
            raise RuntimeError("waits for ever: no job runs and no time is set")
        self._now = max(self._now, until)
        notices: list[Notice] = []
        while self._ends and self._ends[0][0] <= self._now:
            _, number, key, stop_signal = heappop(self._ends)
            fate = self._running.pop(key, None)
            if fate is not None:
                notices.append(_tell_end(key, fate, number, stop_signal))
        return notices

    def next_end(self) -> float | None:
        """When the next job ends; a stopped one has several ends, and only the first one happens."""
        while self._ends and self._ends[0][2] not in self._running:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def close(self) -> None:
        """See `Executor.close`; nothing is open here."""


def _tell_end(key: JobKey, fate: Fate, number: int, stop_signal: int | None) -> Notice:
    if stop_signal is not None:
        return Exit(key, stop_signal, number)
    if fate.kind == "lost" or fate.kind == "interrupted":
        return JobLost(key, fate.kind, "its end was not seen")
    return Exit(key, fate.wait_status, number)
