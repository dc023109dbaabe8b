"""Runs the tests of an instance that should pass before the work, and keeps which of them did not; see `known`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import orjson

from sessionrun.model.checks import HiddenTests
from sessionrun.runtime.jobs.check.junit import read_junit
from sessionrun.runtime.jobs.check.known import OUTPUT, RED, REQUEST, WALLS, Red
from sessionrun.runtime.jobs.check.running import add_junit, find_report, judge_known, word_known
from sessionrun.runtime.jobs.inside import raise_if_any
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import load_record, load_record_if_any
from sessionrun.walls.wish import WallsWish
from sessionrun.workspaces.shell import run_script

_ADDED: Final = ("-p", "no:cacheprovider", "--continue-on-collection-errors")


def run_baseline(folder: Path) -> None:
    """Run the files of the tests that are there, in the current directory.

    Raises:
        SessionrunError, OSError: the request cannot be used, or nothing can be started.
    """
    known = load_record(folder / REQUEST, HiddenTests)
    command = word_known(known, ".")
    if command is None:
        return
    walls = raise_if_any(load_record_if_any(folder / WALLS, WallsWish))
    junit = find_report(folder, "junit-known.xml", walls)
    environ = add_junit(os.environ if walls is None else walls.env, junit, *_ADDED, walls=walls)
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with open(folder / OUTPUT, "wb") as stream:
        ended = run_script(command, Path.cwd(), environ, stream, known.timeout_s, dies_with_us=True, walls=walls)
    words, broken = judge_known(known, read_junit(junit))
    red = Red(tuple(broken) if words or ended.code == 0 else None)  # if it names no test, its exit code decides
    replace_file(folder / RED, orjson.dumps(red), durable=False)
