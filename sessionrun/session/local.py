"""Runs jobs as processes of this machine: the supervisor's end of the socket to the keeper.

The keeper does the work (see `sessionrun.keeper`); here jobs become frames, and frames become notices.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from sessionrun.keeper.wire import Connection, count_ms
from sessionrun.model.asked import Sandbox
from sessionrun.model.events import JobClaimed
from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.model.spec import Job
from sessionrun.session.executor import Exit, Notice, NotSet, as_order, fill_in, read_frame

HELLO_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 5.0


class KeeperGone(Exception):
    """The keeper has died: its supervisor can do nothing any more, and leaves."""


class LocalExecutor:
    """The `Executor` for this machine, over this side of the socket to the keeper.

    Raises:
        KeeperGone: here and from every method, once the keeper is dead.
    """

    def __init__(self, end: socket.socket) -> None:
        self._connection = Connection(end)
        self.keeper_pid, self.keeper_started, self.ledger_end, self._early = greet(self._connection)

    needs_sync = False  # the ledger is the fence

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        return JobClaimed(key)

    def settle(self) -> None:
        """See `Executor.settle`: the ledger keeps all that it tells."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """See `Executor.start`; what became of them comes with `wait`."""
        notices: list[Notice] = []
        for job in jobs:
            try:
                self._connection.send("J", *fill_in(as_order(job)))
            except NotSet as fault:
                notices.append(Exit(job.key, None, detail=str(fault)))
        self._connection.flush()
        return notices

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        self._connection.send("T", key.text(), now)
        self._connection.flush()

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        poller = select.poll()
        poller.register(
            self._connection.fileno(), select.POLLIN | (select.POLLOUT if self._connection.has_more else 0)
        )
        for fd in wake_fds:
            poller.register(fd, select.POLLIN)
        poller.poll(count_ms(0.0 if self._early else timeout_s))
        self._connection.flush()
        try:
            frames, self._early = [*self._early, *self._connection.receive()], []
        except EOFError:
            raise KeeperGone from None
        notices: list[Notice] = []
        for fields in frames:
            notices += read_frame(fields, parse_job_key(fields[1]))
        return notices

    def close(self) -> None:
        """See `Executor.close`: the session has ended, so the keeper may leave."""
        self._connection.send("Q")
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        self._connection.flush()
        while self._connection.has_more and time.monotonic() < deadline:
            poller = select.poll()
            poller.register(self._connection.fileno(), select.POLLOUT)
            poller.poll(100)
            self._connection.flush()
        self._connection.close()


def greet(connection: Connection) -> tuple[int, int, int, list[list[Any]]]:
    """The keeper's pid and start time, an offset of the ledger, and frames that came with the hello.

    All that the ledger says up to the offset is to be read there; what comes after it comes from the keeper.
    The holder of the session's lock asks.  So the answer is the newest there is, of a keeper that lives.

    Raises:
        KeeperGone: it is dead.
    """
    connection.send("H")
    connection.flush()
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    poller.poll(HELLO_TIMEOUT_S * 1000)
    try:
        frames = connection.receive()
    except EOFError:
        raise KeeperGone from None
    if not frames or frames[0][0] != "H":
        raise KeeperGone
    _, pid, started, offset = frames[0]
    return pid, started, offset, frames[1:]
