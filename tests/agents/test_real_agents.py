"""The real agent CLIs, started with our argument lists and read by our readers, against a server on loopback.

Those that are on PATH are run; the others are skipped by name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from model_server import INPUT_TOKENS, OUTPUT_TOKENS, ModelServer

from sessionrun import agents
from sessionrun.agents import AgentResult
from sessionrun.events import JobFinished
from sessionrun.model import JobKey
from sessionrun.outcome import judge_exit

pytestmark = pytest.mark.agents

RUN_S = 90
MODELS = {
    "claude": "claude-sonnet-4-5",
    "codex": "test-model",
    "qwen": "test-model",
    "gemini": "gemini-2.5-flash",
    "opencode": "test/test-model",
    "aider": "openai/test-model",
}


@dataclass(frozen=True)
class Run:
    """One run of an agent: what it printed, how it was read and judged."""

    stdout: bytes
    result: AgentResult
    finished: JobFinished
    followed: str


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running
        running.shutdown()


@pytest.fixture(params=agents.FIRST_FOUND)
def name(request: pytest.FixtureRequest) -> str:
    agent = agents.BUILTIN[request.param]
    if agents.find_program(agent, os.environ.get("PATH")) is None:
        pytest.skip(f"{agent.argv[0]} is not on PATH")
    return agent.name


def write_settings(url: str) -> dict[str, str]:
    """Point every agent at the server, in a home of the test's own; the variables it takes for that."""
    home = Path(os.environ["HOME"])
    provider = {"name": "test", "base_url": f"{url}/v1", "env_key": "TEST_API_KEY", "wire_api": "responses"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in provider.items()]
    files = {
        ".codex/config.toml": "\n".join(
            ['model_provider = "test"', "[model_providers.test]", *lines, "request_max_retries = 0", ""]
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
        "IS_SANDBOX": "1",
        "TEST_API_KEY": "any",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": "any",
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": "any",
        "OPENCODE_CONFIG_CONTENT": json.dumps({**config, "provider": {"test": opencode}}),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def run_agent(name: str, server: ModelServer, prompt: str, folder: Path) -> Run:
    """Start an agent as a session would, wait for its end, and read and judge what came out."""
    agent = agents.BUILTIN[name]
    environ = {**os.environ, **write_settings(server.url)}
    agents.check_startable(agent, approve=True, euid=os.geteuid(), environ=environ)
    prompt_file, stdout, stderr = folder / "prompt", folder / "stdout", folder / "stderr"
    prompt_file.write_text(prompt)
    repository = folder / "repository"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    for key in ("user.name", "user.email"):
        subprocess.run(["git", "-C", str(repository), "config", key, "test"], check=True)
    argv = agents.build_argv(agent, model=MODELS[name], approve=True, prompt_file=str(prompt_file))
    source = prompt_file if agent.stdin == "prompt" else Path(os.devnull)
    with source.open("rb") as given, stdout.open("wb") as out, stderr.open("wb") as err:
        process = subprocess.Popen(
            argv, stdin=given, stdout=out, stderr=err, cwd=repository, env=environ, start_new_session=True
        )
        try:
            code = process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            pytest.fail(f"{name} did not end within {RUN_S} s: {stderr.read_text()[-500:]}")
    result = agents.read_result(agent.output, stdout, stderr)
    status = code << 8 if code >= 0 else -code
    job = JobKey("t", 1, 1, "work", 1)
    finished = judge_exit(job, wait_status=status, errno=None, detail=None, result=result)
    lines = stdout.read_bytes().splitlines(keepends=True)
    followed = "".join(agents.render_events(agent.output, line) for line in lines)
    return Run(stdout.read_bytes(), result, finished, followed)


def test_an_answer(name: str, server: ModelServer, tmp_path: Path) -> None:
    run = run_agent(name, server, "Say it: answer[[pong from the model]]", tmp_path)
    assert run.finished.verdict == "passed", run.finished.reason
    assert "pong from the model\n" in run.followed
    usage = run.finished.usage
    assert usage is not None
    if name == "aider":  # it counts by itself while it streams
        assert usage.input_tokens
        assert b"pong from the model\n" in run.stdout
        return
    assert run.result.text == "pong from the model"
    assert run.finished.conversation
    requests = 2 if name == "qwen" else 1  # qwen asks once more on the side
    assert usage.input_tokens in (INPUT_TOKENS, INPUT_TOKENS * requests)
    assert usage.output_tokens in (OUTPUT_TOKENS, OUTPUT_TOKENS * requests)


def test_a_large_prompt_arrives_unchanged(name: str, server: ModelServer, tmp_path: Path) -> None:
    line = "Umlauts äöü, 'quotes', \"quotes\", $HOME, `x`, \\n, {braces}, %s, tabs\tand more\n"
    prompt = "-x looks like an option\n" + line * 4000 + "answer[[seen]]"
    run = run_agent(name, server, prompt, tmp_path)
    assert run.finished.verdict == "passed", run.finished.reason
    assert len(prompt.encode()) > 300_000
    assert server.was_told(prompt)


@pytest.mark.parametrize("status", [400, 401])
def test_an_api_error_is_a_failure(name: str, server: ModelServer, tmp_path: Path, status: int) -> None:
    run = run_agent(name, server, f"Do it: fail[[{status}]]", tmp_path)
    assert run.finished.verdict == "failed"
    assert run.finished.reason_class in ("api_error", "agent_error", "auth"), run.finished.reason
    if status == 401:
        assert run.finished.reason_class == "auth", run.finished.reason
