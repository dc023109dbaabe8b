"""The real agent CLIs in detached sessions: what reaches the model, what they do, what comes out.

They go on with a conversation, work inside of walls, leave nothing when they are stopped, and call our own tools.
Where their provider refuses, is silent or has had enough, what is asserted on recorded samples is still said.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import eventually

from sessionrun.agents import table
from sessionrun.agents.markers import find_in_errors
from sessionrun.agents.reading import WITHOUT_RESULT, AgentResult
from sessionrun.engine.money import usage_since
from sessionrun.model.words import format_time
from sessionrun.walls.trial import find_problem

from .conftest import MODELS, NEEDS_CLAUDE, PROVIDERS, SESSION_S, Stage, find_agent, find_processes
from .model_server import FORMS, GEMINI_FORMS, INPUT_TOKENS, OPENAI_FORMS, OUTPUT_TOKENS

pytestmark = pytest.mark.agents

RUN_S = 90
STARTED_S = 60

LINE: Final = "Umlauts äöü, 'quotes', \"quotes\", $HOME, `x`, \\n, {braces}, %s, tabs\tand more\n"
LARGE: Final = "-x looks like an option\n" + LINE * 4000 + "answer[[seen all of it]]"


def test_four_at_once_under_one_home(agent: str, stage: Stage) -> None:
    tasks = stage.play(
        [
            {"id": "large", "agent": agent, "prompt": LARGE},
            {"id": "writes", "agent": agent, "prompt": "Go: write[[note.txt=from the tool]] answer[[written]]"},
            {"id": "pong", "agent": agent, "prompt": "Say it: answer[[pong from the model]]"},
            {"id": "ping", "agent": agent, "prompt": "Say it: answer[[ping from the model]]"},
        ],
        "--worktree",
    )
    assert {task["outcome"] for task in tasks.values()} == {"succeeded"}, tasks
    assert max(task["started_at"] for task in tasks.values()) < min(task["ended_at"] for task in tasks.values())
    assert len(LARGE.encode()) > 300_000
    assert stage.server.told(LARGE)
    told = [request.model for word in ("pong", "large", "written") for request in stage.server.told(word)]
    name = re.sub("^(" + "|".join(PROVIDERS) + ")", "", MODELS[agent])  # as the server is asked for it
    assert set(told) == {name}
    assert stage.git("show", f"{tasks['writes']['branch']}:note.txt") == "from the tool\n"
    assert stage.git("rev-parse", tasks["pong"]["branch"] or "main") == stage.git("rev-parse", "main")
    for task_id, text in (("large", "seen all of it"), ("writes", "written"), ("ping", "ping from the model")):
        _check_answer(stage, tasks[task_id], text)


def _check_answer(stage: Stage, task: dict[str, Any], text: str) -> None:
    """The answer, its file, the raw stream, the tokens and the conversation's id."""
    file = stage.file(task["id"], "txt").read_text()
    if task["agent"] == "aider":  # its answer is all that it prints; it counts tokens by itself and has no ids
        assert text in file
        assert task["usage"]["input_tokens"]
        return
    assert file.strip() == text
    assert stage.file(task["id"], "raw").read_bytes().count(b"\n") >= 2
    assert task["conversation"]
    requests = task["usage"]["input_tokens"] // INPUT_TOKENS
    assert 1 <= requests <= 3  # some ask once more on the side
    assert task["usage"]["input_tokens"] == requests * INPUT_TOKENS
    assert task["usage"]["output_tokens"] == requests * OUTPUT_TOKENS


@pytest.fixture
def talker(agent: str) -> str:
    if not table.BUILTIN[agent].continue_args:
        pytest.skip(f"{agent} has no conversations to go on with")
    return agent


def test_a_conversation_goes_on(talker: str, stage: Stage, tmp_path: Path) -> None:
    spec = table.BUILTIN[talker]
    first = _run(talker, stage, tmp_path, "Remember alpha answer[[the first answer]]", None)
    assert (first.problem, first.text) == (None, "the first answer")
    before = len(stage.server.requests)
    second = _run(talker, stage, tmp_path, "And now beta answer[[the second answer]]", first.conversation)
    assert (second.problem, second.text) == (None, "the second answer")
    assert second.conversation == first.conversation
    assert first.usage and second.usage
    is_total = spec.output in table.COUNTS_ALL
    own = usage_since(second.usage, first.usage) if is_total else second.usage
    assert own != second.usage or not is_total, "it does not report a total any more"
    assert 0 < (own.input_tokens or 0) <= (len(stage.server.requests) - before) * INPUT_TOKENS
    assert stage.server.told("Remember alpha", "the first answer", "And now beta")


def test_a_conversation_that_is_not_there(talker: str, stage: Stage, tmp_path: Path) -> None:
    name = "ses_000000000000abcdefghijklmn" if talker == "opencode" else "00000000-0000-4000-8000-000000000000"
    lost = _run(talker, stage, tmp_path, "Go on answer[[somehow]]", name)
    said = lost.reason_class if lost.reason_class not in WITHOUT_RESULT else None
    found = find_in_errors(table.read_errors(tmp_path / "stderr"))
    assert (said or (found and found[0])) == "no_conversation", lost.problem
    assert not stage.server.told("Go on")


