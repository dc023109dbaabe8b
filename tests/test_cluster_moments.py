"""Processes of a cluster that die or stop at an exact moment: at a job's start, or anywhere in a session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from clusters import SHORT, NodeUnderTest, real_cluster
from conftest import Command, eventually
from test_node import begin, nodes

__all__ = ["nodes"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]

FIRST_STEP = 18
"""A keeper that starts up takes more steps than that before its first job."""


def is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def aim(own_place: Path, patch: pytest.MonkeyPatch, role: str, step: int, what: str = "") -> Path:
    """Let the next process of a role die at a step, or do `what` else; the directory that shows that it did."""
    marks = own_place / f"marks-{step}"
    marks.mkdir()
    patch.setenv("SESSIONRUN_CRASH_AT", f"{role}:{step}{what}")
    patch.setenv("SESSIONRUN_CRASH_MARKS", str(marks))
    return marks


def test_what_a_keeper_claimed_and_did_not_spawn_is_lost_and_never_starts(
    nodes: list[NodeUnderTest], own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each step around a start.  What is said to have never run has not; nothing runs twice."""
    told = []
    for step in range(FIRST_STEP, FIRST_STEP + 10):
        marks, ran = aim(own_place, monkeypatch, "keeper", step), own_place / f"ran-{step}"
        node = begin(nodes, own_place / str(step))
        job = node.submit("t", "/bin/sh", "-c", f"echo x >> {ran}")
        node.pump(lambda job=job, node=node: job in node.ends)  # type: ignore[misc]
        end, starts = node.ends[job], ran.read_text() if ran.exists() else ""
        assert list(marks.iterdir()) and starts in ("", "x\n")
        if end["kind"] == "exit":
            assert starts == "x\n"
        else:
            assert end["verdict"] == "lost" or starts == ""
            told.append((end["verdict"], node.ledger_words(job)[:2]))
        node.close()
    assert {("void", "C"), ("lost", "CT")} <= set(told)


def test_a_keeper_that_is_stopped_before_a_spawn_beyond_its_lease_never_spawns(
    nodes: list[NodeUnderTest], own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at the lease and goes to start the job: its root kills it there when the lease is over."""
    for step in range(FIRST_STEP, FIRST_STEP + 12):
        aim(own_place, monkeypatch, "keeper", step, ":STOP")
        node, ran = begin(nodes, own_place / str(step), timers=SHORT), own_place / f"ran-{step}"
        keeper = node.keeper()
        job = node.submit("t", "/bin/sh", "-c", f"echo x >> {ran}")
        node.pump(lambda keeper=keeper, job=job, node=node: is_stopped(keeper) or job in node.ends)  # type: ignore[misc]
        if is_stopped(keeper) and node.ledger_words(job) == "CT" and not node.jobs(job):
            break
        node.close()
    else:
        pytest.fail("no step is between the look at the lease and the spawn")
    node.pump(lambda: job in node.ends or job in node.dead)
    eventually(lambda: not keeper.is_running())
    node.pump(lambda: job in node.ends)
    assert node.ends[job]["kind"] != "exit" and not ran.exists()


def test_a_supervisor_that_is_killed_at_any_step_runs_nothing_twice(
    sessionrun: Command, own_place: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """Between journal and order, between end and the word that it may be forgotten, and everywhere else."""
    with real_cluster(sessionrun, nodes=1) as cluster:
        step = 0
        while True:
            step += 1
            marks, ran = aim(own_place, monkeypatch, "supervisor", step), own_place / f"ran-{step}"
            plan = [{"id": "a", "prompt": f"echo x >> {ran}"}]
            session_id = sessionrun.start(plan, "--cluster", cluster.address)
            (task,) = sessionrun.wait(session_id)["tasks"]
            assert (task["outcome"], task["attempt"], ran.read_text()) == ("succeeded", 1, "x\n"), step
            if not list(marks.iterdir()):
                break
        say(f"a supervisor killed at each of {step - 1} steps")
        assert step > 10
