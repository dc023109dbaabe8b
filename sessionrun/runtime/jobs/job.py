"""A job whose program is ours, as a process: ``python job.py PHASE FOLDER``.

There is one way for such a process to be asked and to answer.  PREPARE, the end of a SETUP in a worktree, a CHECK
that is more than shell commands, PARK, PROVE, LAND and RELEASE use it; and WORK before which a worktree is set
back: its process then becomes the agent.

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

TURNS = ".turns"
"""File in a session's folder of jobs.  A process has a turn while it holds the lock of one byte of this file."""

IN_TURN = ("prepare", "park", "release")
"""Phases whose jobs are many at once.  Started together, each would get a small share of the processors, and the
first workspace would be ready hardly before the last; so they take turns before they import anything of weight."""


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
    if phase == "environment":
        return make_environment(folder)
    if phase == "baseline":
        return run_tests_before(folder)
    if phase == "inside":
        return go_inside(folder)
    if phase in IN_TURN:
        try:
            take_turn(folder, (os.cpu_count() or 1) + 1)
        except OSError:
            pass  # a file system without locks: then all jobs run at once
        try:
            os.write(1, b"begun\n")
        except OSError:
            pass  # the disk is full: then the job has no time limit
    return answer(phase, folder)


def answer(phase: str, folder: str) -> int:
    """Do the work of the phase as the request in the folder says, and leave the answer there; the exit code."""
    import signal

    from sessionrun.model.errors import SessionrunError
    from sessionrun.store.jobfiles import load_request, write_answer

    try:
        kind, work = _find_work(phase)
        request = load_request(Path(folder), kind)
        if phase in ("check", "prove") and getattr(request.walls, "wish", None) is not None:
            work = raise_first(work)
        is_replica = os.path.lexists(os.path.join(folder, "replica.json"))  # see `workspaces.replica`
        if is_replica and phase == "prepare":
            receive_objects(request, folder)
        if is_replica and phase == "release":
            keep_files(request, folder)
        if phase == "release" and not request.worked:
            request = tell_setup_from_work(request, folder)
        result = work(request, Path(folder))
        if is_replica and phase in ("park", "release"):
            send_objects(request, result, folder)
        write_answer(Path(folder), result)
        if is_replica and phase == "release":
            close_replica(request, result, folder)
    except (SessionrunError, OSError) as error:
        if getattr(error, "signal", None) == signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)  # git was killed, perhaps for want of memory: try again
        print(error, file=sys.stderr)
        return getattr(error, "job_code", 1)
    return 1 if getattr(result, "problem", None) else 0


def raise_first(work: Callable[[Any, Path], object]) -> Callable[[Any, Path], object]:
    """The same work on a node of a cluster, where the walls that its request wishes for are built first."""
    from sessionrun.runtime.jobs.elsewhere import open_request

    def work_inside(request: Any, folder: Path) -> object:
        with open_request(request) as complete:
            return work(complete, folder)

    return work_inside


def tell_setup_from_work(request: Any, folder: str) -> Any:
    """Of a task that ended before its work began: what its setup has left is no work."""
    from sessionrun.workspaces.settling import settle_first

    return settle_first(request, Path(folder))


def receive_objects(request: Any, folder: str) -> None:
    """On a node: see that its replica of the repository has what the task begins with."""
    from sessionrun.workspaces.replica import receive

    receive(request, Path(folder))


def keep_files(request: Any, folder: str) -> None:
    """On a node: keep files of the worktree that go home though git ignores them."""
    from sessionrun.workspaces.replica import keep_left

    keep_left(request, Path(folder))


def send_objects(request: Any, place: Any, folder: str) -> None:
    """On a node: leave the new objects of the work for the session's machine."""
    from sessionrun.workspaces.replica import send

    send(request, place, Path(folder))


def close_replica(request: Any, place: Any, folder: str) -> None:
    """On a node: what was for one task goes with its worktree."""
    from sessionrun.workspaces.replica import close_replica as close

    close(request, place, Path(folder))


def make_environment(folder: str) -> int:
    """Make the environment that a SETUP begins with, and leave a report; the exit code."""
    from sessionrun.model.errors import SessionrunError
    from sessionrun.workspaces.environments.make import make_environment as make
    from sessionrun.workspaces.environments.request import load_wish

    try:
        request = load_wish(Path(folder))
        work = make if request.walls_wish is None else raise_first(make)
        report: Any = work(request, Path(folder))
    except (SessionrunError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if report.problem is not None:
        print(f"environment: {report.problem}", file=sys.stderr)
    return 1 if report.problem else 0


def go_inside(folder: str) -> int:
    """Become the program that begins inside of walls, or wait for it; the exit code.  See `walled_end`."""
    from sessionrun.model.errors import SessionrunError
    from sessionrun.runtime.jobs.inside import go_inside as go

    try:
        return go(Path(folder))
    except (SessionrunError, OSError) as error:
        print(f"bwrap: {error}", file=sys.stderr)
        return 1


def run_tests_before(folder: str) -> int:
    """Run tests at the end of a SETUP, before the work; the exit code, which says nothing of the tests."""
    from sessionrun.model.errors import SessionrunError
    from sessionrun.runtime.jobs.check.baseline import run_baseline

    try:
        run_baseline(Path(folder))
    except (SessionrunError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _find_work(phase: str) -> tuple[type[Any], Callable[[Any, Path], object]]:
    """The type of the phase's request, and the function that does its work; imports nothing of other phases."""
    if phase == "prepare":
        from sessionrun.workspaces.request import WorkspaceRequest
        from sessionrun.workspaces.worktree import prepare

        return WorkspaceRequest, prepare
    if phase == "setup":
        from sessionrun.workspaces.request import WorkspaceRequest
        from sessionrun.workspaces.settling import settle

        return WorkspaceRequest, settle
    if phase == "park":
        from sessionrun.workspaces.release import park_work
        from sessionrun.workspaces.request import WorkspaceRequest

        return WorkspaceRequest, park_work
    if phase == "prove":
        from sessionrun.runtime.jobs.prove.prove import prove
        from sessionrun.runtime.jobs.prove.request import ProveRequest

        return ProveRequest, prove
    if phase == "release":
        from sessionrun.workspaces.release import release
        from sessionrun.workspaces.request import WorkspaceRequest

        return WorkspaceRequest, release
    if phase == "land":
        from sessionrun.runtime.jobs.land.land import land
        from sessionrun.runtime.jobs.land.request import LandOrder

        return LandOrder, land
    if phase == "work":
        from sessionrun.runtime.jobs.begin import begin_work
        from sessionrun.workspaces.request import WorkRequest

        return WorkRequest, begin_work
    from sessionrun.runtime.jobs.check.check import check
    from sessionrun.runtime.jobs.check.request import CheckRequest

    return CheckRequest, check


if __name__ == "__main__":
    gc.set_threshold(100_000)  # it soon ends
    sys.path[0] = os.path.abspath(os.path.join(__file__, *[os.pardir] * 4))
    sys.exit(run(*sys.argv[1:]))
