"""Until when a node may run jobs, as each of its watchers sees it.

Times are nanoseconds of CLOCK_BOOTTIME, which also counts while the machine sleeps.  The keeper has the lease and
writes it to a file, for the other watchers: the root, and the bridge in the cluster's worker.  A lease of
another boot is over, and so are its processes.  The keeper imports this module without site-packages.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from sessionrun.store import processes
from sessionrun.store.files import open_regular

NAME: Final = "lease"
"""File in a node's directory: that it is there makes the directory a node's."""

NEVER: Final = 0


def boot_ns() -> int:
    """Now."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock)


class Lease:
    """What the keeper knows of the lease."""

    def __init__(self, until_ns: int = NEVER, grace_ns: int = 0) -> None:
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
        """Whether a job may be started now."""
        return now_ns < self.end_jobs_at_ns

    def is_over(self, now_ns: int, slack_ns: int = 0) -> bool:
        """Whether it has been over for more than that."""
        return now_ns > self.until_ns + slack_ns


class LeaseFile:
    """The file; written by the keeper alone, one line of a fixed length, so that a reader sees it whole."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
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
