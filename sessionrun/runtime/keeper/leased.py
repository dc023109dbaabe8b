"""What the keeper of a node does besides: it starts jobs under the lease alone, and ends them with it.

When the time of the lease is nearly up, TERM; at its end, KILL.  The keeper is the first of the watchers.  What
it finds killed when the lease is over, one of the others has killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sessionrun.runtime.keeper.children import Children
from sessionrun.runtime.keeper.lease import LeaseFile, boot_ns
from sessionrun.store.ledger import ACKNOWLEDGED, OVER, make_record

AGAIN_S: Final = 0.1


class Leased:
    """The lease of one keeper, and the jobs that it has ended because of it."""

    def __init__(self, directory: Path, children: Children, tell: Callable[..., None]) -> None:
        self._children = children
        self._tell = tell
        self._file = LeaseFile(directory)
        self._lease = self._file.read()
        self._over: set[str] = set()
        children.may_start = lambda: self._lease.may_start(boot_ns())
        children.on_end = self._look_at_end

    def take(self, fields: list[bytes]) -> None:
        """Carry out a frame that only nodes know."""
        kind = fields[0]
        if kind == b"V" and self._lease.renew(int(fields[1]), int(fields[2]), boot_ns()):
            self._file.write(self._lease)
        elif kind == b"A":
            self._children.note(make_record(ACKNOWLEDGED, fields[1].decode()))
        elif kind == b"O":
            self._end(fields[1].decode(), now=True)

    def _look_at_end(self, key: str, status: int) -> None:
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if was_killed and key not in self._over and self._lease.is_over(boot_ns()):
            self._note_over(key)

    def watch(self) -> None:
        """End the jobs when it is time."""
        now_ns = boot_ns()
        if self._lease.may_start(now_ns):
            return
        is_over = self._lease.is_over(now_ns)
        for key in list(self._children.by_key):
            if key not in self._over or is_over:
                self._end(key, now=is_over)
        self._over.intersection_update(self._children.by_key)

    def _end(self, key: str, *, now: bool) -> None:
        child = self._children.by_key.get(key)
        if child is None:
            return
        if key not in self._over and not child.has_ended:
            self._note_over(key)
        self._over.add(key)
        self._children.stop(key, now=now)

    def _note_over(self, key: str) -> None:
        self._over.add(key)
        self._children.note(make_record(OVER, key))
        self._tell(b"O", key.encode())

    def next_time(self) -> float | None:
        """When to look again (monotonic); None while no job runs."""
        if not self._children.by_key:
            return None
        now_ns, lease = boot_ns(), self._lease
        due_ns = lease.end_jobs_at_ns if lease.may_start(now_ns) else lease.until_ns
        return time.monotonic() + (AGAIN_S if due_ns <= now_ns else (due_ns - now_ns) / 1e9)
