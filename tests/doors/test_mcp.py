"""Sessions as tools for an agent: what each tool answers, how much, and the same over the protocol."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from conftest import Command, eventually
from stages import make_repository_of
from test_terse import names_of

from sessionrun.doors.mcp import MAX_BYTES, Tools
from sessionrun.model.errors import InputError

FAILING = (7, 11, 23, 31, 50)


def test_a_session_from_its_start_to_its_results(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sessionrun.cwd)
    tools = Tools()
    prompts = ["echo hello", "while ! [ -e go ]; do sleep 0.02; done; echo why >&2; exit 3"]
    started = tools.start_session(tuple(prompts), agent="shell", name="by tools", max_parallel=1)
    session_id = started["session_id"]
    sessionrun.sessions.append(session_id)
    assert (started["total"], started["max_parallel"], started["agent"]) == (2, 1, "shell")
    first = tools.wait(session_id, timeout_s=60, until="any")
    assert (len(first["tasks"]), first["timed_out"]) == (1, False)
    (sessionrun.cwd / "go").touch()
    failed = tools.wait("by tools", timeout_s=60, until="failed", since=first["cursor"])
    assert [task["reason"] for task in failed["tasks"]] == ["exit_code: exit code 3"]
    whole = tools.wait(session_id[:8], timeout_s=60)
    assert (whole["outcome"], whole["failed"], len(whole["tasks"]), whole["timed_out"]) == ("failed", 1, 1, False)
    assert names_of(tools.status(session_id)) == names_of(whole) == names_of(tools.status(since=first["cursor"]))
    assert [task["text"] for task in tools.results()["tasks"]] == ["hello\n", ""]
    assert [task["stderr_text"] for task in tools.results(failed=True)["tasks"]] == ["why\n"]
    assert [one["name"] for one in tools.list()["sessions"]] == ["by tools"]
    assert tools.cancel(session_id)["taken"]
    assert names_of(tools.retry(session_id)) == names_of(whole)
    eventually(lambda: tools.status(session_id)["status"] == "completed")


def test_an_answer_is_small_whatever_happened(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [{"id": f"{'x' * 90}-{num}", "prompt": "exit 3"} for num in range(60)]
    session_id = sessionrun.finished(many)
    monkeypatch.chdir(sessionrun.cwd)
    tools = Tools()
    for record in (tools.status(session_id), tools.wait(session_id, timeout_s=0), tools.status(session_id, 0)):
        assert len(json.dumps(record, separators=(",", ":"))) <= MAX_BYTES
        assert record["failed"] == 60 == len(record["tasks"]) + record["more"]
    results = tools.results(session_id, max_bytes=2000)
    assert len(json.dumps(results, separators=(",", ":"))) <= 2000
    assert results["more_failed_numbers"]


def test_what_a_tool_refuses(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sessionrun.cwd)
    tools = Tools()
    mistakes: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "give either prompts"),
        ({"prompts": ["x"], "plan": "x.json"}, "give either prompts"),
        ({"plan": '{"prompts": ['}, "plan: not valid JSON"),
        ({"plan": {"prompts": [{"promt": "x"}]}}, 'is "promt" meant?'),
        ({"prompts": ["x"], "timeout": "soon"}, "timeout: must be seconds or text"),
    )
    for words, problem in mistakes:
        with pytest.raises(InputError) as caught:
            tools.start_session(**{"agent": "shell", **words})
        assert problem in str(caught.value)
    assert not (sessionrun.cwd / "results").exists()


class Caller:
    """Calls tools over the protocol, with the client of the official library; counts calls and bytes."""

    def __init__(self, client: Any) -> None:
        self.client, self.calls, self.size = client, 0, 0
        self.progress: list[tuple[float, float | None]] = []
        self.is_error = False

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        async def note(done: float, total: float | None, message: str | None) -> None:
            self.progress.append((done, total))

        answer = await self.client.call_tool(tool, arguments, progress_callback=note)
        (content,) = answer.content
        self.calls, self.size, self.is_error = self.calls + 1, self.size + len(content.text), answer.is_error
        return content.text if self.is_error else json.loads(content.text)


def over_the_protocol(sessionrun: Command, work: Callable[[Caller], Awaitable[None]]) -> None:
    """Start the server as an agent does, and do some work with it."""
    import anyio
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    program, *words = sessionrun.argv
    server = StdioServerParameters(command=program, args=[*words, "mcp"], env=dict(os.environ), cwd=sessionrun.cwd)

    async def run() -> None:
        async with Client(server) as client:
            await work(Caller(client))

    anyio.run(run)


@pytest.mark.slow
def test_fifty_tasks_cost_five_calls_and_four_kilobytes(sessionrun: Command) -> None:
    """The workflow of an agent that starts 50 tasks of which 5 fail, and looks why."""

    async def work(call: Caller) -> None:
        odd = {f"t{num}": f"seq 1 400; echo Error: number {num} is odd >&2; exit 3" for num in FAILING}
        names = [f"t{num}" for num in range(1, 51)]
        prompts = [{"id": name, "prompt": odd.get(name, "echo fine")} for name in names]
        started = await call("start_session", plan={"max_parallel": 8, "prompts": prompts}, agent="shell")
        sessionrun.sessions.append(started["session_id"])
        waited = await call("wait", timeout_s=50)
        while waited["timed_out"]:
            waited = await call("wait", timeout_s=50)
        assert (waited["successful"], waited["failed"]) == (45, 5)
        results = await call("results", failed=True, max_bytes=2000)
        assert names_of(results) == [*odd]
        assert all("is odd" in task["stderr_text"] for task in results["tasks"])
        assert call.calls <= 5 and call.size <= 4000, (call.calls, call.size)
        assert call.progress and call.progress[-1] == (50.0, 50.0)

    over_the_protocol(sessionrun, work)


@pytest.mark.slow
def test_errors_and_a_session_that_outlives_the_server(sessionrun: Command) -> None:
    kept: list[str] = []

    async def work(call: Caller) -> None:
        assert {tool.name for tool in (await call.client.list_tools()).tools} == {
            *("start_session", "status", "wait", "results", "list", "cancel", "retry", "diff")
        }
        assert "no session 'zzz'" in await call("status", session_id="zzz") and call.is_error
        assert "unknown agent 'shel'" in await call("start_session", prompts=["x"], agent="shel")
        prompt = "while ! [ -e go ]; do sleep 0.02; done; echo done"
        started = await call("start_session", prompts=[prompt], agent="shell", check=["test -e go"])
        kept.append(started["session_id"])
        sessionrun.sessions.append(kept[0])
        waited = await call("wait", timeout_s=0.1)
        assert waited["timed_out"] and not call.is_error
        for tool, words in (("start_session", {"prompts": [1] * 5000}), ("status", {"session_id": "x" * 5000})):
            said = await call(tool, **words)
            assert call.is_error and 2000 < len(said) < 2100 and said.endswith(" bytes)")

    over_the_protocol(sessionrun, work)
    assert sessionrun.status(kept[0])["ended_at"] is None
    (sessionrun.cwd / "go").touch()
    assert sessionrun.wait(kept[0])["outcome"] == "succeeded"


def test_work_in_worktrees_by_tools(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository_of(sessionrun.cwd, {})
    monkeypatch.chdir(sessionrun.cwd)
    tools = Tools()
    plan = {"prompts": [{"id": "a", "prompt": "seq 5000 > numbers.txt"}, {"id": "b", "prompt": "echo x > x"}]}
    sessionrun.sessions.append(tools.start_session(plan=plan, agent="shell", worktree=True)["session_id"])
    assert tools.wait(timeout_s=60)["successful"] == 2
    account = tools.diff()["tasks"]
    assert [task["id"] for task in account] == ["a", "b"] and "numbers.txt" in account[0]["text"]
    patch = tools.diff(tasks=("a",), patch=True, max_bytes=3000)
    (task,) = patch["tasks"]
    assert len(json.dumps(patch)) <= 4000 and task["text_bytes"] > 20_000 and "+17\n" in task["text"]


def test_many_waits_hold_up_no_other_call_and_end_with_the_caller(sessionrun: Command) -> None:
    session_id = sessionrun.start(["while ! [ -e go ]; do sleep 0.02; done"])
    server = subprocess.Popen(
        [*sessionrun.argv, "mcp"], cwd=sessionrun.cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None and server.stdout is not None

    def send(method: str, number: int | None = None, **params: Any) -> None:
        about = {} if number is None else {"id": number}
        assert server.stdin is not None
        server.stdin.write(
            json.dumps({"jsonrpc": "2.0", **about, "method": method, "params": params}).encode() + b"\n"
        )
        server.stdin.flush()

    try:
        who = {"name": "test", "version": "1"}
        send("initialize", 1, protocolVersion="2025-03-26", capabilities={}, clientInfo=who)
        assert json.loads(server.stdout.readline())["id"] == 1
        send("notifications/initialized")
        for number in range(100):
            send("tools/call", 100 + number, name="wait", arguments={"session_id": session_id, "timeout_s": 3600})
        send("tools/call", 2, name="status", arguments={"session_id": session_id})
        assert json.loads(server.stdout.readline())["id"] == 2
        server.stdin.close()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    (sessionrun.cwd / "go").touch()
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"
