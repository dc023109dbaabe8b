"""A session of all real agents that are there is played again without any of them, and ends in the same way.

With AGENTS_EXAMPLE, a folder, the session and its repository are kept there, as examples/replay has them:

    AGENTS_EXAMPLE=examples/replay pytest -n0 --agents --basetemp /tmp/sample tests/agents/test_replay.py
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import eventually

from sessionrun.agents import table
from sessionrun.store.session import SessionDir

from .stage import Stage, find_agent

pytestmark = pytest.mark.agents

EXAMPLE: Final = os.environ.get("AGENTS_EXAMPLE")


def test_a_session_of_all_of_them_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [name for name in table.FIRST_FOUND if not find_agent(name)]
    if not there:
        pytest.skip("no agent is there")
    words = "Go: write[[{0}.txt=from {0}\n]] answer[[{0} has written]]"
    tasks = [
        {
            "id": name,
            "title": f"Ask {name}",
            "agent": name,
            "prompt": words.format(name),
            "check": f"test -e {name}.txt",
        }
        for name in there
    ]
    played = stage.play(tasks, "--worktree", "--land", "--gate", "true", "--name", "six-agents")
    assert {task["outcome"] for task in played.values()} == {"succeeded"}, played
    session = SessionDir(stage.command.directory(stage.command.sessions[-1]))
    eventually(lambda: not session.is_alive())
    bundle = stage.repository.with_name("base.bundle")
    stage.git("bundle", "create", "-q", str(bundle), "main")
    if EXAMPLE is not None:
        _keep(session, bundle, Path(EXAMPLE))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # without any of the agents
    done = stage.command("replay", session.session_id, "--speed", "50", "--repository", str(bundle), "--json")
    told: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, told["differences"]) == (0, []), done.stdout
    again = stage.command.load(
        "results", told["session_id"], "--results-dir", str(Path(told["results_dir"]).parent)
    )
    for task in again["tasks"]:
        recorded = played[task["id"]]
        assert (task["text"], task["usage"]) == (recorded["text"], recorded["usage"]), task["id"]


def _keep(session: SessionDir, bundle: Path, folder: Path) -> None:
    """Keep what a replay reads."""
    kept = folder / "results" / session.path.name
    shutil.rmtree(folder / "results", ignore_errors=True)
    names = ("wake", "lock", "*.lock", "requests", "supervisor.log", ".turns", ".clean", "a*-r*-*")
    ignored = shutil.ignore_patterns(*names)
    shutil.copytree(session.path, kept, ignore=ignored)
    shutil.copy(bundle, folder / "base.bundle")
