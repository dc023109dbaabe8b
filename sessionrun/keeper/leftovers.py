"""What a job leaves behind: what still runs when its process has ended, and what its agent killed.

An agent may kill its own background work when it exits, and say nothing of it.  The only sign is that an orphan of
its tree, which the keeper has adopted, dies by TERM or KILL at about that time, and that we did not send it.
Part of the keeper: standard library alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from sessionrun.store import processes
from sessionrun.store.logs import KILLED, STOPPED

Left = tuple[str, str]
"""How it ended, `STOPPED` or `KILLED`, and its command."""

MAX_LEFT: Final = 8
MAX_COMMAND: Final = 200
WALLS: Final = b"bwrap"
"""The name of the program that builds walls; it lives for as long as anything inside."""

AROUND_S: Final = 1.0
"""So long before an agent's end, or after it, a death counts as its doing."""


class _Death(NamedTuple):
    at: float
    session: int
    command: bytes


class Deaths:
    """The orphans that died by TERM or KILL a moment ago."""

    def __init__(self) -> None:
        self._recent: list[_Death] = []
        self._expected: set[processes.Identity] = set()

    def expect(self, members: Iterable[processes.Identity]) -> None:
        """We tell these to end, however long they take."""
        self._expected = {*members, *(known for known in self._expected if _identify(known.pid) == known)}

    def note(self, pid: int, status: int) -> None:
        """A process that is no job has ended, and was not reaped yet."""
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGTERM, signal.SIGKILL):
            session, command = processes.session_and_name(pid)
            now = time.monotonic()
            self._recent = [death for death in self._recent if death.at > now - 4 * AROUND_S]
            is_known = command == WALLS or _identify(pid) in self._expected
            if session != os.getsid(0) and not is_known:  # the supervisor is of our own session
                self._recent.append(_Death(now, session, command))

    def of_job(self, leader: int, ended_at: float | None, leaders: Collection[int]) -> list[Left]:
        """Those that were killed around the end of a job.

        Args:
            leader: the pid of its process.
            ended_at: when that ended (monotonic); None: that was not seen.
            leaders: those of all jobs; only of the last one an orphan may have left the session.
        """
        sole = len(leaders) == 1
        return [
            (KILLED, death.command.decode("utf-8", "replace"))
            for death in self._recent
            if ended_at is not None and death.at > ended_at - AROUND_S
            if death.session == leader or (sole and death.session not in leaders)
        ]


def _identify(pid: int) -> processes.Identity:
    """A process that is not reaped yet."""
    return processes.Identity(pid, processes.start_time(pid, zombie=True) or 0)


def name_stopped(members: Iterable[processes.Identity]) -> list[Left]:
    """What we are about to stop of a job that has ended; of a tree its top alone, and not the walls around it."""
    pids = {member.pid for member in members if processes.session_and_name(member.pid)[1] != WALLS}
    tops = [pid for pid in sorted(pids) if processes.parent_of(pid) not in pids]
    return [(STOPPED, processes.command_of(pid)[:MAX_COMMAND].decode("utf-8", "replace")) for pid in tops]
