"""Reading what the agents printed: recorded runs, and streams made by hand where a rule has an edge."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from agent_samples import FORMATS, STREAMS, read_bytes, read_sample, read_stream, sample_path

from sessionrun.agents import table
from sessionrun.agents.reading import MAX_LINE_BYTES, AgentResult
from sessionrun.client.reading.outputs import read_steps
from sessionrun.model.spec import OutputFormat
from sessionrun.model.usage import Usage

USAGE: dict[tuple[OutputFormat, str], Usage] = {
    ("claude", "ok"): Usage(11, 7, 0.000138, 0),
    ("claude", "tools"): Usage(29705, 36, 0.089655, 0),
    ("claude", "went_on"): Usage(11, 7, 0.000138, 0),
    ("claude", "budget"): Usage(11, 7, 0.000138, 0),
    ("claude", "five_hour_subscription"): Usage(0, 0, 0.0, 0),
    ("codex", "ok"): Usage(11, 7, None, 0),
    ("codex", "went_on"): Usage(33, 21, None, 0),
    ("codex", "tools"): Usage(15040, 24, None, 0),
    ("qwen", "ok"): Usage(22, 14, None, 0),
    ("qwen", "went_on"): Usage(44, 28, None, 0),
    ("gemini", "ok"): Usage(11, 7, None, 0),
    ("gemini", "tools"): Usage(19498, 36, None, 0),
    ("opencode", "ok"): Usage(11, 7, 0.0, 0),
    ("opencode", "tools"): Usage(7277, 36, 0.0, 0),
    ("aider", "ok"): Usage(604, 4),
    ("aider", "reflections"): Usage(4212, 76),
}

RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "hi", "num_turns": 1}
COMPLETED = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output")


# ---- recorded output


@pytest.mark.parametrize(("output", "case"), USAGE)
def test_usage(output: OutputFormat, case: str) -> None:
    assert read_sample(output, case).usage == USAGE[output, case]


@pytest.mark.parametrize("output", STREAMS)
def test_conversation_and_model(output: OutputFormat) -> None:
    ok = read_sample(output, "ok")
    assert ok.conversation is not None
    models = {"claude": "claude-sonnet-4-5", "qwen": "stub-model", "gemini": "gemini-2.5-flash"}
    assert ok.model == models.get(output)
    if output != "opencode":  # it prints nothing before its first step
        assert read_sample(output, "stopped").conversation is not None, "a stopped run can be continued"


def test_later_system_events_do_not_hide_the_model() -> None:
    assert read_sample("claude", "auth").model == "claude-sonnet-4-5"


def test_codex_passes_on_the_servers_words() -> None:
    assert read_sample("codex", "api_error").reason == "test failure 400"


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
    cuts = set(range(0, len(whole) - 1, 97)) | {len(whole) - 2}
    for position in cuts:
        result = read_bytes(scratch, output, whole[:position])
        assert not result.ok, f"cut at {position} of {len(whole)}"
        assert result.reason_class == "incomplete_output" or (position < 700 and result.reason_class)


def test_gemini_auto_names_the_model_that_answered(scratch: Path) -> None:
    init = {"type": "init", "model": "auto", "session_id": "s"}
    result = {"type": "result", "status": "success", "stats": {"models": {"gemini-9": {}}}}
    assert read_stream(scratch, "gemini", init, result).model == "gemini-9"
    assert read_sample("gemini", "no_model").model is None, "two models took part"


# ---- judged by hand


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
    assert qwen.usage == Usage(1, 5, None, 20)
    usage["cache_creation_input_tokens"] = 300
    claude = read_stream(scratch, "claude", {**RESULT, "usage": usage, "total_cost_usd": 2})
    assert claude.usage == Usage(321, 5, 2.0, 20)


def test_tokens_from_a_cache(scratch: Path) -> None:
    codex = {"input_tokens": 30, "cached_input_tokens": 20, "output_tokens": 5}
    assert read_stream(scratch, "codex", {**COMPLETED, "usage": codex}).usage == Usage(30, 5, None, 20)
    stats = {"input_tokens": 30, "cached": 20, "output_tokens": 5}
    gemini = {"type": "result", "status": "success", "stats": stats}
    assert read_stream(scratch, "gemini", gemini).usage == Usage(30, 5, None, 20)
    tokens = {"input": 4, "output": 5, "cache": {"read": 20, "write": 6}}
    step = {"type": "step_finish", "part": {"reason": "stop", "tokens": tokens}}
    assert read_stream(scratch, "opencode", step).usage == Usage(30, 5, None, 20)


@pytest.mark.parametrize("wrong", [True, -1, 1.5, "7", None, [], 2**60, 1e300, -0.5])
def test_numbers_of_the_wrong_kind_count_as_absent(scratch: Path, wrong: object) -> None:
    change = {
        "usage": {"input_tokens": wrong, "output_tokens": wrong, "cache_read_input_tokens": wrong},
        "num_turns": wrong,
    }
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
    assert read_stream(scratch, "codex", COMPLETED, failed).reason_class == "unknown"
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
    expected = "refused" if reason == "content-filter" else "incomplete_output"
    error = {"type": "error", "error": {"name": "APIError", "data": {"statusCode": 429}}}
    assert read_stream(scratch, "opencode", finish).reason_class == expected
    assert read_stream(scratch, "opencode", finish, stopped).ok
    assert not read_stream(scratch, "opencode", stopped, {"type": "step_start"}).ok
    assert read_stream(scratch, "opencode", error, stopped).ok, "the last step counts"
    assert read_stream(scratch, "opencode", error, finish).reason_class == "rate_limited"
    assert read_stream(scratch, "opencode", stopped, error).reason_class == "rate_limited"


def test_an_item_of_an_odd_type_is_no_command(scratch: Path) -> None:
    odd = {"type": "item.started", "item": {"id": "1", "type": {"a": []}}}
    assert read_stream(scratch, "codex", odd, {"type": "turn.completed"}).ok


def test_a_shell_of_qwen_that_ended_is_known_from_its_own_files(scratch: Path) -> None:
    """Its stream names a shell that began, and never its end."""
    path, empty = sample_path("qwen", "bg_killed"), scratch / "err"
    conversation = read_sample("qwen", "bg_killed").conversation
    folder = scratch / f"home/.qwen/tmp/x/background-shells/{conversation}"
    folder.mkdir(parents=True)
    for status in ("running", "cancelled", "completed"):
        (folder / "shell-bg_1763568f.status").write_text(f'{{\n "id": "bg_1763568f",\n "status": "{status}"\n}}')
        ended = table.list_ended(table.BUILTIN["qwen"], conversation, {"HOME": str(scratch / "home")}, None)
        assert table.read_result("qwen", path, empty, ended).ok == (status == "completed")
    assert table.list_ended(table.BUILTIN["claude"], conversation, {"HOME": str(scratch / "home")}, None) == set()


def test_aider_after_a_retry_is_a_success(scratch: Path) -> None:
    error = b"litellm.RateLimitError: no\nRetrying in 0.2 seconds...\n"
    tokens = b"Tokens: 12k sent, 1.5k cache hit, 1.9k received. Cost: $0.02 message, $0.05 session.\n"
    result = read_bytes(scratch, "aider", error + b"answer\n" + tokens)
    assert result.ok
    assert result.usage == Usage(12000, 1900, 0.05)
    assert read_bytes(scratch, "aider", tokens + error).reason_class == "rate_limited"
    assert read_bytes(scratch, "aider", b"Aider v0.86.2\nhello\n").reason_class == "incomplete_output"
    for place in (b"Cost:", b"message,", b"$0.05", b"session."):
        wrapped = tokens.replace(place, b"\n" + place)
        assert read_bytes(scratch, "aider", wrapped * 2).usage == Usage(24000, 3800, 0.05)


def test_aider_token_limit_is_context_full(scratch: Path) -> None:
    said = b"Tokens: 12k sent, 0 received.\n\nModel openai/m has hit a token limit!\n"
    assert read_bytes(scratch, "aider", said).reason_class == "context_full"


def test_text_is_the_answer_itself(tmp_path: Path) -> None:
    assert table.read_result("text", tmp_path / "none", tmp_path / "none") == AgentResult(ok=True)


@pytest.mark.parametrize("output", [name for name in FORMATS if name != "text"])
def test_output_that_is_no_file_is_no_success(tmp_path: Path, output: OutputFormat) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo"):
        result = table.read_result(output, path, path)
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


@pytest.mark.slow
def test_a_giant_line_is_skipped(scratch: Path) -> None:
    giant = orjson.dumps({**RESULT, "result": "x" * (MAX_LINE_BYTES + 10)}) + b"\n"
    fits = orjson.dumps({**RESULT, "result": "y" * (MAX_LINE_BYTES - 200)}) + b"\n"
    small = orjson.dumps(RESULT) + b"\n"
    assert read_bytes(scratch, "claude", giant).reason_class == "bad_output"
    assert read_bytes(scratch, "claude", giant[:-1]).reason_class == "bad_output"
    assert read_bytes(scratch, "claude", giant + small).text == "hi"
    assert read_bytes(scratch, "claude", small + giant).text == "hi"
    assert read_bytes(scratch, "claude", fits).ok
    tail = b"x" * (MAX_LINE_BYTES + 1) + small
    assert not read_bytes(scratch, "claude", tail).ok, "the end of a long line is no line of its own"


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
    assert "".join(table.render_events(output, line) for line in lines) == seen


@pytest.mark.parametrize(
    ("output", "took"),
    [
        ("claude", (0.03, 0.042)),
        ("gemini", (0.026, 0.027)),
        ("opencode", (0.022, 0.122)),
        ("codex", ()),
        ("qwen", ()),
    ],
)
def test_steps_have_their_seconds_where_the_stream_tells_them(
    output: OutputFormat, took: tuple[float, ...]
) -> None:
    """The events of codex and qwen have no times."""
    steps = read_steps(sample_path(output, "tools"), output, 100)
    assert len(steps) == 2 and steps[1][0].startswith("$ ") and "made.txt; ls" in steps[1][0]
    known = [seconds for _, seconds in steps if seconds is not None]
    assert known == pytest.approx(took, abs=0.001)


def test_steps_of_a_stream_that_is_not_there_or_has_no_end(tmp_path: Path) -> None:
    assert read_steps(tmp_path / "none", "claude", 100) == []
    os.mkfifo(tmp_path / "fifo")
    assert read_steps(tmp_path / "fifo", "claude", 100) == []
    lines = sample_path("gemini", "tools").read_bytes().splitlines(keepends=True)
    cut = tmp_path / "cut"
    cut.write_bytes(b"".join(lines[:5]) + lines[5][:30])
    assert [seconds is None for _, seconds in read_steps(cut, "gemini", 100)] == [False, True]
    assert [line for line, _ in read_steps(sample_path("opencode", "auth"), "opencode", 1)] == [
        "[error] test failure 401"
    ]


@pytest.mark.parametrize(("output", "words"), [("codex", "401"), ("gemini", "UNAUTHENTICATED"), ("qwen", "401")])
def test_following_shows_the_error(output: OutputFormat, words: str) -> None:
    lines = sample_path(output, "auth").read_bytes().splitlines(keepends=True)
    last = table.render_events(output, lines[-1])
    assert "[error]" in last
    assert words in last


@pytest.mark.parametrize("output", FORMATS)
def test_what_is_no_event_is_shown_as_it_is(output: OutputFormat) -> None:
    assert table.render_events(output, b"plain \xff words\n") == "plain � words\n"
