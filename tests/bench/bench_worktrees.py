"""How long worktrees take: 32 through a session against serial `git worktree add`, and the first task's start.

With ``SESSIONRUN_BENCH_FULL`` in the environment the repository has 5,000 files instead of 500 (some minutes), and
1,000 worktrees are made by two sessions, 32 at once: none may fail.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson

from .measure import Place, Row, Spent, command, compare, end_session, interleave, make_place

FULL: Final = "SESSIONRUN_BENCH_FULL"
FILES: Final = 5000 if os.environ.get(FULL) else 500
WORKTREES: Final = 32
GOAL: Final = 0.7
GOAL_FIRST: Final = 1.5

CREATIONS: Final = 1000
GOAL_MANY: Final = 1.0
SERIAL: Final = f"git worktree add, {WORKTREES} one by one"
CASE: Final = f"run --worktree, {WORKTREES} of {FILES:,} files"
ONE: Final = "run --worktree, 1 task runs"
FIRST: Final = f"the first of {WORKTREES} tasks runs"


def measure(rounds: int = 3) -> list[Row]:
    """Measure; a round takes some ten seconds."""
    with make_place() as place:
        repository = _make_repository(place, FILES)
        cases = {
            SERIAL: _serial(place, repository, WORKTREES),
            CASE: lambda: _run(place, repository, tasks=WORKTREES, wanted=WORKTREES),
            ONE: lambda: _run(place, repository, tasks=1, wanted=1),
            FIRST: lambda: _run(place, repository, tasks=WORKTREES, wanted=1),
        }
        samples = interleave(cases, rounds)
    rows = [compare(samples, CASE, SERIAL, GOAL), compare(samples, FIRST, ONE, GOAL_FIRST)]
    return [*rows, _measure_many()] if os.environ.get(FULL) else rows


def _make_repository(place: Place, files: int) -> Path:
    repository = place.path / f"repository-{files}"
    for number in range(files):
        path = repository / f"folder-{number // 100}" / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 100)
    _git(repository, "init", "-q", "-b", "main")
    _git(repository, "add", "-A")
    _git(repository, "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "first")
    return repository


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=True)
    return done.stdout


def _serial(place: Place, repository: Path, count: int) -> Callable[[], float]:
    folder = place.path / "serial"

    def add() -> float:
        begun = time.perf_counter()
        for number in range(count):
            _git(repository, "worktree", "add", "-q", "-b", f"serial-{number}", str(folder / str(number)), "main")
        seconds = time.perf_counter() - begun
        _forget(repository, folder)
        return seconds

    return add


_NUMBERS: Final = itertools.count()


def _run(place: Place, repository: Path, *, tasks: int, wanted: int) -> float:
    """The seconds from the command to the first act of `wanted` of the tasks; then all are ended."""
    marks = place.path / f"marks-{next(_NUMBERS)}"
    marks.mkdir()
    touch = f"touch {marks}/$SESSIONRUN_TASK; sleep 600"
    plan = {"prompts": [{"id": f"t{number}", "prompt": touch} for number in range(tasks)]}
    name = place.path / "worktrees.json"
    name.write_bytes(orjson.dumps(plan))
    folder = place.path / "worktrees"
    words = ("-q", "--agent", "shell", "--worktree", "--worktree-dir", str(folder), str(name))
    begun = time.perf_counter()
    session = place.session(_start(place, repository, words))
    while sum(1 for _ in marks.iterdir()) < wanted:
        time.sleep(0.001)
    seconds = time.perf_counter() - begun
    end_session(session)
    _forget(repository, folder)
    shutil.rmtree(session.path)
    return seconds


def _measure_many() -> Row:
    """Two sessions at once, 500 worktrees each at 16 at once: all must succeed; against as many one by one."""
    with make_place() as place:
        repository = _make_repository(place, 20)
        serial = _serial(place, repository, CREATIONS)()
        plan = {"prompts": [{"id": f"t{number}", "prompt": "true"} for number in range(CREATIONS // 2)]}
        name = place.path / "many.json"
        name.write_bytes(orjson.dumps(plan))
        words = ("-q", "--agent", "shell", "--worktree", "--max-parallel", str(WORKTREES // 2), str(name))
        begun = time.perf_counter()
        ids = [_start(place, repository, words) for _ in range(2)]
        failed = sum(_wait(place, session_id) for session_id in ids)
        seconds = time.perf_counter() - begun
        case = f"{CREATIONS:,} worktrees, 2 sessions: {failed} failed"
        samples = {case: [Spent(seconds)], "one by one": [Spent(serial)]}
        return compare(samples, case, "one by one", GOAL_MANY if not failed else 0.0)


def _start(place: Place, repository: Path, words: tuple[str, ...]) -> str:
    results = ("--results-dir", str(place.path / "results"))
    argv = [*command(), *words, *results]
    done = subprocess.run(
        argv, cwd=repository, env=place.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _wait(place: Place, session_id: str) -> int:
    """Wait for the end; how many tasks failed."""
    session = place.session(session_id)
    while not ((summary := session.load_summary()) and summary["ended_at"]):
        time.sleep(0.01)
    return int(summary["failed"])


def _forget(repository: Path, folder: Path) -> None:
    """Take worktrees and branches away, so that each round finds the same repository."""
    shutil.rmtree(folder, ignore_errors=True)
    _git(repository, "worktree", "prune")
    for name in _git(repository, "for-each-ref", "--format=%(refname)", "refs/heads").split():
        if name != "refs/heads/main":
            _git(repository, "update-ref", "-d", name)


if __name__ == "__main__":
    from .measure import print_table

    print_table(measure())
