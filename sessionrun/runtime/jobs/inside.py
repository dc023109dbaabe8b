"""A job that begins outside and goes on inside of walls: its process builds them, and becomes bubblewrap."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import open_regular
from sessionrun.store.jobfiles import load_record
from sessionrun.store.processes import JOB_MARKER
from sessionrun.walls.argv import REPORT_FD, Enclosure
from sessionrun.walls.report import REPORT
from sessionrun.walls.wish import INSIDE, WallsWish


def go_inside(folder: Path) -> NoReturn:
    """Become bubblewrap, or the proxy that starts it; else say why not, as bubblewrap does.

    By that the end of a walled job is told from the end of walls that could not be built.
    """
    try:
        _go_inside(folder)
    except (SessionrunError, OSError) as error:
        sys.exit(f"bwrap: {error}")


def _go_inside(folder: Path) -> NoReturn:
    wish = load_record(folder / INSIDE, WallsWish)
    open_report(folder / REPORT)
    walls = raise_if_any(wish)
    assert walls is not None
    argv = walls.wrap(*wish.command)
    marker = {name: os.environ[name] for name in (JOB_MARKER,) if name in os.environ}  # processes are found by it
    os.execve(argv[0], argv, {**walls.env, **marker})


def open_report(path: Path) -> None:
    """Open the file of the report as the descriptor that `inner` is given."""
    os.dup2(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), REPORT_FD)
    os.set_inheritable(REPORT_FD, True)  # if it was the same, dup2 changes nothing


def raise_if_any(wish: WallsWish | None, *, builds: bool = False) -> Enclosure | None:
    """How the programs of a job of this process are started inside, or those that build its environment.

    Raises:
        SessionrunError, OSError: walls are wished for, and cannot be had here.
    """
    if wish is None:
        return None
    from sessionrun.runtime.jobs.raising import raise_walls  # only walled tasks need it

    return raise_walls(wish, builds=builds)
