"""What the supervisor asks of an executor: start jobs, stop jobs, tell what happened.

An executor owns processes and nothing else: no policy, no journal.  It reports `Exit` as facts; judging
them is not its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from sessionrun.model.cluster import SlotsOffered
from sessionrun.model.ends import KILLED_BY_AGENT, STOPPED_BY_US, Leftover
from sessionrun.model.events import HoldPlaced, JobClaimed, JobLost, JobStarted
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.sandbox import Sandbox
from sessionrun.model.spec import Job
from sessionrun.store.ledger import KILLED


@frozen
class Exit:
    """The end of a job as the system told it; `wait_status` is the raw status of wait(2).

    `errno` is set, and `wait_status` None, when the program could not be started at all; `detail` then says
    what was at fault.  `left` names the processes that the job left behind: how each ended, and its command.
    """

    key: JobKey
    wait_status: int | None
    ledger: int | None = None
    cpu_s: float | None = None
    errno: int | None = None
    detail: str | None = None
    left: tuple[Leftover, ...] = ()


def name_left(left: Iterable[tuple[bytes, bytes]]) -> tuple[Leftover, ...]:
    """What the keeper says that a job left, in words."""
    return tuple(
        Leftover(command.decode("utf-8", "replace"), KILLED_BY_AGENT if how == KILLED else STOPPED_BY_US)
        for how, command in left
    )


UNSEEN: Final = "its end was not seen: the process that had started it was dead by then"

Notice: TypeAlias = JobStarted | Exit | JobLost | HoldPlaced | SlotsOffered


class Executor(Protocol):
    """Runs jobs somewhere.  All calls come from one thread."""

    needs_sync: bool
    """Whether a claim has to be durable before its job is started: nothing else keeps it from a second start."""

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        """The claim of a job that is to be started now.

        Args:
            key: the job.
            node: where the task's attempt was; None: nowhere.
            sandbox: that of the task.
        """

    def settle(self) -> None:
        """All that was told is recorded durably."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """Claim all of `jobs` durably, then start them; tell of each what became of it."""

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        """Begin to stop a job's process tree: TERM, its grace, KILL; with `now` KILL, whatever was begun before.

        Its `Exit` comes later, as always.
        """

    def wait(self, timeout_s: float | None, wake_fd: int | None) -> list[Notice]:
        """Block until something ended, `wake_fd` is readable or the time (seconds) is up."""

    def close(self) -> None:
        """Give up descriptors.  Running jobs go on."""
