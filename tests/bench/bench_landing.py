"""What landing costs: 60 branches, 15 % of them red, in batches against one by one, and beside its git commands.

The repository is a clone of the one that this file is in or, without its history, one that is made.  Gate runs are
counted, not timed: how long a gate takes is the project's business.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sessionrun.landing.records import Entry, Gates, LandRequest
from sessionrun.landing.turn import land
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.repository import find_repository

from .measure import Place, Row, Spent, compare, compare_figure, interleave, make_place

BRANCHES: Final = 60
RED: Final = 9
SEED: Final = 20261122
GATE: Final = "! grep -rqs BAD landing-*.txt"
GOAL_RUNS: Final = 0.8
GOAL_MS: Final = 50.0

BATCHED: Final = f"gate runs, {BRANCHES} branches, {RED} red, in batches"
SINGLE: Final = "one by one"
OWN: Final = "landing one branch, ms beside its git commands"


def measure(rounds: int = 5) -> list[Row]:
    """Measure; a round takes some seconds."""
    with make_place() as place:
        top = _find_repository(place)
        tips = _make_branches(top)
        runs = {name: _count_runs(top, tips, batch) for name, batch in ((BATCHED, None), (SINGLE, 1))}
        samples = {name: [Spent(count / 1000)] for name, count in runs.items()}
        beside = interleave({OWN: lambda: _time_beside_git(top, tips)}, rounds)[OWN]
    own = sorted(spent.seconds for spent in beside)[len(beside) // 2]
    return [compare(samples, BATCHED, SINGLE, GOAL_RUNS), compare_figure(OWN, own * 1000, GOAL_MS)]


def _find_repository(place: Place) -> Path:
    top, here = place.path / "repository", Path(__file__).parents[2]
    if subprocess.run(["git", "clone", "-q", "--no-local", str(here), str(top)], capture_output=True).returncode:
        top.mkdir()
        _git(top, "init", "-q")
        for number in range(500):
            (top / f"file-{number}.txt").write_text(f"{number}\n" * 100)
        _git(top, "add", "-A")
        _git(top, "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "first")
    _git(top, "checkout", "-q", "--detach")
    _git(top, "branch", "-f", "main")
    _git(top, "config", "user.name", "x")
    _git(top, "config", "user.email", "x@y")
    return top


def _git(top: Path, *words: str, given: str | None = None) -> str:
    done = subprocess.run(["git", *words], cwd=top, input=given, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _make_branches(top: Path) -> Mapping[str, str]:
    """The tips of the branches, each with one file more than `main`."""
    red = set(random.Random(SEED).sample(range(BRANCHES), RED))
    lines = []
    for number in range(BRANCHES):
        text = "BAD" if number in red else "good"
        lines += [f"commit refs/heads/task-{number}", "committer x <x@y> 1767225600 +0000", "data 4", "work"]
        lines += ["from refs/heads/main^0", f"M 100644 inline landing-{number}.txt", f"data {len(text)}", text]
    _git(top, "fast-import", "--quiet", given="\n".join(lines) + "\n")
    return {f"task-{number}": _git(top, "rev-parse", f"task-{number}") for number in range(BRANCHES)}


def _ask(top: Path, target: str, tips: Mapping[str, str], **more: Any) -> LandRequest:
    _git(top, "branch", "-f", target, "main")
    base = _git(top, "rev-parse", "main")
    repository, _ = find_repository(top, base="main", worktree_dir=None, keep="never")
    return LandRequest(
        repository=repository,
        session_id="5e551011-0000-4000-8000-000000000000",
        folder=str(top.parent / "landing" / target),
        target=f"refs/heads/{target}",
        entries=tuple(Entry(task, tip, base, title=task) for task, tip in tips.items()),
        setups=(),
        **more,
    )


def _count_runs(top: Path, tips: Mapping[str, str], batch: int | None) -> int:
    report = land(_ask(top, f"batch-{batch}", tips, gates=Gates((GATE,), 60.0), batch=batch))
    landed = sum(fate.status == "landed" for fate in report.fates)
    assert landed == BRANCHES - RED, f"{landed} of {BRANCHES - RED} landed"
    return report.gate_runs


def _time_beside_git(top: Path, tips: Mapping[str, str]) -> float:
    """The seconds that the landing of one branch takes beside those that its git commands take."""
    task = next(iter(tips))
    request = _ask(top, f"alone-{time.monotonic_ns()}", {task: tips[task]}, gates=Gates((), None))
    with _timing_git() as spent:
        begun = time.perf_counter()
        report = land(request)
        seconds = time.perf_counter() - begun
    assert [fate.status for fate in report.fates] == ["landed"]
    return seconds - sum(spent)


@contextmanager
def _timing_git() -> Iterator[list[float]]:
    """Note what each git command of ours takes."""
    spent: list[float] = []
    run = Git.attempt

    def timed(self: Git, *words: Any, **more: Any) -> subprocess.CompletedProcess[bytes]:
        begun = time.perf_counter()
        try:
            return run(self, *words, **more)
        finally:
            spent.append(time.perf_counter() - begun)

    Git.attempt = timed  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        Git.attempt = run  # type: ignore[method-assign]


if __name__ == "__main__":
    from .measure import print_table

    print_table(measure())
