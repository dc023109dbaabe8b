"""The other watchers of a node: what still runs when the lease has been over for a while is killed.

The keeper ends its jobs itself.  It may be stopped, or gone and not back: then its root does this half a second
later, and after that the bridge in the cluster's worker.  Part of the keeper: standard library
alone.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

from sessionrun.runtime.keeper.lease import LeaseFile, boot_ns
from sessionrun.store import processes
from sessionrun.store.processes import Identity, Scan

IDLE_S: Final = 1.0
"""How often it looks for a new lease while the last one is over."""

AGAIN_S: Final = 0.05


class Watcher:
    """Watches one node's directory; `slack_s` is how long after the lease's end it acts."""

    def __init__(self, directory: Path, slack_s: float) -> None:
        self._file = LeaseFile(directory)
        self._node_id = directory.name.removeprefix("node-")
        self._slack_s = slack_s
        self._cleared: int | None = None

    def look(self, keeper: int = 0) -> float:
        """Kill what runs too long; returns when to look again (seconds from now).

        Args:
            keeper: the keeper of which this is the parent; 0: only what carries the node's marker is known.
        """
        lease, now_ns = self._file.read(), boot_ns()
        slack_ns = round(self._slack_s * 1e9)
        if not lease.is_over(now_ns, slack_ns):
            return (lease.until_ns + slack_ns - now_ns) / 1e9 + 0.001
        if self._cleared == lease.until_ns:
            return IDLE_S
        if keeper and _is_stopped(keeper):
            os.kill(keeper, signal.SIGKILL)  # our child, not reaped: no other process can have its pid
        if not processes.kill_as_one(lambda seen: self._find_trees(seen, keeper)):
            self._cleared = lease.until_ns
        return AGAIN_S

    def wait_for_child(self, keeper: int) -> None:
        """Return when a child of this process has ended, and watch until then."""
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            pause_s = self.look(keeper)
            if hasattr(signal, "sigtimedwait"):
                signal.sigtimedwait((signal.SIGCHLD,), pause_s)
            else:
                time.sleep(min(pause_s, AGAIN_S))

    def _find_trees(self, seen: Scan, keeper: int) -> set[Identity]:
        """The processes of all jobs: by marker, and below the keeper in a session that is not the keeper's own."""
        found: set[Identity] = set()
        for marker, pids in seen.marked.items():
            if marker.partition("/")[0] == self._node_id:
                for pid in pids:
                    found |= processes.find_tree(seen, seen.identities[pid], marker)
        return found | _find_below(seen, keeper)


def _find_below(seen: Scan, keeper: int) -> set[Identity]:
    """What is below the keeper and not of its own session, as the process in the supervisor's place is."""
    if not keeper:
        return set()
    own = set(next((pids for pids in seen.sessions.values() if keeper in pids), ()))
    return {seen.identities[pid] for pid in processes.find_descendants(seen, (keeper,)) - own}


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger (proc(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False
