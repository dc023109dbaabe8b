"""The lease of a node: until when it may run jobs, and the three that watch it.

The keeper starts jobs under the lease alone.  When its time is nearly up it ends them with TERM, at its end with
KILL.  It may be stopped, or gone and not back: then its root kills what still runs half a second later, and after
that what guards the node.  What the keeper finds killed when the lease is over, one of these has.

Times are nanoseconds of CLOCK_BOOTTIME, which also counts while the machine sleeps.  The keeper has the lease and
writes it to a file, for the others.  A lease of another boot is over, and so are its processes.  Part of the
keeper: standard library alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sessionrun.keeper.children import Children
from sessionrun.keeper.wire import LEASE
from sessionrun.store import processes
from sessionrun.store.files import open_regular
from sessionrun.store.logs import ACKNOWLEDGED, OVER, make_record
from sessionrun.store.processes import Identity, Scan

KEEPER_AGAIN_S: Final = 0.1
WATCHER_AGAIN_S: Final = 0.05
IDLE_S: Final = 1.0
"""How often a watcher looks for a new lease while the last one is over."""


def boot_ns() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock)


class Lease:
    """What the keeper knows of the lease."""

    def __init__(self, until_ns: int = 0, grace_ns: int = 0) -> None:
        self.until_ns = until_ns
        self.grace_ns = grace_ns

    def renew(self, until_ns: int, grace_ns: int, now_ns: int) -> bool:
        """Take a new end, which counts only before it; whether it did.  One of another cluster may be nearer."""
        if until_ns <= now_ns:
            return False
        self.until_ns, self.grace_ns = until_ns, grace_ns
        return True

    @property
    def end_jobs_at_ns(self) -> int:
        """From then on nothing is started, and what runs is ended with TERM."""
        return self.until_ns - self.grace_ns

    def may_start(self, now_ns: int) -> bool:
        return now_ns < self.end_jobs_at_ns

    def is_over(self, now_ns: int, slack_ns: int = 0) -> bool:
        return now_ns > self.until_ns + slack_ns


class LeaseFile:
    """The file; written by the keeper alone, one line of a fixed length, so that a reader sees it whole."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LEASE
        self._boot = processes.boot_id() or "-"
        self._fd = -1

    def write(self, lease: Lease) -> None:
        """Replace the line.  It needs no sync: what a power cut takes back is of another boot."""
        if self._fd < 0:
            self._fd = open_regular(self._path, os.O_RDWR | os.O_CREAT)
        os.pwrite(self._fd, b"%020d %020d %b\n" % (lease.until_ns, lease.grace_ns, self._boot.encode()), 0)

    def read(self) -> Lease:
        """What is written there; of another boot, or damaged: a lease that is over."""
        try:
            with open(open_regular(self._path), "rb") as stream:
                until, grace, boot = stream.read(200).split()
            return Lease(int(until), int(grace)) if boot.decode() == self._boot else Lease()
        except (OSError, ValueError):
            return Lease()


# --- the keeper ---


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

    def take(self, fields: list[Any]) -> None:
        """Carry out a frame that only nodes know."""
        kind = fields[0]
        if kind == "V" and self._lease.renew(fields[1], fields[2], boot_ns()):
            self._file.write(self._lease)
        elif kind == "A":
            self._children.note(make_record(ACKNOWLEDGED, fields[1]))
        elif kind == "O":
            self._end(fields[1], now=True)

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
        self._tell("O", key)

    def next_time(self) -> float | None:
        """When to look again (monotonic); None while no job runs."""
        if not self._children.by_key:
            return None
        now_ns, lease = boot_ns(), self._lease
        due_ns = lease.end_jobs_at_ns if lease.may_start(now_ns) else lease.until_ns
        return time.monotonic() + (KEEPER_AGAIN_S if due_ns <= now_ns else (due_ns - now_ns) / 1e9)


# --- root, and what guards the node ---


class Watcher:
    """Watches one node's directory; `slack_s` is how long after the lease's end it acts."""

    def __init__(self, directory: Path, slack_s: float) -> None:
        self._file = LeaseFile(directory)
        self._node_id = directory.name.removeprefix("node-")
        self._slack_s = slack_s
        self._cleared: int | None = None

    def look(self, keeper: int = 0) -> float:
        """Kill what runs too long; returns when to look again (seconds from now).

        Without the `keeper`, of which this is the parent, only what carries the node's marker is known.
        """
        lease, now_ns = self._file.read(), boot_ns()
        slack_ns = round(self._slack_s * 1e9)
        if not lease.is_over(now_ns, slack_ns):
            return (lease.until_ns + slack_ns - now_ns) / 1e9 + 0.001
        if self._cleared == lease.until_ns:
            return IDLE_S
        if keeper and processes.is_stopped(keeper, processes.start_time(keeper) or 0):
            os.kill(keeper, signal.SIGKILL)  # our child, not reaped: no other process can have its pid
        if not processes.kill_as_one(lambda seen: self._find_trees(seen, keeper)):
            self._cleared = lease.until_ns
        return WATCHER_AGAIN_S

    def wait_for_child(self, keeper: int) -> None:
        """Return when a child of this process has ended, and watch until then."""
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            pause_s = self.look(keeper)
            if hasattr(signal, "sigtimedwait"):
                signal.sigtimedwait((signal.SIGCHLD,), pause_s)
            else:
                time.sleep(min(pause_s, WATCHER_AGAIN_S))

    def _find_trees(self, seen: Scan, keeper: int) -> set[Identity]:
        """The processes of all jobs: by marker, and below the keeper in a session that is not the keeper's own."""
        found: set[Identity] = set()
        for marker, pids in seen.marked.items():
            if marker.partition("/")[0] == self._node_id:
                for pid in pids:
                    found |= processes.find_tree(seen, seen.identities[pid], marker)
        if keeper:  # the process in the supervisor's place is of the keeper's own session
            own = set(next((pids for pids in seen.sessions.values() if keeper in pids), ()))
            found |= {seen.identities[pid] for pid in processes.find_descendants(seen, (keeper,)) - own}
        return found
