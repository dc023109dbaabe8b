"""Reading what the agents printed: every sample as its row of the table says, and streams made by hand.

Broken and hostile output never raises, and never becomes a success without its format's mark of one.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from agent_samples import (
    CORPUS,
    EXPECTED,
    FORMATS,
    RECORDED,
    SAMPLES,
    STREAMS,
    Sample,
    judge_sample,
    read_bytes,
    read_sample,
    read_stream,
    sample_path,
)
from hypothesis import given
from hypothesis import strategies as st

from sessionrun.agents import markers, table
from sessionrun.agents.reading import MAX_LINE_BYTES, AgentResult, parse_event
from sessionrun.client.reading.outputs import read_steps
from sessionrun.model.spec import OutputFormat
from sessionrun.model.usage import Usage
from sessionrun.model.words import REASONS

RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "hi", "num_turns": 1}
COMPLETED = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output")


# --- samples ---


def test_every_sample_has_its_row() -> None:
    files = {path for path in SAMPLES.rglob("*") if path.is_file() and path.suffix != ".err" and path != EXPECTED}
    assert files == {sample.path for sample in CORPUS}
    assert len(files) == len(CORPUS)
    assert all(sample.source for sample in CORPUS if sample.origin == "constructed")
    assert {sample.agent for sample in CORPUS} == {*STREAMS, "aider"}
    for errors in SAMPLES.rglob("*.err"):
        assert errors.with_suffix(".raw") in files or errors.with_suffix(".txt") in files


@pytest.mark.parametrize("sample", CORPUS, ids=str)
@pytest.mark.usefixtures("utc")
def test_sample(sample: Sample) -> None:
    result, finished = judge_sample(sample)
    assert (finished.reason_class, result.text) == (sample.reason_class, sample.answer)
    assert finished.verdict == ("passed" if sample.reason_class is None else "failed")
    assert sample.reason_class is None or sample.reason_class in REASONS
    assert sample.exit == (finished.exit_code if finished.signal is None else -finished.signal)
    if sample.reason_class is None:
        assert finished.reason is None
    else:
        assert sample.words in (finished.reason or "")
        assert "\n" not in (finished.reason or "")
    assert sample.said is None or result.reason_class == sample.said
    assert sample.final in (None, result.is_final)
    reset = sample.reset and datetime.fromisoformat(sample.reset.removesuffix("Z")).replace(tzinfo=timezone.utc)
    assert finished.resets_at == pytest.approx(reset.timestamp() if reset else None, abs=1e-3)
    usage = result.usage and [*asdict(result.usage).values()][:4]
    said = {"model": result.model, "conversation": result.conversation, "turns": result.turns, "usage": usage}
    assert sample.told in (None, {name: value for name, value in said.items() if value is not None})


@pytest.mark.parametrize("sample", [one for one in CORPUS if one.shown or one.steps], ids=str)
def test_what_a_follower_sees(sample: Sample) -> None:
    """The events of codex and qwen have no times, so their steps have no seconds."""
    lines = sample.path.read_bytes().splitlines(keepends=True)
    assert "".join(table.render_events(sample.agent, line) for line in lines) == sample.shown
    steps = [[line, took and round(took, 3)] for line, took in read_steps(sample.path, sample.agent, 100)]
    assert sample.steps in (None, steps)


def test_requests_that_were_tried_again_do_not_count() -> None:
    retried = "Attempt 1 failed: rate limit exceeded. Retrying after 5 s\n"
    assert markers.find_in_errors(retried) is None
    found = markers.find_in_errors(retried + "Error: model_not_found\n")
    assert found == ("bad_model", "Error: model_not_found")


@pytest.mark.parametrize("output", STREAMS)
@pytest.mark.parametrize("case", ["ok", "tools"])
def test_a_stream_cut_short_is_no_success(scratch: Path, output: OutputFormat, case: str) -> None:
    whole = sample_path(output, case).read_bytes()
    assert read_bytes(scratch, output, whole).problem is None
    assert read_bytes(scratch, output, whole.rstrip()).problem is None, "the last newline may be missing"
    cuts = set(range(0, len(whole) - 1, 97)) | {len(whole) - 2}
    for position in cuts:
        result = read_bytes(scratch, output, whole[:position])
        assert result.problem is not None, f"cut at {position} of {len(whole)}"
        assert result.reason_class == "incomplete_output" or (position < 700 and result.reason_class)


# --- judged by hand ---


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
    assert result.reason_class == reason_class


CLAUDE = {"input_tokens": 1, "cache_read_input_tokens": 20, "output_tokens": 5}
CACHED = {"input_tokens": 30, "output_tokens": 5}
OF_STEP = {"input": 4, "output": 5, "cache": {"read": 20, "write": 6}}


@pytest.mark.parametrize(
    ("output", "event", "usage"),
    [
        ("qwen", {**RESULT, "usage": CLAUDE}, Usage(1, 5, None, 20)),
        (
            "claude",
            {**RESULT, "usage": {**CLAUDE, "cache_creation_input_tokens": 300}, "total_cost_usd": 2},
            Usage(321, 5, 2.0, 20),
        ),
        ("codex", {**COMPLETED, "usage": {**CACHED, "cached_input_tokens": 20}}, Usage(30, 5, None, 20)),
        (
            "gemini",
            {"type": "result", "status": "success", "stats": {**CACHED, "cached": 20}},
            Usage(30, 5, None, 20),
        ),
        (
            "opencode",
            {"type": "step_finish", "part": {"reason": "stop", "tokens": OF_STEP}},
            Usage(30, 5, None, 20),
        ),
    ],
)
def test_tokens_from_a_cache(scratch: Path, output: OutputFormat, event: Any, usage: Usage) -> None:
    """Some agents count what came from the cache among their input tokens, and some beside them; we count it."""
    assert read_stream(scratch, output, event).usage == usage


@pytest.mark.parametrize("wrong", [True, -1, 1.5, "7", None, [], 2**60, 1e300, -0.5, float("inf"), float("nan")])
def test_numbers_of_the_wrong_kind_count_as_absent(scratch: Path, wrong: object) -> None:
    usage = {"input_tokens": wrong, "output_tokens": wrong, "cache_read_input_tokens": wrong}
    change = {"usage": usage, "num_turns": wrong, "total_cost_usd": None if wrong == 1.5 else wrong}
    result = read_stream(scratch, "claude", {**RESULT, **change})
    assert (result.problem, result.usage, result.turns) == (None, Usage(), None)


@pytest.mark.parametrize("wrong", ["-rf", "--model=x", "a b", "", "x" * 200, "a\nb", 7, None, "../x"])
def test_a_conversation_id_is_never_an_option_nor_a_path(scratch: Path, wrong: object) -> None:
    started = {"type": "thread.started", "thread_id": wrong}
    assert read_stream(scratch, "codex", started, COMPLETED).conversation is None


def test_codex_is_judged_by_its_last_turn_alone(scratch: Path) -> None:
    started, failed = {"type": "turn.started"}, {"type": "turn.failed"}
    warning = {"type": "item.completed", "item": {"type": "error", "message": "API Error: 500"}}
    retry = {"type": "error", "message": "Reconnecting... unexpected status 503"}
    assert read_stream(scratch, "codex", started, warning, retry, COMPLETED).problem is None
    assert read_stream(scratch, "codex", started, COMPLETED, started).reason_class == "incomplete_output"
    assert read_stream(scratch, "codex", COMPLETED, failed).reason_class == "unknown"
    assert read_stream(scratch, "codex", started, retry).problem is not None
    odd = {"type": "item.started", "item": {"id": "1", "type": {"a": []}}}
    assert read_stream(scratch, "codex", odd, COMPLETED).problem is None, "it is no command"


def test_gemini_answers_with_its_last_unbroken_text(scratch: Path) -> None:
    def say(text: str, **more: object) -> dict[str, object]:
        return {"type": "message", "role": "assistant", "content": text, **more}

    done = {"type": "result", "status": "success"}
    stream = [say("I look", delta=True), {"type": "tool_use"}, say("it ", delta=True), say("is", delta=True)]
    assert read_stream(scratch, "gemini", *stream, done).text == "it is"
    assert read_stream(scratch, "gemini", say("a"), say("b"), {"type": "tool_use"}, done).text == "b"
    assert read_stream(scratch, "gemini", say("a"), {"type": "result", "status": True}).problem is not None
    auto = {"type": "init", "model": "auto", "session_id": "s"}
    answered = read_stream(scratch, "gemini", auto, {**done, "stats": {"models": {"gemini-9": {}}}})
    assert (answered.model, read_sample("gemini", "no_model").model) == ("gemini-9", None), "if it was one alone"


@pytest.mark.parametrize("reason", ["length", "content-filter", "unknown", "error", "tool-calls"])
def test_opencode_must_stop_by_itself(scratch: Path, reason: str) -> None:
    finish = {"type": "step_finish", "part": {"reason": reason}}
    stopped = {"type": "step_finish", "part": {"reason": "stop"}}
    expected = "refused" if reason == "content-filter" else "incomplete_output"
    error = {"type": "error", "error": {"name": "APIError", "data": {"statusCode": 429}}}
    assert read_stream(scratch, "opencode", finish).reason_class == expected
    assert read_stream(scratch, "opencode", finish, stopped).problem is None
    assert read_stream(scratch, "opencode", stopped, {"type": "step_start"}).problem is not None
    assert read_stream(scratch, "opencode", error, stopped).problem is None, "the last step counts"
    assert read_stream(scratch, "opencode", error, finish).reason_class == "rate_limited"
    assert read_stream(scratch, "opencode", stopped, error).reason_class == "rate_limited"


def test_a_shell_of_qwen_that_ended_is_known_from_its_own_files(scratch: Path) -> None:
    """Its stream names a shell that began, and never its end."""
    path, empty = sample_path("qwen", "bg_killed"), scratch / "err"
    conversation = read_sample("qwen", "bg_killed").conversation
    folder = scratch / f"home/.qwen/tmp/x/background-shells/{conversation}"
    folder.mkdir(parents=True)
    for status in ("running", "cancelled", "completed"):
        (folder / "shell-bg_1763568f.status").write_text(f'{{\n "id": "bg_1763568f",\n "status": "{status}"\n}}')
        ended = table.list_ended(table.BUILTIN["qwen"], conversation, {"HOME": str(scratch / "home")}, None)
        assert (table.read_result("qwen", path, empty, ended).problem is None) == (status == "completed")
    assert table.list_ended(table.BUILTIN["claude"], conversation, {"HOME": str(scratch / "home")}, None) == set()


def test_aider_after_a_retry_is_a_success(scratch: Path) -> None:
    error = b"litellm.RateLimitError: no\nRetrying in 0.2 seconds...\n"
    tokens = b"Tokens: 12k sent, 1.5k cache hit, 1.9k received. Cost: $0.02 message, $0.05 session.\n"
    result = read_bytes(scratch, "aider", error + b"answer\n" + tokens)
    assert result.problem is None
    assert result.usage == Usage(12000, 1900, 0.05)
    assert read_bytes(scratch, "aider", tokens + error).reason_class == "rate_limited"
    assert read_bytes(scratch, "aider", b"Aider v0.86.2\nhello\n").reason_class == "incomplete_output"
    full = tokens + b"\nModel openai/m has hit a token limit!\n"
    assert read_bytes(scratch, "aider", full).reason_class == "context_full"
    for place in (b"Cost:", b"message,", b"$0.05", b"session."):
        wrapped = tokens.replace(place, b"\n" + place)
        assert read_bytes(scratch, "aider", wrapped * 2).usage == Usage(24000, 3800, 0.05)


@pytest.mark.parametrize("output", FORMATS)
def test_output_that_is_no_file_is_no_success(tmp_path: Path, output: OutputFormat) -> None:
    """But for text, which is the answer itself."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo"):
        result = table.read_result(output, path, path)
        assert result == AgentResult() if output == "text" else result.reason_class == "bad_output"


