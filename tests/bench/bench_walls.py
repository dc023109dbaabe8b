"""What walls cost: a program that does nothing, in the walls of a real task and bare, as the keeper starts both.

The goal is at most 25 ms more; the table has it as a figure.  Processor time is no figure here: bubblewrap does
not wait for what is inside.  Whole sessions of one task each show what a view of git costs PREPARE and RELEASE.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from sessionrun.walls.trial import find_problem

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
        repo = _make_repository(place)
        return [*_measure_starts(repo), *_measure_sessions(repo)]


def _make_repository(place: Place) -> Place:
    top = place.path / "repo"
    top.mkdir()
    script = "git init -q -b main; git config user.name n; git config user.email a@b; echo a > a"
    script += "; git add a; git commit -qm a"
    subprocess.run(["sh", "-ec", script], cwd=top, env=dict(place.env), check=True)
    return Place(top, {**place.env, "SESSIONRUN_RESULTS_DIR": str(place.path / "results")})


def _measure_starts(repo: Place) -> list[Row]:
    cases: dict[str, Case] = {"true": _start(["/bin/true"])}
    cases |= {policy: _start(_find_words(repo, policy)) for policy in ("project", "strict")}
    samples = interleave(cases, ROUNDS)
    rows = []
    for policy in ("project", "strict"):
        more = 1000 * (_middle(samples[policy]) - _middle(samples["true"]))
        rows.append(compare_figure(f"a walled no-op, {policy}: more than a bare one", more, MORE_MS))
    return rows


def _find_words(repo: Place, policy: str) -> list[str]:
    """The words that start a program in the walls of a real task, which stays for that; here they start nothing.

    The task prints them: the first process inside is bubblewrap.
    """
    name = repo.write_prompts(f"../{policy}.json", ["cat /proc/1/cmdline"])
    words = ("-q", "--sync", "--agent", "shell", "--worktree", "--keep-worktree", "always", "--sandbox", policy)
    done = subprocess.run(
        [*command(), *words, name], cwd=repo.path, env=dict(repo.env), check=True, capture_output=True, text=True
    )
    (session_id,) = done.stdout.split()
    (output,) = Path(repo.env["SESSIONRUN_RESULTS_DIR"], f"session-{session_id}").glob("task-*.txt")
    bwrap, _, inside = output.read_text().rstrip("\0").partition("\0--\0")
    python, isolated, bare, inner, _, processes, stdin, proxy, *_ = inside.split("\0")
    report = "-"  # no descriptor of a keeper's is open here
    return [*bwrap.split("\0"), "--", python, isolated, bare, inner, report, processes, stdin, proxy, "/bin/true"]


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


def _measure_sessions(repo: Place) -> list[Row]:
    name = repo.write_prompts("../one.json", ["true"])
    words = (*command(), "-q", "--sync", "--agent", "shell", "--worktree")
    cases: dict[str, Case] = {
        "session of one task": repo.takes(*words, name),
        "the same, with walls": repo.takes(*words, "--sandbox", "project", name),
    }
    samples = interleave(cases, SESSIONS)
    return [compare(samples, "the same, with walls", "session of one task", 2.0)]
