"""Processes of a cluster that die or stop at an exact moment: at a job's start, or anywhere in a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from calls import Calls, each_call, needs_calls
from clusters import SHORT, NodeUnderTest, real_cluster
from conftest import Command, eventually
from test_node import begin, nodes

__all__ = ["nodes"]

pytestmark = [
    needs_calls,
    pytest.mark.slow,
]

AROUND_A_START = (
    *(f"write:1:{do}:*/ledger: {record} " for record in "CTSXZ" for do in ("half", "after")),
    *("sync:1:kill:*/ledger", "spawn:2:kill", "spawn:2:after"),
)
"""What a keeper does when it starts its first job; the first that it spawns is its supervisor."""


def is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def test_what_a_keeper_claimed_and_did_not_spawn_is_lost_and_never_starts(
    nodes: list[NodeUnderTest], own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each step around a start.  What is said to have never run has not; nothing runs twice."""
    told = []
    for number, rule in enumerate(AROUND_A_START):
        calls, ran = Calls(own_place / "calls", f"keeper:{rule}"), own_place / f"ran-{number}"
        calls.watch(monkeypatch)
        node = begin(nodes, own_place / str(number))
        job = node.submit("t", "/bin/sh", "-c", f"echo x >> {ran}")
        node.pump(lambda job=job, node=node: job in node.ends)  # type: ignore[misc]
        end, starts = node.ends[job], ran.read_text() if ran.exists() else ""
        assert calls.has_hit() == [True] and starts in ("", "x\n"), rule
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
    Calls(own_place / "calls", "keeper:spawn:2:stop").watch(monkeypatch)
    node, ran = begin(nodes, own_place / "node", timers=SHORT), own_place / "ran"
    keeper = node.keeper()
    job = node.submit("t", "/bin/sh", "-c", f"echo x >> {ran}")
    node.pump(lambda: is_stopped(keeper))
    assert node.ledger_words(job) == "CT" and not node.jobs(job)
    node.pump(lambda: job in node.ends or job in node.dead)
    eventually(lambda: not keeper.is_running())
    node.pump(lambda: job in node.ends)
    assert node.ends[job]["kind"] != "exit" and not ran.exists()


def test_a_supervisor_that_is_killed_at_any_step_runs_nothing_twice(
    sessionrun: Command, own_place: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[str], None]
) -> None:
    """Between journal and order, between end and the word that it may be forgotten, and everywhere else."""
    with real_cluster(sessionrun, nodes=1) as cluster:
        ran = own_place / "ran"

        def run(environ: Mapping[str, str]) -> Any:
            ran.unlink(missing_ok=True)
            with monkeypatch.context() as patch:
                for name, value in environ.items():
                    if name != "CALLS_ROLE":  # the supervisor shows its own, and the launcher is not to have it
                        patch.setenv(name, value)
                session_id = sessionrun.start(
                    [{"id": "a", "prompt": f"echo x >> {ran}"}], "--cluster", cluster.address
                )
                return sessionrun.wait(session_id)["tasks"][0]

        for at, task in each_call(run, own_place / "calls", "supervisor", kind="step"):
            assert (task["outcome"], task["attempt"], ran.read_text()) == ("succeeded", 1, "x\n"), at
        say(f"a supervisor killed at each of {at} steps")
        assert at > 10