@pytest.mark.parametrize("output", STREAMS)
def test_other_output_is_bad_and_no_output_is_incomplete(scratch: Path, output: OutputFormat) -> None:
    for stdout in (b"Hello, I am done.\n", b"[1]\n", b"null", b"\xff\xfe{}", b"\0" * 100, b'"result"\n\n'):
        assert read_bytes(scratch, output, stdout).reason_class == "bad_output"
    silent = read_bytes(scratch, output, b"", b"\x1b[31mError: no such model\x1b[0m\nWarning: bye\n")
    assert silent.reason_class == "incomplete_output"
    assert silent.problem is not None and silent.problem.text == "no output; standard error: Error: no such model"
    chatter = b"[STARTUP] x\nWarning: bye\n    at f (a.js:1:2)\n***\n"
    silent = read_bytes(scratch, output, b"", b"no key\n" + chatter)
    assert silent.problem is not None and silent.problem.text == "no output; standard error: no key"


@pytest.mark.parametrize("output", STREAMS)
def test_noise_between_events_is_passed_over(scratch: Path, output: OutputFormat) -> None:
    whole = sample_path(output, "ok").read_bytes()
    noise = b"(node:1) Warning: old\n\n{]\n" + b"[" * 5000 + b"\n"
    assert read_bytes(scratch, output, noise + whole.replace(b"\n", b"\r\n") + noise).problem is None


