"""For tests only: dying, or being refused by the system, at an exact point of the work.

    SESSIONRUN_CRASH_AT=keeper:12,supervisor:3     the keeper is killed at its 12th step, the supervisor at its 3rd
    SESSIONRUN_CRASH_AT=keeper:12:STOP             the keeper is stopped at its 12th step
    SESSIONRUN_CRASH_AT=keeper:4:ENOSPC            its 4th call of the system that may fail does, with that error
    SESSIONRUN_CRASH_MARKS=DIRECTORY               where what has happened is marked, so that it happens once only

The variables are read once, when a process learns its role; without them a step is a call that does nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Final

VARIABLES: Final = ("SESSIONRUN_CRASH_AT", "SESSIONRUN_CRASH_MARKS")

_SIGKILL: Final = 9
_SIGSTOP: Final = 19 if sys.platform == "linux" else 17
_steps_left = 0
_signal = _SIGKILL
_calls_left = 0
_errno = 0
_marks = ""


def arm(role: str) -> None:
    """Become the role: launcher, daemon, root, keeper, supervisor or, of a node, link."""
    global _marks, _steps_left, _signal, _calls_left, _errno
    _steps_left = _calls_left = 0
    if VARIABLES[0] not in os.environ:
        return
    _marks = os.environ[VARIABLES[1]]
    for number, point in enumerate(os.environ[VARIABLES[0]].split(",")):
        name, count, *error = point.split(":")
        mark = os.path.join(_marks, f"{number}-{point}")
        if name != role or os.path.exists(mark):
            continue
        _marks = mark
        if error and error != ["STOP"]:
            import errno

            _calls_left, _errno = int(count), getattr(errno, error[0])
        else:
            _steps_left, _signal = int(count), _SIGSTOP if error else _SIGKILL
        return


def step() -> None:
    """A point at which a process may die, or be stopped."""
    global _steps_left
    if _steps_left:
        _steps_left -= 1
        if not _steps_left:
            _leave_mark()
            os.kill(os.getpid(), _signal)


def call() -> None:
    """Before a call of the system that may fail; also a step.

    Raises:
        OSError: for the test.
    """
    global _calls_left
    step()
    if _calls_left:
        _calls_left -= 1
        if not _calls_left:
            _leave_mark()
            raise OSError(_errno, os.strerror(_errno))


def _leave_mark() -> None:
    os.close(os.open(_marks, os.O_WRONLY | os.O_CREAT, 0o600))
