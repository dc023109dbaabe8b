"""What `dispatch` is asked for: every key of its configuration, the list it imports, what it looks at first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from test_dispatch import Dispatcher, project

from sessionrun.client.dispatching.configuration import load_configuration
from sessionrun.client.dispatching.dispatch import LIST
from sessionrun.client.dispatching.preflight import find_url, look
from sessionrun.client.dispatching.settings import Settings, settle_dispatch
from sessionrun.model.spec import AgentSpec

__all__ = ["project"]

WHOLE = {
    "_comment": "as the dispatcher before had it",
    "num_workers": 14,
    "worktree_placement": "inside",
    "worktree_prefix": "ozon-w",
    "branch": "main",
    "auto_merge_worktrees": True,
    "create_bead_on_merge_conflict": True,
    "merge_slot": True,
    "auto_retry_merge_on_conflict_close": True,
    "model": "ollama/qwen2.5-coder:7b",
    "aider_cmd": "aider",
    "repo_root": ".",
    "worker_timeout_secs": 1800,
    "worker_backend": "aider",
    "claude_cmd": "claude",
    "claude_model": "sonnet",
    "max_worker_retries": 2,
    "poll_interval_secs": 0.5,
    "bd_sync_interval_secs": 30,
    "auto_unblock_in_progress": True,
    "auto_unblock_interval_secs": 60,
    "auto_unblock_max_items": 10,
    "gates": {"lint": {"cmd": "make lint", "timeout_secs": 60}, "test": "make test"},
    "gates_parallel": False,
    "run_tests": True,
    "test_command": "pytest -q",
}


def read(place: Path, record: object) -> dict[str, Any]:
    file = place / "dispatch_config.json"
    file.write_text(json.dumps(record))
    return load_configuration(file)


def test_a_whole_configuration(tmp_path: Path) -> None:
    values = read(tmp_path, WHOLE)
    settings = Settings(**values)
    assert values["top"] == tmp_path.resolve()
    assert (settings.agent, settings.model, settings.program) == ("aider", "ollama/qwen2.5-coder:7b", ("aider",))
    assert (settings.workers, settings.retries, settings.timeout_s) == (14, 2, 1800.0)
    assert settings.gates == ("make lint", "make test", "pytest -q")
    assert settings.gate_timeout_s == 60.0
    assert (settings.poll_s, settings.sync_s, settings.take_back_s, settings.take_back_most) == (0.5, 30, 60, 10)
    assert (settings.lands, settings.mends, settings.lands_again, settings.takes_back) == (True, 3, True, True)


@pytest.mark.parametrize(
    ("record", "values"),
    [
        ({"worker_backend": "claude", "claude_model": "opus", "model": "x"}, {"agent": "claude", "model": "opus"}),
        ({"worker_backend": "codex", "model": "x"}, {"agent": "codex"}),
        ({"aider_cmd": "py -m aider"}, {"agent": "aider", "program": ("py", "-m", "aider")}),
        ({"claude_cmd": "/opt/claude"}, {}),
        ({"auto_merge_worktrees": False}, {"lands": False}),
        ({"create_bead_on_merge_conflict": False}, {"mends": 0}),
        ({"auto_retry_merge_on_conflict_close": False}, {"lands_again": False}),
        ({"auto_unblock_in_progress": False}, {"takes_back": False}),
        ({"worker_timeout_secs": 0}, {"timeout_s": 0.0}),
        ({"run_tests": False, "test_command": "make"}, {}),
        ({"test_command": "make"}, {"gates": ("make",)}),
        (
            {"gates": {"a": "x", "b": "y"}, "gates_parallel": True},
            {"gates": ("( x ) & p1=$!; ( y ) & p2=$!; r=0; wait $p1 || r=1; wait $p2 || r=1; exit $r",)},
        ),
        ({"branch": "refs/heads/work"}, {"branch": "work"}),
        ({"num_workers": None, "ingest": 5, "check": "make check"}, {"ingest": 5, "checks": ("make check",)}),
    ],
)
def test_what_a_key_means(tmp_path: Path, record: dict[str, Any], values: dict[str, Any]) -> None:
    found = read(tmp_path, record)
    found.pop("top")
    if record.get("worker_backend") == "codex":
        assert found.pop("model") == "x"
    assert found == values


def test_the_command_line_wins_over_the_file(project: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.cwd)
    below = project.cwd / "etc"
    below.mkdir()
    (below / "prompt.txt").write_text("Say: {task}")
    file = below / "dispatch_config.json"
    record = {"repo_root": "..", "num_workers": 3, "model": "ollama/x", "prompt_template": "prompt.txt"}
    file.write_text(json.dumps(record))
    settings = settle_dispatch({"workers": 2}, file)
    assert (settings.top, settings.workers, settings.agent, settings.model) == (
        project.cwd,
        2,
        "aider",
        "ollama/x",
    )
    assert settings.frame == "Say: {task}"
    assert settle_dispatch({"agent": "worker"}, file).model is None  # a model belongs to its agent
    assert (settle_dispatch({}).agent, settle_dispatch({}).model, settle_dispatch({}).workers) == (
        "aider",
        "ollama/qwen2.5-coder:7b",
        14,
    )


def refuse(project: Dispatcher, *words: str) -> str:
    done = project("dispatch", *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert not project.results.exists()
    line = done.stderr.rstrip("\n").split("\n")[-1]
    assert line.startswith("sessionrun: error: ")
    return line.removeprefix("sessionrun: error: ")


@pytest.mark.slow
def test_an_empty_queue_is_filled_from_the_list(project: Dispatcher) -> None:
    (project.cwd / LIST).write_text("# To do\n\n- echo 1 > a.txt\n- [x] false\n")
    done = project("dispatch", "--agent", "worker", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 open tasks are ready; 1 would be imported from " in done.stderr
    assert project.stand() == {}
    done = project("dispatch", "--agent", "worker", "--sync")
    assert done.returncode == 0, done.stderr
    assert "queue: task_queue.json: 1 of 1 open tasks are ready; 1 were imported from" in done.stderr
    assert project.stand() == {"task-1": "closed"}
    done = project("dispatch", "--agent", "worker", "--json")
    assert json.loads(done.stdout) == {"schema_version": 2, "session_id": None, "total": 0, "open": 0}


@pytest.mark.slow
def test_without_landing_the_work_stays_on_its_branch(project: Dispatcher) -> None:
    (project.cwd / "dispatch_config.json").write_text(
        '{"auto_merge_worktrees": false, "worker_backend": "worker"}'
    )
    project.add("echo one > one.txt")
    done = project("dispatch", "--sync")
    assert done.returncode == 0, done.stderr
    (session_id,) = [path.name.removeprefix("session-") for path in project.results.glob("session-*")]
    assert f"nothing lands by itself: sessionrun merge {session_id[:8]}" in done.stderr
    how = f"done; its work is on the branch main-task-task-1: sessionrun merge {session_id[:8]}"
    assert project.tasks()["task-1"].reason == f"{how} (session {session_id[:8]}, task task-1)"
    assert project("merge", session_id).returncode == 0
    assert (project.cwd / "one.txt").exists()


@pytest.mark.slow
def test_the_group_of_a_split_is_dispatched(project: Dispatcher) -> None:
    configuration = project.cwd / "dispatch_config.json"
    configuration.write_text('{"worker_backend": "worker", "branch": "gone"}')
    done = project("split", "echo 1; echo 2", "--no-llm", "--dispatch")
    assert done.returncode == 2
    assert "in the queue; to start them: sessionrun dispatch --group echo-1-echo-2\n" in done.stderr
    configuration.write_text('{"worker_backend": "worker"}')
    for name in ("task-1", "task-2"):
        assert project("queue", "close", name).returncode == 0
    project.add("exit 9")
    done = project("split", "echo a > a.txt; echo b > b.txt", "--no-llm", "--dispatch", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert [task["title"] for task in made["tasks"]] == ["echo a > a.txt", "echo b > b.txt"]
    project.end(made["dispatch"]["session_id"])
    stand = project.stand()
    assert [name for name, status in stand.items() if status == "open"] == ["task-3"]


# --- what is looked at first ---


class Ollama(BaseHTTPRequestHandler):
    """A server with one model."""

    def do_GET(self) -> None:
        body = json.dumps({"models": [{"name": "qwen2.5-coder:7b"}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Ollama)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


AIDER = AgentSpec("aider", ("/usr/bin/aider",))


def test_what_is_found_of_a_server(url: str) -> None:
    environ = {"OLLAMA_API_BASE": url, "OLLAMA_NUM_PARALLEL": "4"}
    found = [*look(AIDER, "ollama/qwen2.5-coder:7b", 4, environ)]
    assert [(one.what, one.level) for one in found] == [
        ("agent", "ok"),
        ("ollama", "ok"),
        ("model", "ok"),
        ("parallel", "ok"),
    ]
    found = [*look(AIDER, "ollama_chat/other", 14, environ)]
    assert found[2].text == "other is not there: fetch it with `ollama pull other`"
    assert (found[2].level, found[3].level) == ("error", "warning")
    assert found[3].text.startswith("OLLAMA_NUM_PARALLEL is 4, for 14 workers: ")
    assert [*look(AIDER, "sonnet", 14, {})] == [found[0]]


def test_a_server_that_is_down_stops_the_start(project: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    project.add("true")
    program = project.cwd.parent / "aider"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (project.cwd / "dispatch_config.json").write_text(json.dumps({"aider_cmd": str(program)}))
    problem = refuse(project)
    assert problem.startswith("ollama: no server answers at http://127.0.0.1:1 (")
    assert problem.endswith("start it with `ollama serve` (--no-ready starts all the same)")


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://localhost:11434"),
        ({"OLLAMA_HOST": "0.0.0.0"}, "http://localhost:11434"),
        ({"OLLAMA_HOST": "box:99"}, "http://box:99"),
        ({"OLLAMA_HOST": "https://box"}, "https://box:11434"),
        ({"OLLAMA_API_BASE": "http://one:1/", "OLLAMA_HOST": "two"}, "http://one:1"),
        ({"OLLAMA_HOST": "[::1]"}, "http://[::1]:11434"),
        ({"OLLAMA_HOST": "[::1]:5"}, "http://[::1]:5"),
    ],
)
def test_where_the_server_is(environ: dict[str, str], url: str) -> None:
    assert find_url(environ) == url