@pytest.mark.slow
def test_a_giant_line_is_skipped(scratch: Path) -> None:
    giant = orjson.dumps({**RESULT, "result": "x" * (MAX_LINE_BYTES + 10)}) + b"\n"
    fits = orjson.dumps({**RESULT, "result": "y" * (MAX_LINE_BYTES - 200)}) + b"\n"
    small = orjson.dumps(RESULT) + b"\n"
    assert read_bytes(scratch, "claude", giant).reason_class == "bad_output"
    assert read_bytes(scratch, "claude", giant[:-1]).reason_class == "bad_output"
    assert read_bytes(scratch, "claude", giant + small).text == "hi"
    assert read_bytes(scratch, "claude", small + giant).text == "hi"
    assert read_bytes(scratch, "claude", fits).problem is None
    tail = b"x" * (MAX_LINE_BYTES + 1) + small
    assert read_bytes(scratch, "claude", tail).problem is not None, "the end of a long line is no line of its own"


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


@pytest.mark.parametrize("output", FORMATS)
def test_what_is_no_event_is_shown_as_it_is(output: OutputFormat) -> None:
    assert table.render_events(output, b"plain \xff words\n") == "plain � words\n"


# --- anything at all ---

READERS = ("claude", "codex", "gemini", "opencode")
WORDS = sorted(
    {
        word
        for name in READERS
        for word in re.findall(r'"([A-Za-z][\w.-]+)"', Path(table.__file__).with_name(f"{name}.py").read_text())
    }
)
"""What those look for who read streams: keys, and values."""

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=5)
    ),
    max_leaves=12,
)
events = st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from(WORDS),
    st.dictionaries(st.sampled_from(WORDS), values, max_size=8),
)
lines = events.map(orjson.dumps) | st.binary(max_size=60) | st.just(b"Tokens: 1 sent, 1 received.")


