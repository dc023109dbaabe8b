"""A job that begins outside and goes on inside of walls: its process becomes bubblewrap."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from sessionrun.model.frozen import frozen
from sessionrun.store.files import open_regular
from sessionrun.store.jobfiles import load_record
from sessionrun.walls.argv import REPORT_FD

REPORT: Final = "walls-report"
"""In the folder of a walled job: what `inner` reports."""

INSIDE: Final = "inside.json"
"""In the folder of such a job: an `InsideStart`."""


@frozen
class InsideStart:
    """What the process becomes: its words, all of its variables, and the file for the report of `inner`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    report: str


def go_inside(folder: Path) -> NoReturn:
    """Become bubblewrap.

    Raises:
        JobFileError, OSError: it cannot be started.
    """
    start = load_record(folder / INSIDE, InsideStart)
    fd = open_regular(start.report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, REPORT_FD)
    os.execve(start.argv[0], start.argv, dict(start.env))
