"""What the tests of the real agents share: a home and a repository of their own, the model server, the command.

It must not know what a test expects.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from conftest import Command, eventually, is_gone, kill_sessions
from stages import make_repository_of

from sessionrun.agents import table
from sessionrun.store.processes import JOB_MARKER

from .install import FOLDER, find_version, make_environ
from .model_server import ModelServer

MODELS: Final = {
    "claude": "claude-sonnet-4-5",
    "codex": "test-model",
    "qwen": "test-model",
    "gemini": "gemini-2.5-flash",
    "opencode": "test/test-model",
    "aider": "openai/test-model",
}
PROVIDERS: Final = ("openai/", "test/")
"""What stands before the name of the model for the agent alone; its server does not see it."""

SESSION_S: Final = 240
RECORD_TO: Final = os.environ.get("AGENTS_RECORD")
"""A folder that gets what the agents printed, as samples for tests that need no agent."""

_SETTINGS: Final = (
    *("ANTHROPIC_", "CLAUDE", "CODEX_", "OPENAI_", "QWEN_", "GEMINI_", "GOOGLE_", "OPENCODE", "AIDER_"),
    *("LITELLM_", "XDG_CACHE_", "XDG_DATA_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)
"""Variables of the user's that would lead the agents to other places, keys or servers."""


def write_settings(home: Path, url: str) -> Mapping[str, str]:
    """Point every agent at the server, in this home; the variables it takes for that."""
    provider = {"name": "test", "base_url": f"{url}/v1", "env_key": "TEST_API_KEY", "wire_api": "responses"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in provider.items()]
    files = {
        ".codex/config.toml": "\n".join(
            ['model_provider = "test"', "[model_providers.test]", *lines, "request_max_retries = 1", ""]
        ),
        ".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}',
        ".qwen/settings.json": '{"security": {"auth": {"selectedType": "openai"}}}',
    }
    for path, content in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(content)
    opencode = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "any"},
        "models": {"test-model": {}},
    }
    config = {"autoupdate": False, "share": "disabled", "small_model": "test/test-model"}
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
        "TEST_API_KEY": "any",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": "any",
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": "any",
        "OPENCODE_CONFIG_CONTENT": json.dumps({**config, "provider": {"test": opencode}}),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "AIDER_AUTO_COMMITS": "false",
    }


@dataclass
class Stage:
    """Where one test plays."""

    command: Command
    server: ModelServer
    repository: Path

    def start(self, tasks: list[dict[str, Any]], *words: str, max_parallel: int = 4) -> str:
        """Start a session, detached; the id.  Each task names its agent; the model is the one for it."""
        if any(task["agent"] == "opencode" for task in tasks):
            # of several that start at once in a new home all but one may fail: each makes the same tables
            argv = ["opencode", "session", "list"]
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        prompts = [{"model": MODELS[task["agent"]], **task} for task in tasks]
        plan = {"prompts": prompts, "max_parallel": max_parallel}
        file = self.repository.with_name("plan.json")
        file.write_text(json.dumps(plan))
        done = self.command("-q", *words, str(file))
        assert done.returncode == 0, done.stderr
        self.command.sessions.append(done.stdout.strip())
        return self.command.sessions[-1]

    def finish(self, session_id: str) -> dict[str, dict[str, Any]]:
        """Wait for the end; the tasks as `results --json` has them, by id."""
        ended = eventually(
            lambda: self.command("wait", session_id, "--timeout", "30").returncode in (0, 1), timeout_s=SESSION_S
        )
        assert ended
        results = self.command.load("results", session_id)
        tasks = {task["id"]: task for task in results["tasks"]}
        for task in tasks.values():
            self._record(session_id, task)
        return tasks

    def play(self, tasks: list[dict[str, Any]], *words: str) -> dict[str, dict[str, Any]]:
        """Start a session and wait for its end."""
        return self.finish(self.start(tasks, *words))

    def git(self, *words: str) -> str:
        argv = ["git", "-C", str(self.repository), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def file(self, task_id: str, ending: str, session_id: str | None = None) -> Path:
        """An output file of a task of the newest session."""
        return self.command.directory(session_id or self.command.sessions[-1]) / f"task-{task_id}.{ending}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        kill_sessions(self.command.results)

    def _record(self, session_id: str, task: dict[str, Any]) -> None:
        """Keep what a task printed if that is asked for."""
        if RECORD_TO is None:
            return
        folder = Path(RECORD_TO, task["agent"], find_version(task["agent"]) or "unknown")
        folder.mkdir(parents=True, exist_ok=True)
        for ending in ("raw", "err", "txt"):
            path = self.file(task["id"], ending, session_id)
            if path.exists() and path.stat().st_size and (ending != "txt" or task["agent"] == "aider"):
                (folder / f"{task['id']}.{ending}").write_bytes(self.anonymous(path.read_bytes()))

    def anonymous(self, content: bytes) -> bytes:
        """The same without this machine's paths and ports."""
        places = {str(self.repository) + "-worktrees": "/repo-worktrees", str(self.repository): "/repo"}
        places |= {
            os.environ["HOME"]: "/home/user",
            str(FOLDER): "/agents",
            self.server.url: "http://127.0.0.1:8000",
        }
        places |= {str(self.command.cwd.parent.parent): "/place", sys.executable: "python3"}
        for place, name in places.items():
            content = content.replace(place.encode(), name.encode())
        return re.sub(rb"127\.0\.0\.1:\d+", b"127.0.0.1:8000", content)


def find_agent(name: str) -> str | None:
    """Why an agent cannot be run, None if it can."""
    if shutil.which(name, path=make_environ()["PATH"]):
        return None
    return f"{name}: not installed (make agents installs it, or says why it cannot)"


def find_processes(session_id: str, token: str) -> list[psutil.Process]:
    """The living processes that bear the session's marker, or have the token in their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(JOB_MARKER, "").startswith(session_id)
            called = any(token in word for word in process.cmdline())
        except (psutil.Error, OSError):
            continue
        if (marked or called) and process.pid != os.getpid() and not is_gone(process):
            found.append(process)
    return found


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


@pytest.fixture(params=table.FIRST_FOUND)
def agent(request: pytest.FixtureRequest) -> str:
    """Each agent in turn; those that are not there are skipped with the reason."""
    name = str(request.param)
    problem = find_agent(name)
    if problem:
        pytest.skip(problem)
    return name


NEEDS_CLAUDE: Final = pytest.mark.skipif(find_agent("claude") is not None, reason=find_agent("claude") or "")