recorded = st.sampled_from([(output, sample_path(output, case).read_bytes()) for output, case in RECORDED])


@st.composite
def mutated(draw: st.DrawFn) -> tuple[OutputFormat, bytes]:
    """A recorded output with lines dropped, doubled or replaced, fields overwritten, and bytes cut out."""
    output, whole = draw(recorded)
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
    event = parse_event(line)
    return line if event is None else orjson.dumps({**event, name: value})


MARKS: dict[str, dict[str, object]] = {
    **{name: {"type": "result", "is_error": False} for name in ("claude", "qwen")},
    "codex": {"type": "turn.completed"},
    "gemini": {"type": "result", "status": "success"},
}
"""What an event has in a stream of a run that went well."""


def may_succeed(output: OutputFormat, stdout: bytes) -> bool:
    """Whether the output holds its format's mark of success at all; written apart from the readers."""
    if output == "aider":
        return any(line.startswith(b"Tokens: ") for line in stdout.split(b"\n"))
    events = [event for event in map(parse_event, stdout.split(b"\n")) if event is not None]
    if output == "opencode":
        return any(isinstance(part := one.get("part"), dict) and part.get("reason") == "stop" for one in events)
    return any(MARKS[output].items() <= event.items() for event in events)


def check_reading(scratch: Path, output: OutputFormat, stdout: bytes) -> None:
    result = read_bytes(scratch, output, stdout, stdout)
    assert result.problem is not None or may_succeed(output, stdout)
    assert (result.problem is None) is (result.reason_class is None)
    assert type(result.turns) in (int, type(None))
    orjson.dumps(result, default=list)  # what is read can be written down
    for line in stdout.split(b"\n"):
        assert isinstance(table.render_events(output, line), str)
        assert isinstance(table.list_steps(output, line), list)


@pytest.mark.check
@given(mutated())
def test_mutated_output_never_raises_nor_becomes_a_success(
    scratch: Path, case: tuple[OutputFormat, bytes]
) -> None:
    check_reading(scratch, *case)


@given(st.sampled_from([name for name in FORMATS if name != "text"]), st.lists(lines, max_size=8))
def test_random_output_never_raises_nor_becomes_a_success(
    scratch: Path, output: OutputFormat, some: list[bytes]
) -> None:
    check_reading(scratch, output, b"\n".join(some))
