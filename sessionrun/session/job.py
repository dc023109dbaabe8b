"""A job whose program is ours, as a process: ``python job.py PHASE FOLDER``.

There is one way for such a process to be asked and to answer; all phases of the table of the house use it.  The
programs of that table have files of their own.

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sessionrun.house import Phase

TURNS = ".turns"
"""File in a session's folder of jobs.  A process has a turn while it holds the lock of one byte of this file."""


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


def run(name: str, folder: str) -> int:
    """Take a turn where there are turns, then do the work; from "begun" on, the job's time counts.

    Started together, many jobs would each get a small share of the processors, and the first workspace would be
    ready hardly before the last: so they take turns before they import anything of weight.
    """
    phase = find_phase(name)  # this imports the table, and nothing else
    if phase is not None and phase.in_turn:
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
        result = answer(phase, Path(folder)) if phase is not None else find_program(name)(Path(folder))
    except (SessionrunError, OSError) as error:
        if getattr(error, "signal", None) == signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)  # git was killed, perhaps for want of memory: try again
        print(error, file=sys.stderr)
        return getattr(error, "job_code", 1)
    return 1 if getattr(result, "problem", None) else 0


def find_phase(name: str) -> Phase | None:
    """The row of a phase in the table of the house; None: this is another program."""
    from sessionrun.house import HOUSE

    return next((row for business in HOUSE for row in business.phases if row.name == name), None)


def find_program(name: str) -> Any:
    """The function of a program that is no phase's."""
    from sessionrun.house import HOUSE, load

    return next(load(work) for business in HOUSE for known, work in business.programs if known == name)


def answer(row: Phase, folder: Path) -> object:
    """Do the work of the phase as the request in the folder says, and leave the answer there.

    Raises:
        SessionrunError, OSError: the request cannot be used, or the work not be done.
    """
    from sessionrun.house import HOUSE, load
    from sessionrun.store.jobfiles import ANSWER, REQUEST, load_record, write_record

    kind, work = load(row.request), load(row.work)
    request: Any = load_record(folder / REQUEST, kind)
    known = (mark for business in HOUSE for mark in business.marks if mark.phase == row.name)
    marks = [mark for mark in known if os.path.lexists(folder / load(mark.file))]
    for mark in marks:
        if mark.before:
            load(mark.before)(request, folder)
    result = work(request, folder)
    for mark in reversed(marks):
        if mark.after:
            load(mark.after)(request, result, folder)
    write_record(folder / ANSWER, result, durable=True)
    for mark in reversed(marks):
        if mark.end:
            load(mark.end)(request, result, folder)
    return result


if __name__ == "__main__":
    gc.set_threshold(100_000)  # it soon ends
    sys.path[0] = os.path.abspath(os.path.join(__file__, *[os.pardir] * 3))
    sys.exit(run(*sys.argv[1:]))
