"""Random hostile steps of one task beside honest ones; `make campaign` takes five times as many."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from conftest import slow_seed
from walled import need_walls

from .neighbours import STEPS, Seen, run_rounds

MANY = int(os.environ.get("NEIGHBOURS_COUNT") or 1000)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds its victims in /proc")


def _examine(rounds: int, seed: int, say: Callable[[str], None]) -> None:
    seen = run_rounds(rounds, seed)
    say(f"seed {seed}: {seen.rounds} rounds, {seen.files} files, {seen.kept} of them in kept worktrees")
    _judge(seen, seed, rounds)


def _judge(seen: Seen, seed: int, rounds: int) -> None:
    assert not seen.wrong, f"SLOW_SEED={seed} repeats this: " + "\n".join(seen.wrong[:10])
    assert seen.rounds >= rounds and seen.files > 0 and seen.sessions == -(-rounds // STEPS)


@pytest.mark.slow
def test_no_step_of_a_neighbour_costs_honest_work(say: Callable[[str], None]) -> None:
    _examine(4, 5, say)


@pytest.mark.slow
def test_very_many_steps_cost_no_honest_work(say: Callable[[str], None]) -> None:
    _examine(MANY, slow_seed(), say)


@pytest.mark.slow
def test_no_step_of_a_neighbour_reaches_anything_through_its_walls(say: Callable[[str], None]) -> None:
    need_walls()
    seed = slow_seed()
    seen = run_rounds(20, seed, walled=True)
    say(f"seed {seed}: {seen.rounds} rounds, {seen.files} files, {seen.kept} of them in kept worktrees")
    _judge(seen, seed, 20)
    assert seen.kept == 0
