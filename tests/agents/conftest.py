"""What the tests of the real agents share, and the table of what was seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from conftest import Command
from stages import make_repository_of

from sessionrun.agents import table

from .install import AGENTS, find_version, make_environ
from .model_server import ModelServer
from .stage import Stage, find_agent, write_settings

_SETTINGS: Final = (
    *("ANTHROPIC_", "CLAUDE", "CODEX_", "OPENAI_", "QWEN_", "GEMINI_", "GOOGLE_", "OPENCODE", "AIDER_"),
    *("LITELLM_", "XDG_CACHE_", "XDG_DATA_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)
"""Variables of the user's that would lead the agents to other places, keys or servers."""

_SEEN: Final[list[str]] = []


@pytest.fixture
def stage(own_place: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A home of the test's own with all agents pointed at a server of its own, and a repository."""
    server = ModelServer()
    variables = {**write_settings(Path(os.environ["HOME"]), server.url), "PATH": make_environ()["PATH"]}
    variables["SESSIONRUN_RESULTS_DIR"] = str(own_place / "results")
    variables["TMPDIR"] = str(own_place.with_name("tmp"))
    own_place.with_name("tmp").mkdir()
    for name in [name for name in os.environ if name.upper().startswith(_SETTINGS)]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    repository = own_place / "repo"
    make_repository_of(repository, {})
    made = Stage(Command(repository, own_place / "results"), server, repository)
    yield made
    made.stop()
    for task_id, task in made.seen.items():
        head = f"{task['agent']:9} {task_id:12} {task['outcome'] or 'held':10} {task['duration_s'] or 0:6.1f} s"
        _SEEN.append(f"{head}  {task['reason'] or ''}"[:160])


@pytest.fixture(params=table.FIRST_FOUND)
def agent(request: pytest.FixtureRequest) -> str:
    """Each agent in turn; those that are not there are skipped with the reason."""
    name = str(request.param)
    problem = find_agent(name)
    if problem:
        pytest.skip(problem)
    return name


@pytest.fixture
def needs_claude() -> None:
    problem = find_agent("claude")
    if problem:
        pytest.skip(problem)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which agents there were, and what became of their tasks."""
    if not _SEEN:
        return
    terminalreporter.section("real agents")
    for name in AGENTS:
        terminalreporter.write_line(f"{name:9} {find_version(name) or find_agent(name) or 'on PATH'}")
    for line in sorted(_SEEN):
        terminalreporter.write_line(line)
