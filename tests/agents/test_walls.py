"""The real agent CLIs inside of walls: they answer, write, run a command, commit, and go on with a talk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from sessionrun.agents import table
from sessionrun.walls.trial import find_problem

from .stage import Stage

pytestmark = pytest.mark.agents

POLICIES: Final = ("project", "strict")
COMMIT: Final = "echo made > made.txt && git add made.txt && git commit -q -m inside"
AGAIN: Final = {"check": "test -e /tmp/seen || { touch /tmp/seen; echo And now beta; exit 1; }", "rounds": 2}
"""A check that passes the second time: what is /tmp inside is the attempt's."""

WITHOUT_SHELL: Final = ("aider",)
"""It has no shell tool that its model can call."""


@pytest.fixture(params=POLICIES)
def sandbox(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each policy in turn, with the model server in reach."""
    problem = find_problem(request.param, network=request.param == "project")
    if problem:
        pytest.skip(problem)
    # the variable is one of a provider that the user's settings of codex name
    return {"policy": request.param, "env": ["TEST_API_KEY"]}


def test_it_works_inside(agent: str, sandbox: dict[str, Any], stage: Stage) -> None:
    """Two at once under one home: each has its own state, so none disturbs the other."""
    asked = "Remember alpha write[[note.txt=from the tool]] answer[[the first answer]]"
    tasks: list[dict[str, Any]] = [{"id": "talks", "prompt": asked, **AGAIN}]
    if agent not in WITHOUT_SHELL:
        tasks.append({"id": "runs", "prompt": f"Go: run[[{COMMIT}]] answer[[ran]]"})
    ended = stage.play([{"agent": agent, "sandbox": sandbox, **task} for task in tasks], "--worktree")
    assert {task["outcome"] for task in ended.values()} == {"succeeded"}, ended
    assert stage.git("show", f"{ended['talks']['branch']}:note.txt") == "from the tool\n"
    assert "the first answer" in stage.file("talks", "txt").read_text()
    if table.BUILTIN[agent].continue_args:
        assert stage.server.told("Remember alpha", "the first answer", "And now beta")
    if agent not in WITHOUT_SHELL:
        assert stage.git("show", f"{ended['runs']['branch']}:made.txt") == "made\n"
        assert stage.git("log", "-1", "--format=%an %s", ended["runs"]["branch"]) == "Ann inside\n"
    kept = {name for name in list_homes() if not name.startswith((".local/share/opencode", "config/opencode"))}
    assert kept <= {".codex/config.toml", ".gemini/settings.json", ".qwen/settings.json"}, "it wrote into the home"


def list_homes() -> set[str]:
    """What is in the home directory, but for what is the session's; opencode was started outside, too."""
    home = Path(os.environ["HOME"])
    files = (path for path in home.rglob("*") if path.is_file() and home / "state" not in path.parents)
    return {str(path.relative_to(home)) for path in files}
