"""Short campaigns; `make campaign` runs the long ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from conftest import slow_seed
from walled import need_walls

from .campaign import MODES, WALLED_MODES, print_table, run_campaign

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
