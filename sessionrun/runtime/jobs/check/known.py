"""The tests of an instance that should pass before the work: run once in its SETUP, to know which of them do not.

Such a test shows what the environment of this machine lacks, so no round fails because of it.  They are
run (`running.run_baseline`) by a program of ours behind the user's commands, before what these left is committed.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.model.checks import HiddenTests
from sessionrun.model.errors import JobFileError
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import TaskSpec
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.walls.wish import WallsWish

PHASE: Final = "baseline"
REQUEST: Final = "known.json"
WALLS: Final = "known-walls.json"
OUTPUT: Final = "known.txt"
RED: Final = "known-red.json"


@frozen
class Red:
    """The ids of the tests that did not pass; None: the command could not run any of them."""

    ids: tuple[str, ...] | None


def name_known(task: TaskSpec) -> HiddenTests | None:
    """The tests that passed before the work, if the task has hidden ones; without the patch that brings others."""
    hidden = task.prove.hidden if task.prove is not None else None
    return None if hidden is None or task.check is None else replace(hidden, patch="", fail_to_pass=())


def ask_baseline(known: HiddenTests, folder: Path, program: str, walls: WallsWish | None = None) -> str:
    """Write what is asked into a SETUP's folder; the line of shell that does it, which never fails.

    The program is ours.  With walls it runs beside them, and the tests inside.

    Raises:
        OSError: the session directory cannot be written.
    """
    replace_file(folder / REQUEST, orjson.dumps(known), durable=False)
    if walls is not None:
        replace_file(folder / WALLS, orjson.dumps(walls), durable=False)
    return f"{shlex.join([sys.executable, program, PHASE, str(folder)])} || :"


def load_red(folder: Path) -> frozenset[str] | None:
    """The tests that did not pass; none if nothing was run; None if the command could not run any of them."""
    try:
        red = load_record_if_any(folder / RED, Red)
    except JobFileError:
        red = None  # it is not ours
    if red is None:
        return frozenset()
    return None if red.ids is None else frozenset(red.ids)
