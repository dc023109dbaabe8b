"""`idle_timeout` on real processes: who prints goes on, who falls silent is stopped."""

from __future__ import annotations

import json
import os
import signal

import pytest
from conftest import Command, eventually

AGENT = """[agents.streaming]
argv = ["/bin/sh", "{prompt_file}"]
stdin = "none"
prompt_kind = "script"
output = "codex"
"""
CHATTY = 'i=0; while [ $i -lt 25 ]; do echo \'{"type":"turn.started"}\' %s; sleep 0.1; i=$((i+1)); done'


@pytest.mark.slow
def test_who_prints_goes_on(sessionrun: Command) -> None:
    """Two and a half seconds of work are fine with one second of patience, whichever file they show in."""
    (sessionrun.cwd / "sessionrun.toml").write_text(AGENT)
    plan = [
        {"prompt": f'{CHATTY % where}; echo \'{{"type":"turn.completed"}}\'', "agent": agent}
        for agent in ("shell", "streaming")
        for where in ("", ">&2")
    ]
    session = sessionrun.start(plan, "--idle-timeout", "1s", "--max-parallel", "4")
    tasks = sessionrun.wait(session)["tasks"]
    assert [(task["outcome"], task["reason"]) for task in tasks] == [("succeeded", None)] * 4
    journal = (sessionrun.directory(session) / "journal").read_text().splitlines()
    for task in tasks:
        looks = sum('"OutputSeen"' in line and f'"{task["id"]}/' in line for line in journal)
        assert 1 <= looks <= task["duration_s"] + 2, "it is looked at once a second, not all the time"


@pytest.mark.parametrize("prompt", ["exec sleep 600", "echo begun; exec sleep 600"])
def test_who_falls_silent_is_stopped(sessionrun: Command, prompt: str) -> None:
    session = sessionrun.start([{"id": "a", "prompt": prompt, "idle_timeout": 0.4}])
    task = sessionrun.wait(session)["tasks"][0]
    assert (task["outcome"], task["reason_class"]) == ("timed_out", "stalled")
    assert task["reason"] == "stalled: no output for 0.4 s"
    assert task["duration_s"] >= 0.4


@pytest.mark.slow
def test_a_task_may_say_that_it_needs_its_silence(sessionrun: Command) -> None:
    (sessionrun.cwd / "sessionrun.toml").write_text('idle_timeout = "200ms"\n')
    assert "idle_timeout" in sessionrun("--agent", "shell", stdin='["true"]').stderr
    (sessionrun.cwd / "sessionrun.toml").write_text("idle_timeout = 0.3\n")
    plan = [{"id": "own", "prompt": "sleep 1", "idle_timeout": 0}, {"id": "default", "prompt": "sleep 600"}]
    session = sessionrun.start(plan)
    outcomes = {task["id"]: task["outcome"] for task in sessionrun.wait(session)["tasks"]}
    assert outcomes == {"own": "succeeded", "default": "timed_out"}
    session = sessionrun.start(["sleep 1"], "--idle-timeout", "0")
    assert sessionrun.wait(session)["outcome"] == "succeeded", "the command line beats the configuration"


@pytest.mark.slow
def test_a_new_supervisor_goes_on_watching(sessionrun: Command) -> None:
    prompt = "echo begun; touch begun; exec sleep 600"
    session = sessionrun.start([{"id": "a", "prompt": prompt, "idle_timeout": 1, "retries": 1}])
    eventually((sessionrun.cwd / "begun").exists)
    os.kill(sessionrun.supervisor(session), signal.SIGKILL)
    task = sessionrun.wait(session)["tasks"][0]
    assert (task["reason_class"], task["attempt"]) == ("stalled", 2)
    events = [
        json.loads(line[9:]) for line in (sessionrun.directory(session) / "journal").read_bytes().splitlines()
    ]
    fired = [(event["key"], event["timer"]) for event in events if event["ev"] == "TimerFired"]
    assert fired == [("a/1/1/work/1", "idle_timeout"), ("a/2/1/work/1", "idle_timeout")]


@pytest.mark.parametrize("words", ["soon", "-1", "1e400"])
def test_a_duration_that_is_none(sessionrun: Command, words: str) -> None:
    done = sessionrun("--agent", "shell", f"--idle-timeout={words}", stdin='["true"]')
    assert (done.returncode, done.stdout) == (2, "")
    assert "idle-timeout" in done.stderr
