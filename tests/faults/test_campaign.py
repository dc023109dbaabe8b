"""A short campaign; `make campaign` runs the long one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import pytest
from conftest import slow_seed
from walled import need_walls

from .campaign import MODES, WALLED_MODES, Mode, print_table, run_campaign

SECONDS = 60.0

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds its victims in /proc")


@pytest.mark.slow
@pytest.mark.parametrize(("modes", "kills"), [(MODES, 200), (WALLED_MODES, 30)], ids=["plain", "walls"])
def test_random_kills_lose_nothing_and_run_nothing_twice(
    modes: Mapping[str, Mode], kills: int, say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    if modes is WALLED_MODES:
        need_walls()
    seed = slow_seed()
    found = run_campaign(list(modes), kills, SECONDS, seed)
    print_table(found)
    say(f"seed {seed}\n{capsys.readouterr().out}")
    assert all(figures.is_good for figures in found.values()), f"SLOW_SEED={seed} repeats this"
    assert sum(figures.sessions for figures in found.values()) >= len(modes)
    assert sum(figures.kills.total() for figures in found.values()) > 0
