"""Runs the tests of an instance that should pass before the work, and reads which of them did not; see `known`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sessionrun.model.hidden import HiddenTests
from sessionrun.runtime.jobs.check.junit import MAX_BYTES, read_junit
from sessionrun.runtime.jobs.check.known import CODE, JUNIT, OUTPUT, REQUEST, WALLS
from sessionrun.runtime.jobs.check.running import add_junit, find_report
from sessionrun.runtime.jobs.prove.cases import list_test_files, match_ids
from sessionrun.store.files import read_regular, replace_file
from sessionrun.store.jobfiles import load_record, load_record_if_any
from sessionrun.walls.argv import Enclosure
from sessionrun.workspaces.shell import run_script

_ADDED: Final = ("-p", "no:cacheprovider", "--continue-on-collection-errors")


def run_baseline(folder: Path) -> None:
    """Run the files of the tests that are there, in the current directory.

    Raises:
        JobFileError, OSError: the request cannot be used, or nothing can be started.
    """
    known = load_record(folder / REQUEST, HiddenTests)
    words = [name for name in list_test_files(known.pass_to_pass, ()) if os.path.exists(name)]
    if not words:
        return
    walls = load_record_if_any(folder / WALLS, Enclosure)
    if walls is None or walls.wish is None:
        _run(known, words, folder, walls)
        return
    from sessionrun.runtime.jobs.elsewhere import open_walls  # on a node of a cluster

    with open_walls(walls.wish) as walls:
        _run(known, words, folder, walls)


def _run(known: HiddenTests, words: Sequence[str], folder: Path, walls: Enclosure | None) -> None:
    junit = find_report(folder, JUNIT, walls)
    environ = add_junit(os.environ if walls is None else walls.env, junit, *_ADDED, walls=walls)
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    script = " ".join([known.command, *map(shlex.quote, words)])
    with open(folder / OUTPUT, "wb") as stream:
        ended = run_script(script, Path.cwd(), environ, stream, known.timeout_s, dies_with_us=True, walls=walls)
    if walls is not None:
        _bring_out(junit, folder / JUNIT)
    replace_file(folder / CODE, str(ended.code).encode(), durable=False)


def _bring_out(junit: Path, target: Path) -> None:
    """Copy a report to where no task can change it."""
    try:
        content = read_regular(junit, MAX_BYTES)
    except OSError:
        return
    replace_file(target, content, durable=False)


def list_red(known: HiddenTests, folder: Path) -> frozenset[str] | None:
    """The tests that did not pass; none if nothing was run; None if the command could not run any of them.

    If the command names no test, its exit code decides: with 0 it could run them.
    """
    try:
        code = read_regular(folder / CODE, 16)
    except OSError:
        return frozenset()
    tests = read_junit(folder / JUNIT)
    words = match_ids(known.pass_to_pass, () if tests is None else tests.cases)
    if not words and code != b"0":
        return None
    return frozenset(test_id for test_id, word in words.items() if word in ("failed", "error"))
