"""Each process dies at each of its steps, or is refused what it asks for: nothing lost, nothing twice."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from .oracle import Figures
from .points import SWEPT, random_pairs, run_points, sweep

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for what is left in /proc")

SAMPLE = (
    *(f"launcher:{step}" for step in (1, 2, 3)),
    *(f"daemon:{step}" for step in (1, 4, 7)),
    *(f"root:{step}" for step in (2, 4, 5)),
    *(f"keeper:{step}" for step in (2, 3, 6, 9, 15, 18, 20, 22, 24, 30, 33, 40)),
    *(f"supervisor:{step}" for step in (1, 3, 5, 8, 12, 20, 30, 40)),
    "keeper:4,keeper:4",
    "keeper:24,supervisor:6",
    "supervisor:12,keeper:20",
    "supervisor:12,supervisor:7",
)


def add_up(case: str, points: Sequence[str]) -> Figures:
    """What was seen in the sessions of these points."""
    total = Figures()
    for figures in run_points(case, points):
        total.add(figures or Figures())
    return total


def check(figures: Figures, kills: int) -> None:
    assert figures.is_good, "\n".join(figures.wrong)
    assert figures.kills.total() >= kills


def test_a_sample_of_all_points() -> None:
    figures = add_up("start", SAMPLE)
    check(figures, len(SAMPLE))
    assert figures.lost == 0


def test_a_sample_of_all_points_of_a_resume() -> None:
    check(add_up("resume", ["daemon:3", "root:4", "keeper:7", "keeper:12", "supervisor:4"]), 5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["start", "resume"])
@pytest.mark.parametrize("role", SWEPT)
def test_all_points(case: str, role: str) -> None:
    check(sweep(case, role), 1)


REFUSED = (
    "daemon:2:EIO",
    "root:1:EAGAIN",
    *(f"keeper:{call}:ENOSPC" for call in (1, 2, 3, 4, 6)),
    *(f"keeper:{call}:EIO" for call in (4, 7, 9)),
    "keeper:2:EMFILE",
    *(f"supervisor:{call}:EDQUOT" for call in (1, 2, 3, 6)),
    *(f"supervisor:{call}:EIO" for call in (4, 7, 12)),
)
LATE = tuple(f"supervisor:{call}:EIO" for call in (18, 20, 21))
"""A busy machine has more events for each write, and so may come to its end without these."""


def test_a_sample_of_refused_calls() -> None:
    """Whatever the system refuses once: the session goes on by itself and ends."""
    check(add_up("start", REFUSED), len(REFUSED))
    check(add_up("start", LATE), 0)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT", "EMFILE", "EINTR", "EROFS", "EAGAIN"])
def test_all_refused_calls(error: str) -> None:
    for role in ("daemon", "root", "keeper", "supervisor"):
        check(sweep("start", role, error=error), 1)


@pytest.mark.slow
def test_pairs_of_points() -> None:
    check(add_up("start", random_pairs(100, seed=20)), 100)
