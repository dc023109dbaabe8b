"""Each process dies at each of its steps, or is refused what it asks for: nothing lost, nothing twice."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from .oracle import Figures
from .points import SWEPT, random_pairs, run_points, sweep

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for what is left in /proc")

FAST = (
    "launcher:3",  # the spec is there, its name may not be
    "root:5",  # the keeper lives: nobody is left to start the next one
    "supervisor:10",  # JobClaimed is in the journal, the keeper knows nothing
    "keeper:15",  # T is written, nothing was spawned
    "keeper:17",  # spawned, without S
    "keeper:29",  # X is written, the job is not reaped
    "supervisor:30",  # the end of a task is in the journal, not synced
    "keeper:24,supervisor:6",
)
"""For the fast tier: of each process one death, and those after which a job may or may not have run."""

ROWS = (
    *FAST,
    "daemon:4",  # SessionStarted is written, not synced
    "keeper:2",  # it has its lock, the launcher has not been told
    "keeper:11",  # C is written, not synced
    "keeper:19",  # S is written
    "keeper:33",  # Z is written, the supervisor has not been told
    "supervisor:40",  # status.json is older than the logs
)
"""One for each row of the table of writes in ARCHITECTURE.md: each kind of thing that a death leaves."""

SAMPLE = (
    *ROWS,
    *(f"launcher:{step}" for step in (1, 2)),
    *(f"daemon:{step}" for step in (1, 7)),
    *(f"root:{step}" for step in (2, 4)),
    *(f"keeper:{step}" for step in (3, 6, 9, 18, 20, 22, 24, 30, 40)),
    *(f"supervisor:{step}" for step in (1, 3, 5, 8, 12, 20)),
    "keeper:4,keeper:4",
    "supervisor:12,keeper:20",
    "supervisor:12,supervisor:7",
)


def slow(points: Sequence[str]) -> Any:
    """A parameter of the slow tier."""
    return pytest.param(points, marks=pytest.mark.slow)


def add_up(case: str, points: Sequence[str]) -> Figures:
    """What was seen in the sessions of these points."""
    total = Figures()
    for figures in run_points(case, points):
        total.add(figures or Figures())
    return total


def check(figures: Figures, kills: int) -> None:
    assert figures.is_good, "\n".join(figures.wrong)
    assert figures.kills.total() >= kills


@pytest.mark.parametrize("points", [FAST, slow(SAMPLE)], ids=["some", "sample"])
def test_a_sample_of_all_points(points: Sequence[str]) -> None:
    figures = add_up("start", points)
    check(figures, len(points))
    assert figures.lost == 0


RESUMED = ("keeper:12", "supervisor:4")


@pytest.mark.slow
@pytest.mark.parametrize("points", [RESUMED, slow((*RESUMED, "daemon:3", "root:4", "keeper:7"))], ids=len)
def test_a_sample_of_all_points_of_a_resume(points: Sequence[str]) -> None:
    check(add_up("resume", points), len(points))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["start", "resume"])
@pytest.mark.parametrize("role", SWEPT)
def test_all_points(case: str, role: str) -> None:
    check(sweep(case, role), 1)


REFUSED = (
    "daemon:2:EIO",
    "root:1:EAGAIN",
    "keeper:3:ENOSPC",
    "keeper:7:EIO",
    "supervisor:2:EDQUOT",
    "supervisor:4:EIO",
)
MORE_REFUSED = (
    "daemon:2:EIO",
    "root:1:EAGAIN",
    *(f"keeper:{call}:ENOSPC" for call in (1, 2, 3, 4, 6)),
    *(f"keeper:{call}:EIO" for call in (4, 7, 9)),
    "keeper:2:EMFILE",
    *(f"supervisor:{call}:EDQUOT" for call in (1, 2, 3, 6)),
    *(f"supervisor:{call}:EIO" for call in (4, 7)),
)
LATE = tuple(f"supervisor:{call}:EIO" for call in (12, 18, 20, 21))
"""A busy machine has more events for each write, and so may come to its end without these."""


@pytest.mark.slow
@pytest.mark.parametrize("points", [REFUSED, slow(MORE_REFUSED)], ids=len)
def test_a_sample_of_refused_calls(points: Sequence[str]) -> None:
    """Whatever the system refuses once: the session goes on by itself and ends."""
    check(add_up("start", points), len(points))


@pytest.mark.slow
def test_late_refused_calls() -> None:
    check(add_up("start", LATE), 0)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT", "EMFILE", "EINTR", "EROFS", "EAGAIN"])
def test_all_refused_calls(error: str) -> None:
    for role in ("daemon", "root", "keeper", "supervisor"):
        check(sweep("start", role, error=error), 1)


@pytest.mark.slow
def test_pairs_of_points() -> None:
    check(add_up("start", random_pairs(100, seed=20)), 100)
