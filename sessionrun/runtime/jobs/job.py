"""A job whose program is ours, as a process: ``python job.py PHASE FOLDER``.

There is one way for such a process to be asked and to answer.  PREPARE, the end of a SETUP in a worktree, CHECK,
PARK, PROVE, LAND and RELEASE use it; and WORK before which a worktree is set back: its process then becomes the
agent.

1. The supervisor writes ``request.json`` into the job's folder, and then starts the process.
2. The process reads it, does the work, and leaves ``answer.json``.  A second start does the same again.
3. Exit code 0: the answer is there and has no `problem`.  Otherwise standard error ends with the reason.

The work is a function that takes the request and the folder, and returns the answer.
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

TURNS = ".turns"
"""File in a session's folder of jobs.  A process has a turn while it holds the lock of one byte of this file."""

IN_TURN = ("prepare", "park", "release")
"""Phases whose jobs are many at once.  Started together, each would get a small share of the processors, and the
first workspace would be ready hardly before the last; so they take turns before they import anything of weight."""


_REQUEST = "workspaces.request:WorkspaceRequest"
_WORK = {
    "prepare": (_REQUEST, "workspaces.worktree:prepare"),
    "setup": ("runtime.jobs.check.request:SetupRequest", "runtime.jobs.begin:finish_setup"),
    "work": ("workspaces.request:WorkRequest", "runtime.jobs.begin:begin_work"),
    "check": ("runtime.jobs.check.request:CheckRequest", "runtime.jobs.check.check:check"),
    "park": (_REQUEST, "workspaces.release:park_work"),
    "prove": ("runtime.jobs.prove.request:ProveRequest", "runtime.jobs.prove.prove:prove"),
    "land": ("runtime.jobs.land.request:LandOrder", "runtime.jobs.land.land:land"),
    "release": (_REQUEST, "workspaces.release:release"),
}
"""Of each phase the type of its request, and the function that does the work; of others nothing is imported."""

_BESIDE = {
    "environment": "runtime.jobs.inside:make_environment",
    "inside": "runtime.jobs.inside:go_inside",
}
"""Programs with files of their own: the first part of a SETUP, and a job that goes on inside of walls."""


def take_turn(folder: str, turns: int) -> None:
    """Wait until fewer than `turns` such jobs of the session are at work; the turn ends with the process."""
    path = os.path.join(os.path.dirname(os.path.dirname(folder)), TURNS)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for turn in range(turns):
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, turn)
            return
        except OSError:
            continue
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, os.getpid() % turns)


def run(phase: str, folder: str) -> int:
    """Take a turn where there are turns, then do the work; from "begun" on, the job's time counts."""
    if phase in IN_TURN:
        try:
            take_turn(folder, (os.cpu_count() or 1) + 1)
        except OSError:
            pass  # a file system without locks: then all jobs run at once
        try:
            os.write(1, b"begun\n")
        except OSError:
            pass  # the disk is full: then the job has no time limit
    import signal

    from sessionrun.model.errors import SessionrunError

    try:
        result = _find(_BESIDE[phase])(Path(folder)) if phase in _BESIDE else answer(phase, Path(folder))
    except (SessionrunError, OSError) as error:
        if getattr(error, "signal", None) == signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)  # git was killed, perhaps for want of memory: try again
        # by the mark those who judge a walled job find why its walls could not be built
        print(f"bwrap: {error}" if phase == "inside" else error, file=sys.stderr)
        return getattr(error, "job_code", 1)
    return 1 if getattr(result, "problem", None) else 0


def answer(phase: str, folder: Path) -> object:
    """Do the work of the phase as the request in the folder says, and leave the answer there.

    Raises:
        SessionrunError, OSError: the request cannot be used, or the work not be done.
    """
    from sessionrun.store.jobfiles import load_request, write_answer

    kind, work = map(_find, _WORK[phase])
    request: Any = load_request(folder, kind)
    # on a node the repository is a replica, which is given what the task begins with, and gives what comes of it
    replica = import_module("sessionrun.workspaces.replica") if os.path.lexists(folder / "replica.json") else None
    if replica is not None and phase == "prepare":
        replica.receive(request, folder)
    if replica is not None and phase == "release":
        replica.open_release(request, folder)
    if phase == "release" and not request.worked:  # what the setup has left is no work
        request = _find("workspaces.release:settle_first")(request, folder)
    result = work(request, folder)
    if replica is not None and phase in ("park", "release"):
        replica.send(request, result, folder)
    write_answer(folder, result)
    if replica is not None and phase == "release":
        replica.close_replica(request, result, folder)
    return result


def _find(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"sessionrun.{module}"), attribute)


if __name__ == "__main__":
    gc.set_threshold(100_000)  # it soon ends
    sys.path[0] = os.path.abspath(os.path.join(__file__, *[os.pardir] * 4))
    sys.exit(run(*sys.argv[1:]))
