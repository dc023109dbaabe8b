"""Runs jobs as processes of this machine: the supervisor's end of the socket to the keeper.

The keeper does the work (see `sessionrun.keeper`); here jobs become frames, and frames become notices.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Final

from sessionrun.model.events import HoldPlaced, JobLost, JobStarted
from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.model.spec import SLOT, Job
from sessionrun.runtime.executors.protocol import Exit, Notice
from sessionrun.runtime.keeper.wire import Connection, JobOrder, pack_job

HELLO_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0
REFUSED_RETRY_S: Final = 1.0
LONGEST_WAIT_S: Final = 86400.0
"""poll(2) counts milliseconds in an int: it refuses more than 24 days.  To wake early does no harm."""


class KeeperGone(Exception):
    """The keeper has died: its supervisor can do nothing any more, and leaves."""


class LocalExecutor:
    """The executor for this machine.

    Args:
        end: this side of the socket to the keeper.

    Raises:
        KeeperGone: here and from every method, once the keeper is dead.
    """

    def __init__(self, end: socket.socket) -> None:
        self._connection = Connection(end)
        self._early: list[list[bytes]] = []
        self.keeper_pid, self.keeper_started, self.ledger_end = self._hear_hello()

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """See `Executor.start`; what became of them comes with `wait`."""
        for job in jobs:
            self._connection.send(*pack_job(_order(job)))
        self._connection.flush()
        return []

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        """See `Executor.stop`."""
        self._connection.send(b"T", key.text().encode(), b"1" if now else b"0")
        self._connection.flush()

    def wait(self, timeout_s: float | None, wake_fd: int | None) -> list[Notice]:
        """See `Executor.wait`."""
        poller = select.poll()
        poller.register(self._connection.fileno(), self._events())
        if wake_fd is not None:
            poller.register(wake_fd, select.POLLIN)
        timeout_s = 0.0 if self._early else timeout_s
        poller.poll(None if timeout_s is None else min(max(0.0, timeout_s), LONGEST_WAIT_S) * 1000 + 0.5)
        self._connection.flush()
        notices: list[Notice] = []
        frames, self._early = [*self._early, *self._receive()], []
        for fields in frames:
            notices += _read_frame(fields)
        return notices

    def close(self) -> None:
        """See `Executor.close`: the session has ended, so the keeper may leave."""
        self._connection.send(b"Q")
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        self._connection.flush()
        while self._connection.has_more and time.monotonic() < deadline:
            poller = select.poll()
            poller.register(self._connection.fileno(), select.POLLOUT)
            poller.poll(100)
            self._connection.flush()
        self._connection.close()

    def _events(self) -> int:
        return select.POLLIN | (select.POLLOUT if self._connection.has_more else 0)

    def _receive(self) -> list[list[bytes]]:
        try:
            return self._connection.receive()
        except EOFError:
            raise KeeperGone from None

    def _hear_hello(self) -> tuple[int, int, int]:
        """All that the ledger says up to the offset is to be read there; what comes after it comes from here.

        The holder of the session's lock asks.  So the answer is the newest there is, of a keeper that lives.
        """
        self._connection.send(b"H")
        self._connection.flush()
        poller = select.poll()
        poller.register(self._connection.fileno(), select.POLLIN)
        poller.poll(HELLO_TIMEOUT_S * 1000)
        frames = self._receive()
        if not frames or frames[0][0] != b"H":
            raise KeeperGone
        pid, started, offset = map(int, frames[0][1:])
        self._early = frames[1:]
        return pid, started, offset


def _order(job: Job) -> JobOrder:
    return JobOrder(
        key=job.key.text(),
        grace_s=job.stop_grace_s,
        cwd=os.fsencode(job.cwd),
        stdin=os.fsencode(job.stdin or ""),
        stdout=os.fsencode(job.stdout),
        stderr=os.fsencode(job.stderr),
        argv=[os.fsencode(word) for word in job.argv],
        env=[os.fsencode(word) for pair in job.env.items() for word in pair],
    )


def _read_frame(fields: list[bytes]) -> list[Notice]:
    kind, key, rest = fields[0], parse_job_key(fields[1].decode()), fields[2:]
    if kind == b"P":
        return [JobStarted(key, int(rest[0]), int(rest[1]), int(rest[2]))]
    if kind == b"X":
        return [Exit(key, int(rest[0]), int(rest[2]), cpu_s=float(rest[1]) if rest[1] else None)]
    if kind == b"F":
        return [Exit(key, None, int(rest[2]), errno=int(rest[0]), detail=os.fsdecode(rest[1]))]
    if kind == b"L":
        return [
            JobLost(
                key, "lost", "its end was not seen: the process that had started it was dead by then", gone=True
            )
        ]
    if kind == b"R":
        reason = rest[0].decode("utf-8", "replace")
        hold = HoldPlaced(SLOT, reason, until=time.monotonic() + REFUSED_RETRY_S, until_exit=True)
        return [hold, JobLost(key, "void", reason, counts=False)]
    if kind == b"D":
        return [JobLost(key, "lost", "its start was claimed before, and nothing more is known of it")]
    return []
