"""Wall clocks jump: what is decided and how long things took is the monotonic one's; readers bear any time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from conftest import Command, eventually
from hypothesis import given
from hypothesis import strategies as st
from simulated import SimulatedExecutor
from simulation import Drive
from test_removal import left, make_older, reseal
from test_scheduler_properties import PROFILE, World, worlds

from sessionrun.engine.fold import apply
from sessionrun.engine.scheduler import Order, decide
from sessionrun.engine.status import project
from sessionrun.model.events import Entry
from sessionrun.model.spec import SessionSpec
from sessionrun.session.history import begin
from sessionrun.store.session import SessionDir

JUMPS = st.lists(st.sampled_from([0.0, 0.0, 0.0, -3600.0, 3600.0, -40 * 365 * 86400.0, 86400.0]), min_size=1)


def refold(spec: SessionSpec, entries: list[Entry]) -> tuple[list[list[Order]], Any]:
    """What would be decided after each entry, and the status at the end without its wall times."""
    state, decided = begin(spec), []
    for entry in entries:
        apply(state, entry)
        decided.append(decide(state, entry.mono))
    return decided, without_times(project(state))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if not key.endswith("_at")}
    return [without_times(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.slow
@PROFILE
@given(world=worlds(), jumps=JUMPS)
def test_a_jump_of_the_wall_clock_decides_nothing(world: World, jumps: list[float]) -> None:
    drive = Drive(world.spec, SimulatedExecutor(world.fate_of), world.planned).run()
    offset, moved = 0.0, []
    for number, entry in enumerate(drive.entries):
        offset += jumps[number % len(jumps)]
        offset = max(-50 * 365 * 86400.0, min(offset, 1000 * 365 * 86400.0))
        moved.append(replace(entry, at=entry.at + offset))
    assert refold(world.spec, moved) == refold(world.spec, drive.entries)


def test_readers_bear_times_in_the_future(sessionrun: Command) -> None:
    """The clock was set back after the session: nothing is old enough to go, and nothing fails."""
    session_id = sessionrun.start({"prompts": ["exit 3"]})
    sessionrun.wait(session_id)
    eventually(lambda: not SessionDir(sessionrun.directory(session_id)).is_alive())
    for at in ("2099-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"):
        make_older(sessionrun, session_id, at)
        for name in ("status.json", "summary"):
            path = sessionrun.directory(session_id) / name
            record = json.loads(path.read_bytes())
            path.write_bytes(reseal({**record, "started_at": "2098-12-31T00:00:00.000Z"}))
        for words in ("status", "list", "overview", "results", "explain last", "wait"):
            done = sessionrun(*words.split())
            assert (done.returncode, done.stderr) == (1 if words == "wait" else 0, ""), words
        old = at.startswith("1970")
        done = sessionrun("clean", "--older-than", "1s")
        assert done.returncode == 0
        assert left(sessionrun) == (set() if old else {session_id})
