"""A job that begins outside and goes on inside of walls: its process becomes bubblewrap.

On a node of a cluster it first builds the walls, for only there it is known of what.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from sessionrun.model.frozen import frozen
from sessionrun.store.files import open_regular
from sessionrun.store.jobfiles import load_record
from sessionrun.store.processes import JOB_MARKER
from sessionrun.walls.argv import REPORT_FD, Enclosure
from sessionrun.walls.wish import WallsWish

REPORT: Final = "walls-report"
"""In the folder of a walled job: what `inner` reports."""

INSIDE: Final = "inside.json"
"""In the folder of such a job: an `InsideStart`."""


@frozen
class InsideStart:
    """What the process becomes: its words, all of its variables, and the file for the report of `inner`.

    With a `wish` the walls are still to be built: the words are then those of the program alone.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    report: str
    wish: WallsWish | None = None


def go_inside(folder: Path) -> int:
    """Become bubblewrap; where the way into the network is this process's own, wait for it instead.

    Raises:
        SessionrunError: the walls cannot be built.
        JobFileError, OSError: it cannot be started.
    """
    start = load_record(folder / INSIDE, InsideStart)
    if start.wish is None:
        _open_report(start.report)
        _become(start.argv, start.env)
    from sessionrun.runtime.jobs.elsewhere import open_walls  # nothing else needs it where the session is

    _open_report(start.report)
    with open_walls(start.wish) as walls:
        if start.wish.sandbox.network != "proxy":
            _become(walls.wrap(*start.argv), walls.env)
        return _wait_for(start, walls)


def _wait_for(start: InsideStart, walls: Enclosure) -> int:
    """Run bubblewrap as a child, and end as it does; the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)  # they are meant for the program
    argv = walls.wrap(*start.argv)
    code = subprocess.Popen(argv, env=_mark(walls.env), pass_fds=(REPORT_FD,)).wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _become(argv: tuple[str, ...], env: Mapping[str, str]) -> NoReturn:
    os.execve(argv[0], argv, _mark(env))


def _open_report(path: str) -> None:
    fd = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, REPORT_FD)
    os.set_inheritable(REPORT_FD, True)  # if it is the same, dup2 changes nothing


def _mark(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with the one by which processes of a job are found."""
    return {**env, **({JOB_MARKER: os.environ[JOB_MARKER]} if JOB_MARKER in os.environ else {})}