def _run(agent: str, stage: Stage, folder: Path, prompt: str, conversation: str | None) -> AgentResult:
    """One run in the repository, as a session would start it."""
    spec = table.BUILTIN[agent]
    file, stdout, stderr = folder / "prompt", folder / "stdout", folder / "stderr"
    file.write_text(prompt)
    argv = table.build_argv(
        spec, model=MODELS[agent], approve=True, prompt_file=str(file), conversation=conversation
    )
    env = {**os.environ, "PWD": str(stage.repository)}
    with file.open("rb") as given, stdout.open("wb") as out, stderr.open("wb") as err:
        subprocess.run(argv, stdin=given, stdout=out, stderr=err, cwd=stage.repository, env=env, timeout=RUN_S)
    return table.read_result(spec.output, stdout, stderr)


def test_nothing_is_left_after_cancel_and_after_term(agent: str, stage: Stage, tmp_path: Path) -> None:
    if agent == "aider":
        pytest.skip("aider offers its model no tools")
    token = f"token-{uuid.uuid4()}"
    names = ("cancelled", "terminated")
    tasks = []
    for name in names:  # the agent's own shell runs something long that says when it has begun
        code = f"import pathlib, time; pathlib.Path({str(tmp_path / name)!r}).touch(); time.sleep(300)"
        command = shlex.join([sys.executable, "-c", code, token])
        tasks.append({"id": name, "agent": agent, "prompt": f"Do it: run[[{command}]] slow[[200]]"})
    session = stage.start(tasks)
    eventually(lambda: all((tmp_path / name).exists() for name in names), timeout_s=STARTED_S)
    assert len([process for process in find_processes(session, token) if token in process.cmdline()]) == 2
    stage.command("cancel", session, "cancelled")
    pids = {task["id"]: task["pid"] for task in stage.command.status(session)["tasks"]}
    os.killpg(pids["terminated"], signal.SIGTERM)
    ended = stage.finish(session)
    eventually(lambda: not find_processes(session, token), timeout_s=5)
    assert ended["cancelled"]["outcome"] == "cancelled"
    assert ended["terminated"]["outcome"] == "failed", ended["terminated"]


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
    home = Path(os.environ["HOME"])
    files = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]
    ours = (
        "state/",
        ".local/share/opencode",
        "config/opencode",
    )  # the session's; opencode was started outside, too
    kept = {name for name in files if not name.startswith(ours)}
    assert kept <= {".codex/config.toml", ".gemini/settings.json", ".qwen/settings.json"}, "it wrote into the home"


@NEEDS_CLAUDE
def test_claude_starts_a_session_by_a_tool(stage: Stage) -> None:
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


@pytest.mark.skipif(find_agent("qwen") is not None, reason=find_agent("qwen") or "")
def test_a_matrix_keeps_what_qwen_logs_of_each_of_its_models(stage: Stage) -> None:
    prompts = ["First part.", "write[[note.txt=from the tool]] answer[[written]]"]
    config = {
        "worktree_base": "../trees",
        "tasks": [{"id": "note", "name": "Write a note", "prompts": prompts}],
        "models": ["test-model", {"name": "other-model", "authType": "openai"}],
    }
    (stage.repository / "config.json").write_text(json.dumps(config))
    done = stage.command("-q", "config.json")
    assert done.returncode == 0, done.stderr
    stage.finish(done.stdout.strip())
    runs = json.loads((stage.repository / "results.json").read_text())["runs"]
    assert [(run["model"], run["status"]) for run in runs] == [
        ("test-model", "succeeded"),
        ("other-model", "succeeded"),
    ]
    assert {request.model for request in stage.server.told("First part.")} == {"test-model", "other-model"}
    for run in runs:
        folder = stage.repository / run["output_dir"]
        assert (folder / "stdout.txt").read_text().strip() == "written"
        logs = sorted((folder / "logs").glob("openai-*.json"))
        assert logs and run["model"] in logs[0].read_text(), list(folder.iterdir())
        assert "+from the tool" in (folder / "diff.patch").read_text()


# --- a provider that fails, is silent, or has had enough ---

PATIENCE_S: Final = {"claude": 15, "codex": 15, "qwen": 30, "gemini": 30, "opencode": 35, "aider": 35}
"""Longer than the agent needs to start; on 429 and 500 some try again for minutes and say nothing."""
LONG_S: Final = 150
"""For those that say at once what is wrong, however busy the machine is."""

RESET_S: Final = 40
"""Until when the provider is limited: longer than all of them need to start."""

SUBSCRIPTION: Final = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "any"}

FAILURES: Final = {
    "bad_request": ("fail[[400]]", {"api_error"}),
    "unauthorized": ("fail[[401]]", {"auth"}),
    "too_many": ("fail[[429]]", {"rate_limited", "timeout"}),
    "server_error": ("fail[[500]]", {"api_error", "overloaded", "timeout"}),
    "silent": ("slow[[200]]", {"timeout"}),
}


