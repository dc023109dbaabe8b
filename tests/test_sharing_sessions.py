"""Real sessions of one user beside each other: the account's limit that one of them met is known to all."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest
from conftest import Command, eventually
from test_limits import Quota

from sessionrun.store.index import limits_path

TRIES_FIRST = "goes first after a limit"


@pytest.fixture
def quota(sessionrun: Command) -> Quota:
    return Quota(sessionrun)


def start(quota: Quota, name: str, count: int) -> str:
    """A session whose prompts begin with its name, one task at a time."""
    tasks = [{"id": f"{name}{number}", "prompt": f"{name}{number}"} for number in range(count)]
    return quota.start(tasks, "--max-parallel", "1")


def is_held(view: dict[str, Any]) -> bool:
    return any(task["reason_class"] == "held" for task in view["tasks"])


def waits_for_canary(quota: Quota, session: str) -> bool:
    journal = (quota.sessionrun.directory(session) / "journal").read_text()
    return TRIES_FIRST in journal


def run_until_canary(quota: Quota) -> tuple[str, str, str]:
    """Two sessions, a limit that is over by now, and a canary that does not end: both, and whose the canary is."""
    (quota.folder / "shut").touch()
    quota.set_at_next_run(3)
    first = start(quota, "a", 2)
    quota.sessionrun.until(first, is_held)
    second = start(quota, "b", 2)
    eventually(lambda: len(quota.runs()) == 2)
    canary = first if quota.runs()[1][1].startswith("a") else second
    eventually(lambda: waits_for_canary(quota, second if canary == first else first))
    return first, second, canary


@pytest.mark.slow
def test_one_canary_of_both_sessions_goes_first(quota: Quota) -> None:
    first, second, _ = run_until_canary(quota)
    assert len(quota.runs()) == 2, "two canaries at the same time"
    (quota.folder / "shut").unlink()
    for session in (first, second):
        view = quota.sessionrun.wait(session)
        assert [(task["outcome"], task["attempt"]) for task in view["tasks"]] == [("succeeded", 1)] * 2
    runs, reset = quota.runs(), float((quota.folder / "until").read_text())
    assert sorted(run[1] for run in runs) == ["a0", "a0", "a1", "b0", "b1"]
    assert runs[0][1] == "a0" and all(run[0] >= reset for run in runs[1:])


@pytest.mark.slow
def test_the_other_session_goes_on_when_that_of_the_canary_is_killed(quota: Quota) -> None:
    first, second, canary = run_until_canary(quota)
    quota.sessionrun.kill_chain(canary)
    other = second if canary == first else first
    eventually(lambda: len(quota.runs()) == 3)
    assert quota.runs()[2][1].startswith("b" if other == second else "a")
    (quota.folder / "shut").unlink()
    assert quota.sessionrun.wait(other)["outcome"] == "succeeded"
    assert quota.sessionrun("resume", canary).returncode == 0
    assert quota.sessionrun.wait(canary)["ended_at"]


@pytest.mark.slow
def test_a_launch_says_that_its_provider_is_held_and_a_release_is_for_all(quota: Quota) -> None:
    quota.set(time.time() + 600)
    first = start(quota, "a", 1)
    quota.sessionrun.until(first, is_held)
    done = quota.sessionrun("--agent", "limited", "--json", stdin=json.dumps({"prompts": ["b0"]}))
    second = str(json.loads(done.stdout)["session_id"])
    quota.sessionrun.sessions.append(second)
    said = [line for line in done.stderr.splitlines() if "provider limited is held until " in line]
    assert len(said) == 1, done.stderr
    assert f"met by session {first[:8]}" in said[0] and f"sessionrun explain {second[:8]}" in said[0]
    view = quota.sessionrun.until(second, is_held)
    assert f"(met by session {first[:8]})" in view["tasks"][0]["reason"]
    assert f"met by session {first[:8]}" in quota.sessionrun("explain", second).stdout
    assert len(quota.runs()) == 1
    quota.set(0)
    assert quota.sessionrun("release", second).returncode == 0
    for session in (first, second):
        assert quota.sessionrun.wait(session)["outcome"] == "succeeded"
    assert len(quota.runs()) == 3


def test_two_accounts_of_one_agent_do_not_hold_each_other(quota: Quota) -> None:
    text = (quota.folder / "sessionrun.toml").read_text()
    program = quota.folder / "claude"
    program.write_text(f'#!/bin/sh\nexec {json.loads(text.split("argv = ")[1].splitlines()[0])[0]} "$@"\n')
    program.chmod(0o755)
    argv = json.loads(text.split("argv = ")[1].splitlines()[0])
    (quota.folder / "sessionrun.toml").write_text(
        text.replace(json.dumps(argv), json.dumps([str(program), *argv[1:]]))
    )
    quota.set(time.time() + 600)
    first = start(quota, "a", 1)
    quota.sessionrun.until(first, is_held)
    quota.set(0)
    words = ("-q", "--agent", "limited")
    done = quota.sessionrun(*words, stdin='["b0"]', env={"ANTHROPIC_API_KEY": "sk-another"})
    assert (done.returncode, done.stderr) == (0, "")
    quota.sessionrun.sessions.append(done.stdout.strip())
    assert quota.sessionrun.wait(done.stdout.strip())["outcome"] == "succeeded"
    assert is_held(quota.sessionrun.status(first))
    assert not any("sk-another" in path.read_text() for path in limits_path().iterdir())


@pytest.mark.slow
def test_hostile_files_neither_stop_nor_hang_a_session(quota: Quota) -> None:
    """FIFOs in the place of the lock and of the file: a session with a limit of its own waits, and ends."""
    quota.set_at_next_run(600)
    first = start(quota, "a", 1)
    quota.sessionrun.until(first, is_held)
    files = eventually(lambda: sorted(limits_path().glob("limited-*.json")))
    for path in (*files, limits_path() / "lock"):
        path.unlink()
        os.mkfifo(path)
    quota.set_at_next_run(2)
    second = start(quota, "b", 1)
    view = quota.sessionrun.wait(second)
    assert (view["outcome"], view["tasks"][0]["attempt"]) == ("succeeded", 1)
    log = (quota.sessionrun.directory(second) / "supervisor.log").read_text()
    assert log.count("limits are not shared with other sessions") == 1, log
    assert [run[1] for run in quota.runs()] == ["a0", "b0", "b0"]


def test_a_session_of_scripts_leaves_the_files_alone(sessionrun: Command) -> None:
    session = sessionrun.start({"prompts": ["true"]})
    sessionrun.wait(session)
    assert not limits_path().exists()
    assert limits_path().parent.exists()


@pytest.mark.slow
def test_a_supervisor_that_is_killed_does_not_lose_the_claim(quota: Quota) -> None:
    """Another one of the same session takes over: its canary is the only one as before."""
    first, second, canary = run_until_canary(quota)
    os.kill(quota.sessionrun.supervisor(canary), signal.SIGKILL)
    (quota.folder / "shut").unlink()
    for session in (first, second):
        assert quota.sessionrun.wait(session)["outcome"] == "succeeded"
    assert sorted(run[1] for run in quota.runs()) == ["a0", "a0", "a1", "b0", "b1"]
