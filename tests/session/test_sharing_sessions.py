"""Real sessions of one user beside each other: the account's limit that one of them met is known to all."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from conftest import Command, eventually
from test_limits import Quota

from sessionrun.store.index import limits_path


@pytest.fixture
def quota(sessionrun: Command) -> Quota:
    return Quota(sessionrun)


def start(quota: Quota, name: str, count: int) -> str:
    """A session whose prompts begin with its name, one task at a time."""
    tasks = [{"id": f"{name}{number}", "prompt": f"{name}{number}"} for number in range(count)]
    return quota.start(tasks, "--max-parallel", "1")


def is_held(view: dict[str, Any]) -> bool:
    return any(task["reason_class"] == "held" for task in view["tasks"])


@pytest.mark.slow
def test_a_launch_says_that_its_provider_is_held(quota: Quota) -> None:
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
    for session in (first, second):
        assert quota.sessionrun("release", session).returncode == 0
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
    """A FIFO in the place of the file: a session with a limit of its own waits, and ends."""
    quota.set_at_next_run(600)
    first = start(quota, "a", 1)
    quota.sessionrun.until(first, is_held)
    files = eventually(lambda: sorted(limits_path().glob("limited-*.json")))
    for path in files:
        path.unlink()
        os.mkfifo(path)
    quota.set_at_next_run(2)
    second = start(quota, "b", 1)
    view = quota.sessionrun.wait(second)
    assert (view["outcome"], view["tasks"][0]["attempt"]) == ("succeeded", 1)
    assert all(path.is_file() for path in files), "what was planted is replaced"
    assert [run[1] for run in quota.runs()] == ["a0", "b0", "b0"]
