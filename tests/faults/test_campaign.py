"""Short campaigns; `make campaign` runs the long ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import slow_seed
from walled import need_walls

from .campaign import MODES, WALLED_MODES, print_table, run_campaign
from .damaged import CODES, DEAR_SWEEPS, POLLS, SWEEPS, make_world, run_mutations

FOR_EVER_S = 1e9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modes", "kills", "seconds"),
    [
        ([*MODES], 200, 60.0),
        ([*WALLED_MODES], 30, 60.0),
        (["neighbours"], 1000, FOR_EVER_S),
        (["neighbours, walls"], 20, FOR_EVER_S),
    ],
    ids=["plain", "walls", "neighbours", "neighbour in walls"],
)
def test_no_kill_and_no_neighbour_costs_work_and_nothing_runs_twice(
    modes: Sequence[str],
    kills: int,
    seconds: float,
    say: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if any("walls" in mode for mode in modes):
        need_walls()
    seed = slow_seed()
    found = run_campaign(modes, kills, seconds, seed)
    print_table(found)
    say(f"seed {seed}\n{capsys.readouterr().out}")
    assert all(figures.is_good for figures in found.values()), f"SLOW_SEED={seed} repeats this"
    assert sum(figures.sessions for figures in found.values()) >= len(modes)
    assert sum(figures.kills.total() for figures in found.values()) >= (kills if seconds == FOR_EVER_S else 1)


# --- damaged files of sessions through every verb that reads: no traceback, no unknown exit code, no hang ---

FAST = 26
NOTICED = 500
"""So many find each mutant of the checks; see `test_mutants.py`."""

SLOW = int(os.environ.get("DAMAGED_COUNT") or 20_000)
"""Others each time; `make campaign` takes five times as many."""

PARTS = 4
"""So that one process of the tests does not work for an hour when the others are done."""

SEED = 10


@pytest.mark.parametrize(
    ("count", "part"),
    [
        pytest.param(FAST, None, marks=pytest.mark.check, id="fast"),
        pytest.param(NOTICED, None, marks=pytest.mark.slow, id="noticed"),
        *(
            pytest.param(SLOW // PARTS, part, marks=pytest.mark.slow, id=f"very_much-{part}")
            for part in range(PARTS)
        ),
    ],
)
def test_no_damage_makes_a_traceback(
    tmp_path: Path, count: int, part: int | None, say: Callable[[str], None]
) -> None:
    seed = SEED if part is None else slow_seed() + part
    say(f"run_mutations(world, {count}, {seed})")
    with make_world(tmp_path) as world:
        found = run_mutations(world, count, seed)
    assert found.wrong == []
    assert {code for _, code in found.codes} <= CODES
    assert {verb for verb, _ in found.codes} == {*POLLS, *SWEEPS, *DEAR_SWEEPS}
    assert {code for _, code in found.codes} >= {0, 1, 2, 3}  # some damage is told, some heals
    assert sum(found.codes.values()) >= 3 * count
