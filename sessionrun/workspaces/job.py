"""A PREPARE or RELEASE job as a process: ``python job.py ACTION FOLDER``.

Waits for its turn before it imports anything of weight.  Where many are started at once, each would otherwise get
its small share of the processors, and the first workspace would be ready hardly before the last.
"""

from __future__ import annotations

import fcntl
import os
import sys

TURNS = ".turns"
"""File in a session's folder of jobs; who holds the lock of one of its bytes has a turn."""


def take_turn(folder: str, turns: int) -> None:
    """Wait until fewer than `turns` workspace jobs of the session are at work; the turn ends with the process."""
    path = os.path.join(os.path.dirname(os.path.dirname(folder)), TURNS)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for turn in range(turns):
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, turn)
            return
        except OSError:
            continue
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, os.getpid() % turns)


def run() -> None:
    """Take a turn, then do what the arguments say; from what is printed in between on, the job's time counts."""
    try:
        take_turn(sys.argv[2], (os.cpu_count() or 1) + 1)
    except OSError:
        pass  # a file system without locks: all at once, then
    try:
        os.write(1, b"begun\n")
    except OSError:
        pass  # on a full disk it has no time limit
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    _work(sys.argv[1], sys.argv[2])


def _work(action: str, job: str) -> None:
    """Do that with the request in the job's folder; a failure is a line and a code.

    Of the two actions only the one that is wanted is imported.
    """
    import signal
    from pathlib import Path

    import orjson

    from sessionrun.model.errors import SessionrunError
    from sessionrun.store.files import replace_file
    from sessionrun.workspaces.git import GitError
    from sessionrun.workspaces.request import ANSWER, NEEDS_CONFLICT, NeedsConflict, load_request

    if action == "prepare":
        from sessionrun.workspaces.worktree import prepare as act
    else:
        from sessionrun.workspaces.release import release as act
    folder = Path(job)
    try:
        place = act(load_request(folder), folder)
        replace_file(folder / ANSWER, orjson.dumps(place), durable=True)
    except (SessionrunError, OSError) as error:
        if isinstance(error, GitError) and error.code == -signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)  # what killed git, for want of memory perhaps, may pass
        print(error, file=sys.stderr)
        sys.exit(NEEDS_CONFLICT if isinstance(error, NeedsConflict) else 1)


if __name__ == "__main__":
    run()
