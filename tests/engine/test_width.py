"""How many tasks run at once, changed while a session runs: `set ID --max-parallel N`."""

from __future__ import annotations

import pytest
from conftest import Command, eventually
from simulated import Fate, SimulatedExecutor
from simulation import Drive, Planned, make_session

from sessionrun.engine.fold import apply
from sessionrun.engine.tokens import find_width_fault
from sessionrun.model.events import Entry, RequestReceived
from sessionrun.model.spec import TaskSpec
from sessionrun.session.history import begin
from sessionrun.store.requests import send_request
from sessionrun.store.session import SessionDir

WAITS = "while ! [ -e go ]; do sleep 0.05; done"


def ask(width: int, name: str = "r") -> RequestReceived:
    return RequestReceived(name, "set", max_parallel=width)


def test_what_is_no_width_is_refused(sessionrun: Command) -> None:
    session_id = sessionrun.start({"max_parallel": 3, "prompts": [WAITS]})
    session = SessionDir(sessionrun.directory(session_id))
    for value in (-1, "3", True, None):
        request_id, _ = send_request(session, {"kind": "set", "max_parallel": value})
        eventually((session.path / "requests" / f"{request_id}.refused").exists)
    (sessionrun.cwd / "go").touch()
    assert sessionrun.wait(session_id)["max_parallel"] == 3


def test_a_width_that_a_task_cannot_have_is_refused() -> None:
    state = begin(make_session([TaskSpec("b", ("x",), uses={"slot": 3})], resources={"slot": 3}))
    assert find_width_fault(state, ask(2)) == find_width_fault(state, ask(0)) == "task 'b' uses 3 of 'slot'"
    assert find_width_fault(state, ask(3)) is None


@pytest.mark.parametrize("first", [None, 1, 3])
@pytest.mark.parametrize("second", [0, 1, 2, 5])
def test_no_more_run_than_may(first: int | None, second: int) -> None:
    spec = make_session(
        [TaskSpec(f"t{num}", ("x",)) for num in range(8)], resources={"slot": first} if first else {}
    )
    planned: list[Planned] = [(0.5, ask(second)), (3.5, ask(2, "again"))]
    drive = Drive(spec, SimulatedExecutor(lambda job: Fate(duration_s=1.0)), planned)
    drive.run()
    assert drive.state.ended is not None
    assert drive.state.outcomes == {"succeeded": 8}
    running, most = 0, 0
    for entry in drive.entries:
        name = type(entry.event).__name__
        running += (name == "JobClaimed") - (name == "JobFinished")
        if name == "JobClaimed" and entry.mono >= 4.5:
            most = max(most, running)
    assert most <= 2


def test_slots_are_counted_from_what_runs() -> None:
    from sessionrun.model.events import JobClaimed
    from sessionrun.model.keys import JobKey

    state = begin(make_session([TaskSpec("a", ("x",)), TaskSpec("b", ("x",), uses={})], resources={}))
    apply(state, Entry(1, 0.0, 0.0, JobClaimed(JobKey("a", 1, 1, "work", 1))))
    apply(state, Entry(2, 0.0, 0.0, ask(3)))
    assert state.free == {"slot": 2}
    apply(state, Entry(3, 0.0, 0.0, ask(3)))
    apply(state, Entry(4, 0.0, 0.0, ask(9)))  # an id that was taken counts once
    assert (state.free, state.spec.resources) == ({"slot": 2}, {"slot": 3})
    assert find_width_fault(state, ask(1)) is None
