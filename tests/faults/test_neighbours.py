"""Random hostile steps of one task beside honest ones; `make campaign` takes five times as many."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from conftest import slow_seed
from walled import need_walls

from .neighbours import STEPS, run_rounds

MANY = int(os.environ.get("NEIGHBOURS_COUNT") or 1000)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds its victims in /proc")


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "walled"), [(MANY, False), (20, True)], ids=["very_many", "through its walls"])
def test_no_step_of_a_neighbour_costs_honest_work(rounds: int, walled: bool, say: Callable[[str], None]) -> None:
    """With walls it reaches nothing at all."""
    if walled:
        need_walls()
    seed = slow_seed()
    seen = run_rounds(rounds, seed, walled=walled)
    say(f"seed {seed}: {seen.rounds} rounds, {seen.files} files, {seen.kept} of them in kept worktrees")
    assert not seen.wrong, f"SLOW_SEED={seed} repeats this: " + "\n".join(seen.wrong[:10])
    assert seen.rounds >= rounds and seen.files > 0 and seen.sessions == -(-rounds // STEPS)
    assert not (walled and seen.kept)
