"""What walls cost: a program that does nothing, inside and bare, as the keeper starts both.

The goal is at most 25 ms more; the table has it as a figure.  Processor time is no figure here: bubblewrap does
not wait for what is inside.  Whole sessions of one task each show what a view of git costs PREPARE and RELEASE.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from sessionrun.walls.trial import build_trial, find_problem

from .measure import Case, Place, Row, Spent, command, compare, compare_figure, interleave, make_place

MORE_MS: Final = 25.0
ROUNDS: Final = 30
SESSIONS: Final = 5


def measure() -> list[Row]:
    """Measure, where walls can be built."""
    problem = find_problem("strict", network=False)
    if problem is not None:
        print(f"walls: {problem}", file=sys.stderr)
        return []
    with make_place() as place:
        return [*_measure_starts(place), *_measure_sessions(place)]


def _measure_starts(place: Place) -> list[Row]:
    cases: dict[str, Case] = {"true": _start(["/bin/true"])}
    for policy, network in (("project", True), ("strict", False)):
        folder = place.path / policy
        folder.mkdir()
        bwrap = "/usr/bin/bwrap"
        cases[policy] = _start(build_trial(bwrap, policy, str(folder), network=network))  # type: ignore[arg-type]
    samples = interleave(cases, ROUNDS)
    rows = []
    for policy in ("project", "strict"):
        more = 1000 * (_middle(samples[policy]) - _middle(samples["true"]))
        rows.append(compare_figure(f"a walled no-op, {policy}: more than a bare one", more, MORE_MS))
    return rows


def _middle(spent: Sequence[Spent]) -> float:
    return median(one.seconds for one in spent)


def _start(argv: Sequence[str]) -> Callable[[], float]:
    def run() -> float:
        begun = time.perf_counter()
        pid = os.posix_spawn(argv[0], tuple(argv), os.environ, setsid=True)
        _, status = os.waitpid(pid, 0)
        assert status == 0, argv
        return time.perf_counter() - begun

    return run


def _measure_sessions(place: Place) -> list[Row]:
    top = place.path / "repo"
    top.mkdir()
    script = "git init -q -b main; git config user.name n; git config user.email a@b; echo a > a"
    script += "; git add a; git commit -qm a"
    subprocess.run(["sh", "-ec", script], cwd=top, env=dict(place.env), check=True)
    name = str(place.path / place.write_prompts("one.json", ["true"]))
    repo = Place(top, {**place.env, "SESSIONRUN_RESULTS_DIR": str(place.path / "results")})
    words = (*command(), "-q", "--sync", "--agent", "shell", "--worktree")
    cases: dict[str, Case] = {
        "session of one task": repo.takes(*words, name),
        "the same, with walls": repo.takes(*words, "--sandbox", "project", name),
    }
    samples = interleave(cases, SESSIONS)
    return [compare(samples, "the same, with walls", "session of one task", 2.0)]
