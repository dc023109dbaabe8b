"""Damaged files of sessions through every verb that reads: no traceback, no unknown exit code, no hang."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import slow, slow_seed

from .damaged import CODES, DEAR_SWEEPS, POLLS, SWEEPS, Found, make_world, run_mutations

FAST = 26
NOTICED = 500
"""So many find each mutant of the checks; see `test_mutants.py`."""

SLOW = int(os.environ.get("DAMAGED_COUNT") or 20_000)
"""Others each time; `make campaign` takes five times as many."""

PARTS = 4
"""So that one process of the tests does not work for an hour when the others are done."""

SEED = 10

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds what is left in /proc")


def check(found: Found, count: int) -> None:
    assert found.wrong == []
    assert {code for _, code in found.codes} <= CODES
    assert {verb for verb, _ in found.codes} == {*POLLS, *SWEEPS, *DEAR_SWEEPS}
    assert {code for _, code in found.codes} >= {0, 1, 2, 3}  # some damage is told, some heals
    assert sum(found.codes.values()) >= 3 * count


@pytest.mark.parametrize("count", [pytest.param(FAST, marks=pytest.mark.check), *slow(NOTICED)])
def test_no_damage_makes_a_traceback(tmp_path: Path, count: int) -> None:
    with make_world(tmp_path) as world:
        check(run_mutations(world, count, SEED), count)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_damage_of_very_much_makes_a_traceback(tmp_path: Path, part: int, say: Callable[[str], None]) -> None:
    count, seed = SLOW // PARTS, slow_seed() + part
    say(f"run_mutations(world, {count}, {seed})")
    with make_world(tmp_path) as world:
        check(run_mutations(world, count, seed), count)
