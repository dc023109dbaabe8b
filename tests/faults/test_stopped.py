"""Root or supervisor is stopped while the keeper is killed: the session goes on, and nothing runs twice."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sessionrun.store import locks
from sessionrun.store.logs import fold_ledger, read_log
from sessionrun.store.processes import Identity, is_alive, send_signal
from sessionrun.store.session import SessionDir

from .chain import Role, find_chain
from .oracle import count_executed, examine, has_ended, make_plan
from .place import Place, kill_surely, wait_until

END_S = 60.0


GATED_FROM = 8
"""Jobs that begin when so many have begun wait for the gate: none ends before its test disturbs it."""


@pytest.fixture
def gate(place: Place) -> Path:
    """The file for which jobs wait."""
    return place.path / "gate"


@pytest.fixture
def session(place: Place, gate: Path) -> SessionDir:
    """One of which a part has run; the rest waits for the gate."""
    waits = f"[ $(wc -l < '{place.executed}') -lt {GATED_FROM} ] || while ! [ -e '{gate}' ]; do sleep 0.05; done;"
    begun = place.start(make_plan(place.executed, 24, random.Random(7), more=waits), "--max-parallel", "2")
    assert wait_until(place.executed.exists, END_S)
    return begun


@contextmanager
def stopped(session: SessionDir, role: Role) -> Iterator[Identity]:
    """Who plays this role, stopped; it goes on afterwards, if it is still there."""
    found: list[Identity] = []

    def find() -> bool:
        found[:] = find_chain(session.path)[role]
        return len(found) == 1

    assert wait_until(find, END_S)
    (process,) = found
    send_signal(process, signal.SIGSTOP)
    try:
        yield process
    finally:
        send_signal(process, signal.SIGCONT)


def assert_sound(place: Place, session: SessionDir) -> None:
    """It has ended as it should; no job was lost, and none ran twice."""
    assert wait_until(lambda: has_ended(session), END_S), find_chain(session.path)
    figures = examine(session, place.executed)
    assert figures.is_good, figures.wrong
    assert figures.lost == 0


def has_no_job(session: SessionDir) -> bool:
    """Whether every job that was started is gone, with its tree."""
    jobs = fold_ledger(read_log(session.ledger_path).payloads).jobs.values()
    return all(job.gone or job.lost for job in jobs if job.tried)


@pytest.mark.slow
def test_a_stopped_root(place: Place, session: SessionDir, gate: Path) -> None:
    with stopped(session, "root"):
        kill_surely(session, "keeper")
        assert wait_until(lambda: not find_chain(session.path)["keeper"], END_S)
        assert session.held_locks()[-1] == "root.lock"
    gate.touch()
    assert_sound(place, session)


@pytest.mark.slow
def test_a_supervisor_that_goes_on(place: Place, session: SessionDir, gate: Path) -> None:
    with stopped(session, "supervisor") as first:
        old = find_chain(session.path)["keeper"]
        kill_surely(session, "keeper")
        assert wait_until(lambda: find_chain(session.path)["keeper"] not in ([], old), END_S)
    assert wait_until(lambda: not is_alive(first), END_S)
    gate.touch()
    assert_sound(place, session)


def test_the_root_tells_how_jobs_of_a_dead_keeper_ended(place: Place, gate: Path) -> None:
    """The next keeper is not their parent, so only the root can see their codes; none of them is lost."""
    plan = make_plan(place.executed, 4, random.Random(7), more=f"while ! [ -e '{gate}' ]; do sleep 0.05; done;")
    session = place.start(plan, "--max-parallel", "4")
    assert wait_until(lambda: sum(count_executed(session, place.executed).values()) == 4, END_S)
    old = find_chain(session.path)["keeper"]
    kill_surely(session, "keeper")
    assert wait_until(lambda: find_chain(session.path)["keeper"] not in ([], old), END_S)
    gate.touch()
    assert_sound(place, session)


@pytest.mark.slow
def test_a_lock_that_another_process_holds_for_a_while(place: Place, session: SessionDir, gate: Path) -> None:
    """As a reader that was stopped while it looked: it is waited for."""
    held, waiting = list[int](), list[Identity]()

    def seize() -> bool:  # the next supervisor may be faster
        kill_surely(session, "supervisor")
        held.extend(filter(None, [locks.hold(session.path / "lock", timeout_s=1.0)]))
        return bool(held)

    def find() -> bool:
        waiting.extend(find_chain(session.path)["supervisor"])
        return bool(waiting)

    assert wait_until(seize, END_S)
    gate.touch()
    assert wait_until(lambda: has_no_job(session), END_S)
    assert wait_until(find, END_S)
    assert wait_until(lambda: not is_alive(waiting[0]), END_S)
    os.close(*held)
    assert_sound(place, session)
