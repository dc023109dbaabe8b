"""A real agent calls the tools of `sessionrun mcp`: it finds them, calls one, and reads the answer."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from conftest import eventually

from .stage import MODELS, Stage

pytestmark = pytest.mark.agents


def test_claude_starts_a_session_by_a_tool(needs_claude: None, stage: Stage) -> None:
    program, *words = stage.command.argv
    config = {"mcpServers": {"sessionrun": {"command": program, "args": [*words, "mcp"]}}}
    tool = "mcp__sessionrun__start_session"
    arguments = {"prompts": ["echo made by a session > made"], "agent": "shell", "name": "by claude"}
    prompt = f"Please tool[[{tool} {json.dumps(arguments)}]] answer[[it is started]]"
    options = ["--mcp-config", json.dumps(config), "--strict-mcp-config", "--allowedTools", tool]
    done = subprocess.run(
        ["claude", "-p", "--model", MODELS["claude"], *options],
        input=prompt,
        cwd=stage.repository,
        env={**os.environ, "ENABLE_TOOL_SEARCH": "false"},  # else it offers only the names of such tools
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "it is started"), done.stdout + done.stderr
    (session_id,) = [one["session_id"] for one in stage.command.load("list")["sessions"]]
    stage.command.sessions.append(session_id)
    assert stage.server.told(session_id), "the agent was told the answer of the tool"
    eventually(lambda: stage.command.status(session_id)["ended_at"])
    assert (stage.repository / "made").read_text() == "made by a session\n"
