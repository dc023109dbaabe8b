"""The agents: argument lists, what is refused before a start, and the reading of recorded and broken output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionrun import agents
from sessionrun.agents import AgentResult
from sessionrun.agents.reading import MAX_LINE_BYTES
from sessionrun.errors import AgentNotFound, InputError
from sessionrun.events import Usage
from sessionrun.model import AgentSpec, OutputFormat

SAMPLES = Path(__file__).parent / "data" / "agents"
FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
STREAMS = tuple(name for name in FORMATS if name not in ("text", "aider"))

# (agent, case) -> reason class (None: a success), the answer, a part of the reason
RECORDED: dict[tuple[OutputFormat, str], tuple[str | None, str | None, str]] = {
    ("claude", "ok"): (None, "pong from the model", ""),
    ("claude", "tools"): (None, "all done", ""),
    ("claude", "api_error"): ("api_error", "API Error: 400 test failure 400", "400"),
    ("claude", "auth"): ("auth", "Failed to authenticate. API Error: 401 test failure 401", "401"),
    ("claude", "no_key"): ("auth", "Not logged in · Please run /login", "Not logged in"),
    ("claude", "rate_limited"): ("rate_limited", "API Error: Request rejected (429) · test failure 429", "429"),
    ("claude", "overloaded"): (
        "overloaded",
        "API Error: 529 test failure 529. This is a server-side issue, usually temporary — try again in a "
        "moment. If it persists, check your inference gateway (127.0.0.1:8000).",
        "529",
    ),
    ("claude", "denied"): ("denied", "all done", "1 tool calls were refused: Write"),
    ("claude", "max_turns"): ("max_turns", None, "maximum number of turns"),
    ("claude", "slash"): ("agent_error", "/help isn't available in this environment.", "without asking"),
    ("claude", "stopped"): ("incomplete_output", None, "ends before its result"),
    ("claude", "root"): ("incomplete_output", None, "cannot be used with root"),
    ("codex", "ok"): (None, "pong from the model", ""),
    ("codex", "tools"): (None, "all done", ""),
    ("codex", "api_error"): ("agent_error", None, "test failure 400"),
    ("codex", "auth"): ("auth", None, "401 Unauthorized"),
    ("codex", "rate_limited"): ("rate_limited", None, "429 Too Many Requests"),
    ("codex", "overloaded"): ("overloaded", None, "503 Service Unavailable"),
    ("codex", "no_key"): ("agent_error", None, "Missing environment variable"),
    ("codex", "stopped"): ("incomplete_output", None, "ends before its result"),
    ("qwen", "ok"): (None, "pong from the model", ""),
    ("qwen", "tools"): (None, "all done", ""),
    ("qwen", "api_error"): ("api_error", None, "400"),
    ("qwen", "auth"): ("auth", None, "401"),
    ("qwen", "no_key"): ("agent_error", None, "Missing API key"),
    ("qwen", "slash"): ("agent_error", None, "not supported in this mode"),
    ("qwen", "max_turns"): ("incomplete_output", None, "Reached max session turns"),
    ("qwen", "stopped"): ("incomplete_output", None, "Operation cancelled."),
    ("gemini", "ok"): (None, "pong from the model", ""),
    ("gemini", "tools"): (None, "all done", ""),
    ("gemini", "no_model"): (None, "no model", ""),
    ("gemini", "api_error"): ("api_error", None, "test failure 400"),
    ("gemini", "auth"): ("auth", None, "UNAUTHENTICATED"),
    ("gemini", "no_key"): ("incomplete_output", None, "you must specify the GEMINI_API_KEY"),
    ("gemini", "stopped"): ("incomplete_output", None, "ends before its result"),
    ("opencode", "ok"): (None, "pong from the model", ""),
    ("opencode", "tools"): (None, "all done", ""),
    ("opencode", "api_error"): ("api_error", None, "test failure 400"),
    ("opencode", "auth"): ("auth", None, "test failure 401"),
    ("opencode", "denied"): ("denied", None, "refused: write"),
    ("opencode", "stopped"): ("incomplete_output", None, "no output"),
    ("aider", "ok"): (None, None, ""),
    ("aider", "tools"): (None, None, ""),
    ("aider", "api_error"): ("api_error", None, "litellm.BadRequestError"),
    ("aider", "no_key"): ("auth", None, "litellm.AuthenticationError"),
    ("aider", "rate_limited"): ("rate_limited", None, "litellm.RateLimitError"),
    ("aider", "reflections"): ("agent_error", None, "Only 3 reflections allowed"),
}

USAGE: dict[tuple[OutputFormat, str], Usage] = {
    ("claude", "ok"): Usage(11, 7, 0.000138),
    ("claude", "tools"): Usage(29705, 36, 0.089655),
    ("codex", "ok"): Usage(11, 7),
    ("codex", "tools"): Usage(15040, 24),
    ("qwen", "ok"): Usage(22, 14),
    ("gemini", "ok"): Usage(11, 7),
    ("gemini", "tools"): Usage(19498, 36),
    ("opencode", "ok"): Usage(11, 7, 0.0),
    ("opencode", "tools"): Usage(7277, 36, 0.0),
    ("aider", "ok"): Usage(604, 4),
    ("aider", "reflections"): Usage(4212, 76),
}

RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "hi", "num_turns": 1}
COMPLETED = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}


def sample_path(output: str, case: str) -> Path:
    return SAMPLES / output / f"{case}.{'txt' if output == 'aider' else 'raw'}"


def read_sample(output: OutputFormat, case: str) -> AgentResult:
    path = sample_path(output, case)
    return agents.read_result(output, path, path.with_suffix(".err"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output")


def read_bytes(scratch: Path, output: OutputFormat, stdout: bytes, stderr: bytes = b"") -> AgentResult:
    (scratch / "out").write_bytes(stdout)
    (scratch / "err").write_bytes(stderr)
    return agents.read_result(output, scratch / "out", scratch / "err")


def read_stream(scratch: Path, output: OutputFormat, *events: object) -> AgentResult:
    return read_bytes(scratch, output, b"".join(orjson.dumps(event) + b"\n" for event in events))


# ---- starting


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "claude",
            "claude -p --output-format stream-json --verbose --model=M --dangerously-skip-permissions",
        ),
        (
            "codex",
            "codex exec --json --skip-git-repo-check --model=M --dangerously-bypass-approvals-and-sandbox -",
        ),
        ("qwen", "qwen --output-format stream-json --model=M --yolo"),
        ("gemini", "gemini --output-format stream-json --skip-trust --model=M --yolo"),
        ("opencode", "opencode run --format json --model=M --auto"),
        (
            "aider",
            "aider --message-file=/p/1 --no-pretty --no-fancy-input --no-analytics --no-check-update "
            "--no-show-release-notes --no-show-model-warnings --no-gitignore --no-suggest-shell-commands "
            "--no-detect-urls --model=M --yes-always",
        ),
        ("shell", "sh /p/1"),
    ],
)
def test_builtin_argv(name: str, expected: str) -> None:
    agent = agents.BUILTIN[name]
    argv = agents.build_argv(agent, model="M", approve=True, prompt_file="/p/1")
    assert argv == tuple(expected.split())
    plain = agents.build_argv(agent, model=None, approve=False, prompt_file="/p/1")
    assert plain == tuple(element for element in argv if "=M" not in element and element not in agent.approve_args)


def test_table_is_consistent() -> None:
    assert [agent.name for agent in agents.BUILTIN.values()] == list(agents.BUILTIN)
    assert set(agents.FIRST_FOUND) | {"shell"} == set(agents.BUILTIN)
    for agent in agents.BUILTIN.values():
        agents.check_agent(agent)
        assert agent.env == {}, "the user's environment holds"
        uses_file = any("{prompt_file}" in element for element in agent.argv)
        assert uses_file is (agent.stdin == "none"), "the prompt reaches the agent in exactly one way"


def test_lists_are_appended_where_their_token_is_missing() -> None:
    agent = AgentSpec(name="a", argv=("a", "x"), model_args=("-m", "{model}"), approve_args=("-y",))
    assert agents.build_argv(agent, model="M", approve=True, prompt_file="/p") == ("a", "x", "-m", "M", "-y")
    agent = AgentSpec(name="a", argv=("a", "{approve_args}", "x"), model_args=("-m",), approve_args=("-y",))
    assert agents.build_argv(agent, model="M", approve=True, prompt_file="/p") == ("a", "-y", "x", "-m")
    assert agents.build_argv(agent, model=None, approve=False, prompt_file="/p") == ("a", "x")


def test_tokens_are_replaced_once_and_as_text() -> None:
    agent = AgentSpec(
        name="a",
        argv=("a", "--in={prompt_file}", '{"k": {"x": 1}}', "{0}", "%s", "{other} {prompt_file}"),
        model_args=("{model}:{prompt_file}", "{model_args}"),
    )
    argv = agents.build_argv(agent, model="{prompt_file}{model}", approve=False, prompt_file="/{model}/{x}")
    assert argv == (
        "a",
        "--in=/{model}/{x}",
        '{"k": {"x": 1}}',
        "{0}",
        "%s",
        "{other} /{model}/{x}",
        "{prompt_file}{model}:/{model}/{x}",
        "{model_args}",
    )


@pytest.mark.parametrize(
    "argv",
    [
        ("tool", '{"json": true}', "-c", '{"nested": {"a": {}}}'),
        ("tool", "--format={name}", "a{b}c", "{}", "{0}", "{ word }", "{a-b}", "${HOME}"),
        ("tool", "{prompt_file}", "{model_args}", "{approve_args}", "--at={prompt_file}!"),
    ],
)
def test_check_agent_lets_foreign_braces_pass(argv: tuple[str, ...]) -> None:
    agents.check_agent(AgentSpec(name="mine", argv=argv, model_args=("--m={model}",)))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"argv": ()}, "program"),
        ({"argv": ("",)}, "program"),
        ({"argv": ("{prompt_file}",)}, "program"),
        ({"argv": ("t", "{prompt}")}, "{prompt}"),
        ({"argv": ("t", "{Prompt_File}")}, "{Prompt_File}"),
        ({"argv": ("t", "--model={model}")}, "{model}"),
        ({"argv": ("t", "{model}")}, "{model}"),
        ({"argv": ("t", "x{model_args}")}, "{model_args}"),
        ({"argv": ("t",), "model_args": ("{model_args}",)}, "{model_args}"),
        ({"argv": ("t",), "model_args": ("{modell}",)}, "{modell}"),
        ({"argv": ("t",), "approve_args": ("--for={model}",)}, "{model}"),
        ({"argv": ("t", "a\0b")}, "NUL"),
    ],
)
def test_check_agent_names_agent_and_token(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as caught:
        agents.check_agent(AgentSpec(name="mine", **fields))
    assert "'mine'" in str(caught.value)
    assert named in str(caught.value)


def make_program(folder: Path, name: str = "claude", mode: int = 0o755) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(mode)
    return program


def test_find_program_takes_the_first_executable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claude = agents.BUILTIN["claude"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "claude").mkdir()
    plain = make_program(tmp_path / "b", mode=0o644)
    good = make_program(tmp_path / "c")
    monkeypatch.chdir(tmp_path / "c")
    path = os.pathsep.join(["", ".", str(tmp_path / "a"), str(plain.parent), str(good.parent)])
    assert agents.find_program(claude, path) == str(good)
    assert agents.find_program(claude, os.pathsep.join(["", ".", "c"])) is None, "relative entries do not count"
    assert agents.find_program(agents.BUILTIN["shell"], None) in ("/bin/sh", "/usr/bin/sh")


def test_find_program_with_a_slash_ignores_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path, "mine")
    monkeypatch.chdir(tmp_path)
    assert agents.find_program(AgentSpec(name="m", argv=("./mine",)), "") == str(tmp_path / "mine")
    assert agents.find_program(AgentSpec(name="m", argv=("./other",)), str(tmp_path)) is None


def test_missing_agent_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(AgentNotFound) as caught:
        agents.check_startable(agents.BUILTIN["qwen"], approve=True, euid=1000, environ={"PATH": str(tmp_path)})
    assert "'qwen'" in str(caught.value)
    assert "sessionrun agents" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("approve", "euid", "extra", "fine"),
    [
        (True, 0, {}, False),
        (True, 0, {"IS_SANDBOX": "0"}, False),
        (True, 0, {"IS_SANDBOX": "true"}, False),  # claude 2.1 takes nothing but 1
        (True, 0, {"IS_SANDBOX": "1"}, True),
        (True, 0, {"CLAUDE_CODE_BUBBLEWRAP": "1"}, True),
        (False, 0, {}, True),
        (True, 1000, {}, True),
    ],
)
def test_claude_as_root(tmp_path: Path, *, approve: bool, euid: int, extra: dict[str, str], fine: bool) -> None:
    program = make_program(tmp_path)
    environ = {"PATH": str(tmp_path), **extra}
    claude = agents.BUILTIN["claude"]
    if fine:
        found = agents.check_startable(claude, approve=approve, euid=euid, environ=environ)
        assert found == str(program)
        return
    with pytest.raises(InputError, match="IS_SANDBOX=1"):
        agents.check_startable(claude, approve=approve, euid=euid, environ=environ)


def test_an_agents_own_env_counts_and_others_may_be_root(tmp_path: Path) -> None:
    program = make_program(tmp_path)
    make_program(tmp_path, "qwen")
    environ = {"PATH": str(tmp_path)}
    mine = AgentSpec(
        name="mine",
        argv=("claude",),
        approve_args=("--dangerously-skip-permissions",),
        env={"IS_SANDBOX": "1"},
    )
    assert agents.check_startable(mine, approve=True, euid=0, environ=environ) == str(program)
    agents.check_startable(agents.BUILTIN["qwen"], approve=True, euid=0, environ=environ)


def test_streams_and_versions() -> None:
    streams = {name for name, agent in agents.BUILTIN.items() if agents.has_stream(agent)}
    assert streams == {"claude", "codex", "qwen", "gemini", "opencode"}
    assert agents.version_argv(agents.BUILTIN["codex"]) == ("codex", "--version")
    assert agents.version_argv(agents.BUILTIN["shell"]) == ()


# ---- reading: recorded output


def test_every_sample_is_asserted() -> None:
    found = {
        (path.parent.name, path.stem) for path in SAMPLES.rglob("*") if path.is_file() and path.suffix != ".err"
    }
    assert found == set(RECORDED)


@pytest.mark.parametrize(("output", "case"), RECORDED)
def test_recorded_sample(output: OutputFormat, case: str) -> None:
    reason_class, text, words = RECORDED[output, case]
    result = read_sample(output, case)
    assert (result.ok, result.reason_class, result.text) == (reason_class is None, reason_class, text)
    if reason_class is None:
        assert result.reason is None
    else:
        assert words in (result.reason or "")
        assert "\n" not in (result.reason or "")
    if (output, case) in USAGE:
        assert result.usage == USAGE[output, case]


@pytest.mark.parametrize("output", STREAMS)
def test_conversation_and_model(output: OutputFormat) -> None:
    ok = read_sample(output, "ok")
    assert ok.conversation is not None
    models = {"claude": "claude-sonnet-4-5", "qwen": "stub-model", "gemini": "gemini-2.5-flash"}
    assert ok.model == models.get(output)
    if output != "opencode":  # it prints nothing before its first step
        assert read_sample(output, "stopped").conversation is not None, "a stopped run can be continued"


def test_turns_count_requests_to_the_model() -> None:
    assert read_sample("claude", "tools").turns == 3
    assert read_sample("qwen", "tools").turns == 3
    assert read_sample("opencode", "tools").turns == 3
    assert read_sample("aider", "reflections").turns == 4


@pytest.mark.parametrize("output", STREAMS)
@pytest.mark.parametrize("case", ["ok", "tools"])
def test_a_stream_cut_short_is_no_success(scratch: Path, output: OutputFormat, case: str) -> None:
    whole = sample_path(output, case).read_bytes()
    assert read_bytes(scratch, output, whole).ok
    assert read_bytes(scratch, output, whole.rstrip()).ok, "the last newline may be missing"
    cuts = {position for position in range(0, len(whole) - 1, 97)} | {len(whole) - 2}
    for position in cuts:
        result = read_bytes(scratch, output, whole[:position])
        assert not result.ok, f"cut at {position} of {len(whole)}"
        assert result.reason_class == "incomplete_output" or (position < 700 and result.reason_class)


def test_gemini_auto_names_the_model_that_answered(scratch: Path) -> None:
    init = {"type": "init", "model": "auto", "session_id": "s"}
    result = {"type": "result", "status": "success", "stats": {"models": {"gemini-9": {}}}}
    assert read_stream(scratch, "gemini", init, result).model == "gemini-9"
    assert read_sample("gemini", "no_model").model is None, "two models took part"


# ---- reading: judged by hand


@pytest.mark.parametrize(
    ("change", "reason_class"),
    [
        ({}, None),
        ({"is_error": True}, "agent_error"),
        ({"is_error": 0}, "bad_output"),
        ({"is_error": "false"}, "bad_output"),
        ({"is_error": None}, "bad_output"),
        ({"result": None}, "bad_output"),
        ({"result": ["hi"]}, "bad_output"),
        ({"subtype": "error_during_execution"}, "agent_error"),
        ({"subtype": "error_max_turns", "is_error": True}, "max_turns"),
        ({"subtype": None}, "agent_error"),
        ({"is_error": True, "api_error_status": 403}, "auth"),
        ({"is_error": True, "api_error_status": 500}, "api_error"),
        ({"is_error": True, "api_error_status": True, "result": "API Error: 503 x"}, "overloaded"),
        ({"permission_denials": [{"tool_name": "Bash"}, 7, {"tool_name": 3}]}, "denied"),
        ({"permission_denials": "none"}, None),
        ({"num_turns": 0}, "agent_error"),
        ({"num_turns": False}, None),
    ],
)
@pytest.mark.parametrize("output", ["claude", "qwen"])
def test_result_event(
    scratch: Path, output: OutputFormat, change: dict[str, Any], reason_class: str | None
) -> None:
    result = read_stream(scratch, output, {**RESULT, **change})
    assert (result.ok, result.reason_class) == (reason_class is None, reason_class)


def test_the_last_result_counts(scratch: Path) -> None:
    bad = {**RESULT, "is_error": True}
    assert not read_stream(scratch, "claude", RESULT, bad).ok
    assert read_stream(scratch, "claude", bad, RESULT).ok


def test_claude_input_tokens_count_the_cache_and_qwens_already_do(scratch: Path) -> None:
    usage = {"input_tokens": 1, "cache_read_input_tokens": 20, "output_tokens": 5}
    qwen = read_stream(scratch, "qwen", {**RESULT, "usage": usage})
    assert qwen.usage == Usage(1, 5)
    usage["cache_creation_input_tokens"] = 300
    claude = read_stream(scratch, "claude", {**RESULT, "usage": usage, "total_cost_usd": 2})
    assert claude.usage == Usage(321, 5, 2.0)


@pytest.mark.parametrize("wrong", [True, -1, 1.5, "7", None, [], 2**60, 1e300, -0.5])
def test_numbers_of_the_wrong_kind_count_as_absent(scratch: Path, wrong: object) -> None:
    change = {"usage": {"input_tokens": wrong, "output_tokens": wrong}, "num_turns": wrong}
    result = read_stream(scratch, "claude", {**RESULT, **change})
    assert result.ok
    assert result.usage == Usage()
    assert result.turns is None


@pytest.mark.parametrize("cost", [True, -1, "1", float("inf"), float("nan"), 1e300])
def test_costs_of_the_wrong_kind_count_as_absent(scratch: Path, cost: object) -> None:
    line = b'{"type":"turn.completed"}\n'
    assert read_bytes(scratch, "codex", line).usage is None
    result = read_stream(scratch, "claude", {**RESULT, "usage": {}, "total_cost_usd": cost})
    assert result.usage == Usage()


@pytest.mark.parametrize("wrong", ["-rf", "--model=x", "a b", "", "x" * 200, "a\nb", 7, None, "../x"])
def test_a_conversation_id_is_never_an_option_nor_a_path(scratch: Path, wrong: object) -> None:
    started = {"type": "thread.started", "thread_id": wrong}
    assert read_stream(scratch, "codex", started, COMPLETED).conversation is None


def test_codex_is_judged_by_its_last_turn_alone(scratch: Path) -> None:
    started, failed = {"type": "turn.started"}, {"type": "turn.failed"}
    warning = {"type": "item.completed", "item": {"type": "error", "message": "API Error: 500"}}
    retry = {"type": "error", "message": "Reconnecting... unexpected status 503"}
    assert read_stream(scratch, "codex", started, warning, retry, COMPLETED).ok
    assert read_stream(scratch, "codex", started, COMPLETED, started).reason_class == "incomplete_output"
    assert read_stream(scratch, "codex", COMPLETED, failed).reason_class == "agent_error"
    assert not read_stream(scratch, "codex", started, retry).ok


def test_gemini_answers_with_its_last_unbroken_text(scratch: Path) -> None:
    def say(text: str, **more: object) -> dict[str, object]:
        return {"type": "message", "role": "assistant", "content": text, **more}

    done = {"type": "result", "status": "success"}
    stream = [say("I look", delta=True), {"type": "tool_use"}, say("it ", delta=True), say("is", delta=True)]
    assert read_stream(scratch, "gemini", *stream, done).text == "it is"
    assert read_stream(scratch, "gemini", say("a"), say("b"), {"type": "tool_use"}, done).text == "b"
    assert not read_stream(scratch, "gemini", say("a"), {"type": "result", "status": True}).ok


@pytest.mark.parametrize("reason", ["length", "content-filter", "unknown", "error", "tool-calls"])
def test_opencode_must_stop_by_itself(scratch: Path, reason: str) -> None:
    finish = {"type": "step_finish", "part": {"reason": reason}}
    stopped = {"type": "step_finish", "part": {"reason": "stop"}}
    error = {"type": "error", "error": {"name": "APIError", "data": {"statusCode": 429}}}
    assert read_stream(scratch, "opencode", finish).reason_class == "incomplete_output"
    assert read_stream(scratch, "opencode", finish, stopped).ok
    assert not read_stream(scratch, "opencode", stopped, {"type": "step_start"}).ok
    assert read_stream(scratch, "opencode", error, stopped).reason_class == "rate_limited"


def test_aider_after_a_retry_is_a_success(scratch: Path) -> None:
    error = b"litellm.RateLimitError: no\nRetrying in 0.2 seconds...\n"
    tokens = b"Tokens: 12k sent, 1.5k cache hit, 1.9k received. Cost: $0.02 message, $0.05 session.\n"
    result = read_bytes(scratch, "aider", error + b"answer\n" + tokens)
    assert result.ok
    assert result.usage == Usage(12000, 1900, 0.05)
    assert read_bytes(scratch, "aider", tokens + error).reason_class == "rate_limited"
    assert read_bytes(scratch, "aider", b"Aider v0.86.2\nhello\n").reason_class == "incomplete_output"
    wrapped = tokens.replace(b"message, ", b"\nmessage, ")
    assert read_bytes(scratch, "aider", wrapped * 2).usage == Usage(24000, 3800, 0.05)


def test_aider_token_limit_is_context_full(scratch: Path) -> None:
    said = b"Tokens: 12k sent, 0 received.\n\nModel openai/m has hit a token limit!\n"
    assert read_bytes(scratch, "aider", said).reason_class == "context_full"


def test_text_is_the_answer_itself(tmp_path: Path) -> None:
    assert agents.read_result("text", tmp_path / "none", tmp_path / "none") == AgentResult(ok=True)


@pytest.mark.parametrize("output", [name for name in FORMATS if name != "text"])
def test_output_that_is_no_file_is_no_success(tmp_path: Path, output: OutputFormat) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo"):
        result = agents.read_result(output, path, path)
        assert (result.ok, result.reason_class) == (False, "bad_output")


@pytest.mark.parametrize("output", STREAMS)
def test_other_output_is_bad_and_no_output_is_incomplete(scratch: Path, output: OutputFormat) -> None:
    for stdout in (b"Hello, I am done.\n", b"[1]\n", b"null", b"\xff\xfe{}", b"\0" * 100, b'"result"\n\n'):
        assert read_bytes(scratch, output, stdout).reason_class == "bad_output"
    silent = read_bytes(scratch, output, b"", b"\x1b[31mError: no such model\x1b[0m\nWarning: bye\n")
    assert silent.reason_class == "incomplete_output"
    assert silent.reason == "no output; standard error: Error: no such model"


@pytest.mark.parametrize("output", STREAMS)
def test_noise_between_events_is_passed_over(scratch: Path, output: OutputFormat) -> None:
    whole = sample_path(output, "ok").read_bytes()
    noise = b"(node:1) Warning: old\n\n{]\n" + b"[" * 5000 + b"\n"
    assert read_bytes(scratch, output, noise + whole.replace(b"\n", b"\r\n") + noise).ok


def test_a_giant_line_is_skipped(scratch: Path) -> None:
    giant = orjson.dumps({**RESULT, "result": "x" * (MAX_LINE_BYTES + 10)}) + b"\n"
    fits = orjson.dumps({**RESULT, "result": "y" * (MAX_LINE_BYTES - 200)}) + b"\n"
    small = orjson.dumps(RESULT) + b"\n"
    assert read_bytes(scratch, "claude", giant).reason_class == "bad_output"
    assert read_bytes(scratch, "claude", giant[:-1]).reason_class == "bad_output"
    assert read_bytes(scratch, "claude", giant + small).text == "hi"
    assert read_bytes(scratch, "claude", small + giant).text == "hi"
    assert read_bytes(scratch, "claude", fits).ok


# ---- following


@pytest.mark.parametrize(
    ("output", "case", "seen"),
    [
        ("claude", "ok", "pong from the model\n"),
        ("claude", "tools", "[tool] Write /repo/note.txt\n$ echo hello > made.txt; ls\nall done\n"),
        ("claude", "no_key", "Not logged in · Please run /login\n[error] Not logged in · Please run /login\n"),
        (
            "codex",
            "tools",
            "[warning] Model metadata for `stub-model` not found. Defaulting to fallback metadata; this can "
            "degrade performance and cause issues.\n"
            "$ /bin/bash -lc \"printf %s 'some text' > note.txt\"\n"
            "$ /bin/bash -lc 'echo hello > made.txt; ls'\nall done\n",
        ),
        ("qwen", "tools", "[tool] write_file /repo/note.txt\n$ echo hello > made.txt; ls\nall done\n"),
        ("gemini", "ok", "pong from the model\n"),
        (
            "gemini",
            "tools",
            "\n[tool] write_file /repo/note.txt\n\n$ echo hello > made.txt; ls\nall done\n",
        ),
        ("opencode", "tools", "[tool] write /repo/note.txt\n$ echo hello > made.txt; ls\nall done\n"),
        ("opencode", "auth", "[error] test failure 401\n"),
    ],
)
def test_following(output: OutputFormat, case: str, seen: str) -> None:
    lines = sample_path(output, case).read_bytes().splitlines(keepends=True)
    assert "".join(agents.render_events(output, line) for line in lines) == seen


@pytest.mark.parametrize(("output", "words"), [("codex", "401"), ("gemini", "UNAUTHENTICATED"), ("qwen", "401")])
def test_following_shows_the_error(output: OutputFormat, words: str) -> None:
    lines = sample_path(output, "auth").read_bytes().splitlines(keepends=True)
    last = agents.render_events(output, lines[-1])
    assert "[error]" in last
    assert words in last


@pytest.mark.parametrize("output", FORMATS)
def test_what_is_no_event_is_shown_as_it_is(output: OutputFormat) -> None:
    assert agents.render_events(output, b"plain \xff words\n") == "plain � words\n"


# ---- hostile output

WORDS = (
    "type subtype is_error result num_turns usage message content role part reason item text error status "
    "session_id thread_id sessionID api_error_status permission_denials state input tool name delta "
    "total_cost_usd stats models errors data statusCode tokens cache"
).split()
VALUES = (
    "result success assistant system init text tool_use error turn.completed turn.failed turn.started stop "
    "item.completed item.started agent_message command_execution message step_start step_finish tool-calls "
    "error_max_turns thread.started"
).split()

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.sampled_from(VALUES)
    | st.text(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=5)
    ),
    max_leaves=12,
)
events = st.dictionaries(st.sampled_from(WORDS), values, max_size=8)
lines = events.map(orjson.dumps) | st.binary(max_size=60) | st.just(b"Tokens: 1 sent, 1 received.")


def sample_bytes() -> Iterator[tuple[OutputFormat, bytes]]:
    for output, case in RECORDED:
        yield output, sample_path(output, case).read_bytes()


@st.composite
def mutated(draw: st.DrawFn) -> tuple[OutputFormat, bytes]:
    """A recorded output with lines dropped, doubled or replaced, fields overwritten, and bytes cut out."""
    output, whole = draw(st.sampled_from(list(sample_bytes())))
    kept: list[bytes] = []
    for line in whole.splitlines():
        fate = draw(st.sampled_from(["keep", "keep", "keep", "drop", "double", "new", "field", "cut"]))
        if fate in ("keep", "double"):
            kept += [line] * (1 if fate == "keep" else 2)
        elif fate == "new":
            kept.append(draw(lines))
        elif fate == "cut":
            start = draw(st.integers(0, len(line)))
            kept.append(line[:start] + draw(st.binary(max_size=4)) + line[start + draw(st.integers(0, 40)) :])
        elif fate == "field":
            kept.append(overwrite(line, draw(st.sampled_from(WORDS)), draw(values)))
    return output, b"\n".join(kept)


def overwrite(line: bytes, name: str, value: object) -> bytes:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line
    return orjson.dumps({**event, name: value}) if isinstance(event, dict) else line


def may_succeed(output: OutputFormat, stdout: bytes) -> bool:
    """Whether the output holds its format's mark of success at all; written apart from the readers."""
    for line in stdout.split(b"\n"):
        if output == "aider" and line.startswith(b"Tokens: "):
            return True
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(event, dict):
            continue
        part = event.get("part")
        if {
            "claude": event.get("type") == "result" and event.get("is_error") is False,
            "qwen": event.get("type") == "result" and event.get("is_error") is False,
            "codex": event.get("type") == "turn.completed",
            "gemini": event.get("type") == "result" and event.get("status") == "success",
            "opencode": isinstance(part, dict) and part.get("reason") == "stop",
        }.get(output):
            return True
    return False


def check_reading(scratch: Path, output: OutputFormat, stdout: bytes) -> None:
    result = read_bytes(scratch, output, stdout, stdout)
    assert not result.ok or may_succeed(output, stdout)
    assert result.ok is (result.reason_class is None) is (result.reason is None)
    orjson.dumps(result)  # what is read can be written down
    assert all(
        type(value) in (int, type(None))
        for value in (
            result.turns,
            *(([result.usage.input_tokens, result.usage.output_tokens]) if result.usage else []),
        )
    )
    for line in stdout.split(b"\n"):
        assert isinstance(agents.render_events(output, line), str)


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_mutated_output_never_raises_nor_becomes_a_success(
    scratch: Path, case: tuple[OutputFormat, bytes]
) -> None:
    check_reading(scratch, *case)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([name for name in FORMATS if name != "text"]), st.lists(lines, max_size=8))
def test_random_output_never_raises_nor_becomes_a_success(
    scratch: Path, output: OutputFormat, some: list[bytes]
) -> None:
    check_reading(scratch, output, b"\n".join(some))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(STREAMS), events)
def test_any_event_can_be_followed(output: OutputFormat, event: dict[str, object]) -> None:
    assert isinstance(agents.render_events(output, orjson.dumps(event)), str)
