"""A handful of kills in the test command, a short campaign in the slow tier; `make campaign` runs the long one."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from conftest import slow_seed
from walled import need_walls

from .campaign import MODES, WALLED_MODES, print_table, run_campaign

KILLS = 200
SECONDS = 60.0

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds its victims in /proc")


@pytest.mark.slow
def test_some_kills_lose_nothing_and_run_nothing_twice() -> None:
    """One session, whose root, keeper and supervisor are killed in turn and at once."""
    figures = run_campaign(["chain"], 1, SECONDS, seed=3, at_once=1)["chain"]
    assert figures.is_good, figures.wrong
    assert figures.sessions == 1
    assert figures.kills.total() > 0


@pytest.mark.slow
def test_random_kills_lose_nothing_and_run_nothing_twice(
    say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = slow_seed()
    found = run_campaign(list(MODES), KILLS, SECONDS, seed)
    print_table(found)
    say(f"seed {seed}\n{capsys.readouterr().out}")
    assert all(figures.is_good for figures in found.values()), f"SLOW_SEED={seed} repeats this"
    assert sum(figures.sessions for figures in found.values()) >= len(MODES)


@pytest.mark.slow
def test_random_kills_lose_no_work_of_tasks_with_walls(
    say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    need_walls()
    seed = slow_seed()
    found = run_campaign(list(WALLED_MODES), 30, SECONDS, seed)
    print_table(found)
    say(f"seed {seed}\n{capsys.readouterr().out}")
    assert all(figures.is_good for figures in found.values()), f"SLOW_SEED={seed} repeats this"
    assert sum(figures.sessions for figures in found.values()) >= len(WALLED_MODES)
