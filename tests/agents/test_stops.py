"""Agents that are stopped while one of their tools runs: nothing may be left of them."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually

from .stage import Stage, expect_no_process, find_processes

pytestmark = pytest.mark.agents

STARTED_S = 60


def test_nothing_is_left_after_cancel_and_after_term(agent: str, stage: Stage, tmp_path: Path) -> None:
    if agent == "aider":
        pytest.skip("aider offers its model no tools")
    token = f"token-{uuid.uuid4()}"
    names = ("cancelled", "terminated")
    prompts = [{"id": name, "agent": agent, "prompt": _ask(tmp_path / name, token)} for name in names]
    session = stage.start(prompts)
    eventually(lambda: all((tmp_path / name).exists() for name in names), timeout_s=STARTED_S)
    assert len([process for process in find_processes(session, token) if token in process.cmdline()]) == 2
    stage.command("cancel", session, "cancelled")
    pids = {task["id"]: task["pid"] for task in stage.command.status(session)["tasks"]}
    os.killpg(pids["terminated"], signal.SIGTERM)
    tasks = stage.finish(session)
    expect_no_process(session, token)
    assert tasks["cancelled"]["outcome"] == "cancelled"
    assert tasks["terminated"]["outcome"] == "failed", tasks["terminated"]


def _ask(place: Path, token: str) -> str:
    """Have the agent's own shell run something long that says when it has begun."""
    code = f"import pathlib, time; pathlib.Path({str(place)!r}).touch(); time.sleep(300)"
    command: Any = [sys.executable, "-c", code, token]
    return f"Do it: run[[{shlex.join(command)}]] slow[[200]]"
