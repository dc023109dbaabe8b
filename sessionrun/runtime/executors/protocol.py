"""What executors tell of jobs, as facts; judging them is not their work."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Final, TypeAlias

from sessionrun.model.cluster import SlotsOffered
from sessionrun.model.events import HoldPlaced, JobLost, JobStarted
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.places import KILLED_BY_AGENT, STOPPED_BY_US, Leftover
from sessionrun.model.spec import SLOT
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


REFUSED_RETRY_S: Final = 1.0
UNSEEN: Final = "its end was not seen: the process that had started it was dead by then"

Notice: TypeAlias = JobStarted | Exit | JobLost | HoldPlaced | SlotsOffered


def read_frame(fields: list[bytes], key: JobKey) -> list[Notice]:
    """Return the notices of a job that a frame of the keeper holds (see `keeper.wire`)."""
    kind, rest = fields[0], fields[2:]
    if kind == b"P":
        return [JobStarted(key, int(rest[0]), int(rest[1]), int(rest[2]))]
    if kind == b"X":
        left = name_left(zip(rest[3::2], rest[4::2], strict=True))
        return [Exit(key, int(rest[0]), int(rest[2]), cpu_s=float(rest[1]) if rest[1] else None, left=left)]
    if kind == b"F":
        return [Exit(key, None, int(rest[2]), errno=int(rest[0]), detail=os.fsdecode(rest[1]))]
    if kind == b"L":
        return [JobLost(key, "lost", UNSEEN, gone=True)]
    if kind == b"R":
        reason = rest[0].decode("utf-8", "replace")
        hold = HoldPlaced(SLOT, reason, until=time.monotonic() + REFUSED_RETRY_S, until_exit=True)
        return [hold, JobLost(key, "void", reason, counts=False)]
    if kind == b"D":
        return [JobLost(key, "lost", "its start was claimed before, and nothing more is known of it")]
    return []
