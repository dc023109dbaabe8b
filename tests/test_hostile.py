"""Whatever lies among a session's requests, the session goes on, ends, and answers the truth."""

from __future__ import annotations

from random import Random

import orjson
from hostile import Hostile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import Fate, SimulatedExecutor
from simulation import AGENTS, Drive, Planned, make_session

from sessionrun.engine.fold import apply, begin
from sessionrun.engine.state import State
from sessionrun.engine.status import project
from sessionrun.model.events import Entry, RequestReceived, to_record
from sessionrun.model.spec import TaskSpec
from sessionrun.store.records import iterate_entries
from sessionrun.store.requests import parse_request

COUNT = 10
"""Requests of one session, in the fast tier."""


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_what_is_taken_can_be_folded_again_and_the_session_ends(random: Random) -> None:
    tasks = [TaskSpec(f"t{number}", ("x",), agent="one", needs=("t0",) * (number == 3)) for number in range(4)]
    spec = make_session(tasks, resources={"slot": 2})
    hostile = Hostile(random, [task.id for task in tasks], sorted(AGENTS))
    planned: list[Planned] = [(40.0, RequestReceived("last", "cancel", now=True))]
    for _ in range(COUNT):
        record = hostile.make()
        try:
            request = parse_request(orjson.loads(hostile.spoil(record)), str(record["request_id"]))
        except ValueError:
            continue
        planned.append((random.randrange(20), request))
    replayed = begin(spec)

    def fold_again(state: State, entry: Entry) -> None:
        (read,) = iterate_entries([orjson.dumps(to_record(entry))])
        apply(replayed, read)
        assert replayed == state

    fates = [Fate("exits", random.randrange(5), random.choice((0, 0, 256, 9))) for _ in range(3)]
    drive = Drive(spec, SimulatedExecutor(lambda job: fates[job.key.attempt % 3]), planned, fold_again)
    state = drive.run().state
    assert state.ended is not None and state.free == state.spec.resources
    assert project(state) == project(replayed)