def test_what_a_provider_that_fails_leads_to(agent: str, stage: Stage) -> None:
    tasks = []
    for case, (order, expected) in FAILURES.items():
        patience = 2 * PATIENCE_S[agent] if "timeout" in expected else LONG_S
        tasks.append({"id": case, "agent": agent, "prompt": f"Do it: {order}", "timeout": patience})
    assert _wrong(_meet(stage, tasks), {case: expected for case, (_, expected) in FAILURES.items()}) == []
    assert all(stage.server.told(str(task["prompt"])) for task in tasks)


@NEEDS_CLAUDE
def test_how_claude_says_that_a_limit_is_reached(stage: Stage) -> None:
    """With an API key and with a subscription; only the second names the limit and its end."""
    tasks = []
    for case in FORMS:  # each has accounts of its own: sessions of one would hear of each other's limits
        task = {"agent": "claude", "prompt": f"Do it: limit[[{case}]]"}
        tasks.append({"id": f"{case}_key", **task, "env": {"ANTHROPIC_API_KEY": f"key-{case}"}})
        env = {**SUBSCRIPTION, "CLAUDE_CODE_OAUTH_TOKEN": f"token-{case}"}
        tasks.append({"id": f"{case}_subscription", **task, "env": env})
    met = _meet(stage, tasks)
    said = {f"{case}_{account}": {"usage_limit"} for case in FORMS for account in ("key", "subscription")}
    hasty = {f"{case}_key": {"rate_limited"} for case in ("five_hour", "seven_day", "seven_day_opus", "rate")}
    busy = {name: {"overloaded"} for name in said if name.startswith("overloaded")}
    assert _wrong(met, {**said, **hasty, **busy, "rate_subscription": {"rate_limited"}}) == []


def test_how_the_others_say_that_a_limit_is_reached(stage: Stage) -> None:
    """An account's plan or quota is used up: some say so at once, some try again for minutes.

    Of these qwen and opencode say it in a log of their own, which is read when their time is over.
    """
    cases = [(name, case) for name in ("codex", "qwen", "opencode", "aider") for case in OPENAI_FORMS]
    cases += [("gemini", case) for case in GEMINI_FORMS]
    tasks = []
    for name, case in cases:
        task = {"id": f"{case}_{name}", "prompt": f"Do it: limit[[{case}]]", "timeout": PATIENCE_S[name]}
        tasks += [{**task, "agent": name}] if find_agent(name) is None else []
    met = _meet(stage, tasks)
    silent = {name: {"usage_limit", "timeout"} if name.endswith("_aider") else {"usage_limit"} for name in met}
    assert _wrong(met, silent) == []


@NEEDS_CLAUDE
def test_a_usage_limit_holds_the_tasks_of_its_provider_alone(stage: Stage) -> None:
    """Two tasks of a limited account wait for its reset, and then succeed at their first attempt."""
    reset_at = int(time.time()) + RESET_S
    reset = str(format_time(reset_at))
    stage.server.limited_until = reset_at
    others = [name for name in ("codex", "qwen", "opencode") if find_agent(name) is None]
    tasks: list[dict[str, Any]] = [{"id": name, "agent": name, "prompt": "Say answer[[now]]"} for name in others]
    for number in (1, 2):
        prompt = "claude says answer[[later]]"
        tasks.append({"id": f"claude-{number}", "agent": "claude", "prompt": prompt, "env": SUBSCRIPTION})
    session = stage.start(tasks, max_parallel=5)

    def held() -> list[dict[str, Any]]:
        tasks = stage.command.status(session)["tasks"]
        return [task for task in tasks if task["agent"] == "claude" and task["held_until"]]

    eventually(lambda: len(held()) == 2, timeout_s=RESET_S - 5)
    ended = stage.finish(session)
    assert {(task["outcome"], task["attempt"]) for task in ended.values()} == {("succeeded", 1)}
    for task in ended.values():
        if task["agent"] != "claude":
            assert task["started_at"] < reset, "it waited for a limit that is not its own"
        else:
            assert task["ended_at"] > reset
    assert len(stage.server.told("claude says ")) <= 4  # one refused, one canary, then the others


def _meet(stage: Stage, tasks: list[dict[str, Any]]) -> dict[str, str]:
    """The reason class of each task, or of what holds it; each has a session, and so a hold, of its own."""
    sessions = {}
    for task in tasks:
        with pytest.MonkeyPatch.context() as patch:  # the account of a session is that of its launch
            for name, value in task.get("env", {}).items():
                patch.setenv(name, value)
            sessions[task["id"]] = stage.start([task])
    met = {
        name: eventually(partial(_reason, stage, session), timeout_s=SESSION_S)
        for name, session in sessions.items()
    }
    for session in sessions.values():
        stage.command("cancel", session)
        stage.finish(session)
    return met


def _reason(stage: Stage, session: str) -> str | None:
    (task,) = stage.command.status(session)["tasks"]
    if task["reason_class"] == "held":
        return str(task["reason"]).split(": ")[1]
    return str(task["reason_class"]) if task["outcome"] else None


def _wrong(met: dict[str, str], expected: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The tasks that met something else."""
    return [(name, reason_class) for name, reason_class in met.items() if reason_class not in expected[name]]
