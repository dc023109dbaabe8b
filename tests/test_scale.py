"""A session of very many tasks on very many nodes: see `scale`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command, slow_seed
from scale import SESSION_ID, Fate, play

from sessionrun.engine.status import project
from sessionrun.session.history import replay
from sessionrun.store.session import SessionDir


def check(fate: Fate, shown: dict[str, object], place: Path) -> None:
    """No job twice, none lost without being called so, and the journal says the same."""
    tasks = shown["tasks"]
    assert isinstance(tasks, list)
    assert fate.violations == []
    outcomes = {task["outcome"] for task in tasks}
    assert outcomes <= {"succeeded", "lost"}
    for task in tasks:
        if task["outcome"] == "lost":
            assert "lease" in task["reason"], task
    session = SessionDir(place / "results" / f"session-{SESSION_ID}")
    state, _ = replay(session)
    assert project(state)["tasks"] == tasks


@pytest.mark.slow
def test_twenty_nodes(own_place: Path) -> None:
    figures, fate, shown = play(own_place, nodes=20, tasks=400, seed=1)
    check(fate, shown, own_place)
    assert 0 < figures["lost"] < 40


@pytest.mark.slow
def test_a_thousand_nodes_and_a_hundred_thousand_tasks(
    own_place: Path, sessionrun: Command, say: Callable[[str], None]
) -> None:
    seed = slow_seed()
    figures, fate, shown = play(own_place, nodes=1000, tasks=100_000, seed=seed)
    check(fate, shown, own_place)
    spans = {}
    for words in (("status", SESSION_ID, "--brief"), ("list",)):
        begun = time.monotonic()
        assert sessionrun(*words, real=True).returncode == 0
        spans[words[0]] = round(time.monotonic() - begun, 2)
    say(f"scale, seed {seed}: {figures}; seconds to read: {spans}")
