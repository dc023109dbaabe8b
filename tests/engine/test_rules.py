"""The engine with and without the rules of businesses; what a row of rules may be is tested with the rooms."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from simulated import Fate, SimulatedExecutor
from simulation import Drive, make_session

from sessionrun.cluster import rules as cluster
from sessionrun.engine import moves
from sessionrun.engine.fold import apply
from sessionrun.engine.status import project
from sessionrun.landing import rules as landing
from sessionrun.model.asked import Cluster, SlotsOffered
from sessionrun.model.events import Entry, RequestReceived
from sessionrun.model.landings import WorkLanded
from sessionrun.model.spec import Check, Job, Landing, SessionSpec, TaskSpec, Workspace
from sessionrun.session.history import begin

LANDING, CLUSTER = Landing("refs/heads/main"), Cluster("tls://127.0.0.1:1")


def make_spec() -> SessionSpec:
    tree, check = Workspace("worktree"), Check(("true",))
    tasks = [
        TaskSpec("a", ("x",), workspace=tree, check=check, rounds=2),
        TaskSpec("b", ("x",), workspace=tree, needs=("a",)),
        TaskSpec("c", ("x",), retries=1),
        TaskSpec("d", ("x",), needs=("c",)),
    ]
    return make_session(tasks, resources={"slot": 2})


def fate_of(job: Job) -> Fate:
    """The first check of `a` fails, and each WORK of `c`."""
    fails = job.key.task == "c" or (job.key.phase == "check" and job.key.round == 1)
    return Fate(wait_status=256 if fails else 0)


@pytest.mark.parametrize("asked", [None, LANDING])
def test_the_engine_runs_a_session_without_rules(asked: Landing | None) -> None:
    """Also one that was asked to land, of a program without that business: then nothing lands."""
    spec = replace(make_spec(), landing=asked)
    retry = RequestReceived("r", "retry", ("c",))
    drive = Drive(spec, SimulatedExecutor(fate_of), [(99.0, retry)], state=moves.begin(spec, ())).run()
    ends = {name: (task.outcome, task.attempt, task.round) for name, task in drive.state.tasks.items()}
    assert ends == {
        "a": ("succeeded", 1, 2),
        "b": ("succeeded", 1, 1),
        "c": ("failed", 4, 1),
        "d": ("skipped", 1, 1),
    }
    assert drive.state.ended is not None and drive.state.ended.outcome == "failed"
    assert [task["landing"] for task in project(drive.state)["tasks"]] == [None] * 4
    if asked is None:  # the rules of the house have nothing to say of it
        again = begin(spec)
        for entry in drive.entries:
            apply(again, entry)
        assert again == drive.state and again.rules == ()


def test_a_session_has_the_rules_of_its_businesses() -> None:
    spec, rows = make_spec(), (landing.RULES, cluster.RULES)
    for known, rules in [
        (spec, ()),
        (replace(spec, landing=LANDING), rows[:1]),
        (replace(spec, cluster=CLUSTER), rows[1:]),
    ]:
        assert begin(known).rules == rules
    state = begin(replace(spec, landing=LANDING, cluster=CLUSTER))
    assert state.rules == rows
    assert pickle.loads(pickle.dumps(state)) == state


def test_an_event_of_a_business_that_the_session_does_not_have_is_damage() -> None:
    for event in (WorkLanded("a", "main"), SlotsOffered(1, 1)):
        with pytest.raises(KeyError, match=type(event).__name__):
            apply(begin(make_spec()), Entry(1, 0.0, 0.0, event))
