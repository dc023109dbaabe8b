"""Runs one script, and ends all that it started when it ends, or when the process that began this one does.

It is begun by its file, without site-packages.  A daemon comes to this process when its parent ends, whatever its
session and its variables are: this is a subreaper (prctl(2)).  A PID namespace would do the same, but in it no
program of a gate could become another user, and bubblewrap is not everywhere.

Its standard input is a pipe that the parent never writes to, so that it ends when the parent is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from glob import glob

SET_CHILD_SUBREAPER = 36


def main(shell: str, script: str) -> None:
    """Run the script, and end as it does."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A script may end its group, and this process has to tell how it ended; there is no other thread yet.
    with subprocess.Popen(
        [shell, "-ec", script],
        stdin=subprocess.DEVNULL,
        preexec_fn=os.setpgrp,  # noqa: PLW1509
    ) as process:
        threading.Thread(target=_end_with_parent, args=(process,), daemon=True).start()
        code = process.wait()
    # Also where it was killed, for the parent has ended.  The children of what is killed come to this process, so
    # it looks until it has none.  None is reaped meanwhile: no pid is another's.
    while any(_kill(pid) for pid in _list_children()):
        os.waitpid(-1, 0)
    if code < 0:
        with suppress(OSError):  # nothing changes what SIGKILL does
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_with_parent(process: subprocess.Popen[bytes]) -> None:
    os.read(0, 1)
    process.kill()


def _list_children() -> list[int]:
    found = []
    for path in glob("/proc/self/task/*/children"):
        with open(path, encoding="ascii") as stream:
            found += [int(word) for word in stream.read().split()]
    return found


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:  # it has become another user's
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
