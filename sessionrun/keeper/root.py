"""The root: starts keepers, and keeps how the orphans of dead ones ended.

It writes no file, never wakes but for the death of a child, and decides nothing.  A node's root also watches the
lease, and kills what runs beyond it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.keeper.adoption import end_strays
from sessionrun.keeper.loop import QUIT_TIMEOUT_S, run_keeper
from sessionrun.keeper.wire import EXIT_REFUSED, LEASE
from sessionrun.store.processes import become_subreaper, raw_status, start_time

if TYPE_CHECKING:
    from sessionrun.keeper.lease import Watcher

MAX_RESTARTS: Final = 8
"""So many keepers may die in a row, each within `PROGRESS_S`."""

PROGRESS_S: Final = 1.0
RESTART_FIRST_S: Final = 0.02
RETRY_S: Final = 1.0
ROOT_SLACK_S: Final = 0.5
"""So long after the end of a lease the keeper has had its chance; see `cluster.ends`."""


def main() -> None:
    """``root.py SESSION LOCK_FD READY_FD SUPERVISOR_ARGV...``"""
    gc.freeze()  # what was imported lives to the end, here and in the keeper
    gc.enable()
    session, lock_fd, ready_fd = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    supervisor = sys.argv[4:]
    os.set_inheritable(lock_fd, False)
    if ready_fd >= 0:  # kept for life: a keeper that dies before it is ready must not look like a failed start
        os.set_inheritable(ready_fd, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller may have ignored it: then no code could be had
    become_subreaper()
    orphans: list[bytes] = []
    quick_deaths = 0
    while True:
        born = time.monotonic()
        status = _run_one(session, lock_fd, ready_fd, supervisor, orphans)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, EXIT_REFUSED):
            # what came to us from keepers that died, and no job's end has ended
            deadline = time.monotonic() + QUIT_TIMEOUT_S
            while os.WEXITSTATUS(status) == 0 and end_strays(session) and time.monotonic() < deadline:
                time.sleep(RESTART_FIRST_S)
            return
        quick_deaths = quick_deaths + 1 if time.monotonic() - born < PROGRESS_S else 1
        if quick_deaths > MAX_RESTARTS:
            return
        if quick_deaths > 1:
            time.sleep(RESTART_FIRST_S * 2 ** (quick_deaths - 2))


def _run_one(session: Path, lock_fd: int, ready_fd: int, supervisor: list[str], orphans: list[bytes]) -> int:
    """Start a keeper and see it to its end; return its raw wait status."""
    codes_read, codes_write = os.pipe()
    code = 1
    pid = _fork()
    if pid == 0:
        try:
            os.close(lock_fd)
            os.close(codes_write)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            code = run_keeper(session, codes_read, ready_fd, supervisor)
        finally:
            os._exit(code)
    os.close(codes_read)
    watcher: Watcher | None = None
    if os.path.lexists(session / LEASE):
        from sessionrun.keeper.lease import Watcher  # of a node; a session's root does not need it

        watcher = Watcher(session, ROOT_SLACK_S)
    try:
        _tell(codes_write, b"".join(orphans) + b"end\n")
        return _watch(pid, codes_write, orphans, watcher)
    finally:
        os.close(codes_write)


def _fork() -> int:
    """fork(2), once there is room for a process: to give up would cost the codes of all that run."""
    while True:
        try:
            return os.fork()
        except OSError:
            time.sleep(RETRY_S)


def _watch(keeper: int, codes_fd: int, orphans: list[bytes], watcher: Watcher | None) -> int:
    """Wait for the keeper's end; of every orphan that ends meanwhile tell how, before it is reaped."""
    while True:
        if watcher is not None:
            watcher.wait_for_child(keeper)
        if hasattr(os, "waitid"):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            pid, status = ended.si_pid, raw_status(ended)
        else:
            pid, status = os.waitpid(-1, 0)
        if pid != keeper:
            line = b"%d %d %d\n" % (pid, start_time(pid, zombie=True) or 0, status)
            orphans.append(line)
            _tell(codes_fd, line)
        if hasattr(os, "waitid"):
            os.waitpid(pid, 0)
        if pid == keeper:
            return status


def _tell(fd: int, lines: bytes) -> None:
    try:
        while lines:
            lines = lines[os.write(fd, lines) :]
    except BrokenPipeError:
        pass  # it is dead: the next one is told all again
