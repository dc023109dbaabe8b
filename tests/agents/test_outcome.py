"""The verdict on an ended process: wait status and the agent's own words put together."""

from __future__ import annotations

import errno
import os
import signal
import unicodedata
from dataclasses import replace

import orjson
import pytest
from agent_samples import judge_exit
from hypothesis import example, given
from hypothesis import strategies as st

from sessionrun.agents.reading import AgentResult, Problem
from sessionrun.agents.verdict import MAX_REASON, format_reason
from sessionrun.model.events import Entry, JobFinished, to_record
from sessionrun.model.keys import JobKey
from sessionrun.model.usage import Usage

KEY = JobKey("t", 1, 1, "work", 1)

FINE = AgentResult(text="hi", conversation="c-1", model="m", usage=Usage(1, 2, 0.5), turns=3)
REFUSED = AgentResult(Problem("auth", "401 go away"), conversation="c-1")
SILENT = AgentResult(Problem("incomplete_output", "no output; standard error: no key"))
GARBAGE = AgentResult(Problem("bad_output", "no line of the output is an event"))
BROKEN = AgentResult(Problem("incomplete_output", "the output ends"), conversation="c-1")
NOW = 1_800_000_000.0

HEAP = "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"
TRACE = "Traceback (most recent call last):\n  File \"x\", line 1\nKeyError: 'a'\n"


def judge(
    wait_status: int | None = None,
    result: AgentResult | None = None,
    *,
    number: int | None = None,
    detail: str | None = None,
    stderr: str = "",
) -> JobFinished:
    return judge_exit(wait_status, result, errno=number, detail=detail, now=NOW, stderr=stderr)


@pytest.mark.parametrize(
    ("code", "result", "reason_class", "reason"),
    [
        (0, None, None, None),
        (0, FINE, None, None),
        (0, REFUSED, "auth", "auth: 401 go away"),
        (0, SILENT, "incomplete_output", "incomplete_output: no output; standard error: no key"),
        (0, GARBAGE, "bad_output", "bad_output: no line of the output is an event"),
        (1, None, "exit_code", "exit_code: exit code 1"),
        (7, FINE, "exit_code", "exit_code: exit code 7"),
        (1, REFUSED, "auth", "auth: 401 go away (exit code 1)"),
        (144, REFUSED, "auth", "auth: 401 go away (exit code 144)"),
        (1, SILENT, "exit_code", "exit_code: exit code 1; no output; standard error: no key"),
        (2, GARBAGE, "exit_code", "exit_code: exit code 2; no line of the output is an event"),
        (137, None, "exit_code", "exit_code: exit code 137"),
        (0, BROKEN, "incomplete_output", "incomplete_output: the output ends"),
        (1, BROKEN, "agent_crashed", "agent_crashed: the output ends (exit code 1)"),
    ],
)
def test_exit_code_and_agent(
    code: int, result: AgentResult | None, reason_class: str | None, reason: str | None
) -> None:
    finished = judge(code << 8, result)
    assert finished.verdict == ("passed" if reason_class is None else "failed")
    assert (finished.reason_class, finished.reason) == (reason_class, reason)
    assert (finished.exit_code, finished.signal, finished.wait_status) == (code, None, code << 8)


@pytest.mark.parametrize("result", [None, FINE, REFUSED, SILENT])
def test_a_signal_wins_over_what_was_printed(result: AgentResult | None) -> None:
    finished = judge(signal.SIGKILL, result)
    assert (finished.verdict, finished.reason_class) == ("failed", "signal")
    assert finished.reason == "signal: killed by SIGKILL (9)"
    assert (finished.exit_code, finished.signal, finished.wait_status) == (None, 9, 9)


@pytest.mark.parametrize(
    ("status", "result", "stderr", "reason"),
    [
        (256, None, "Error: 429 too many requests\n", "rate_limited: Error: 429 too many requests (exit code 1)"),
        (256, None, "Please run /login\n", "auth: Please run /login (exit code 1)"),
        (256, SILENT, "Error: model_not_found\nbye\n", "bad_model: Error: model_not_found (exit code 1)"),
        (0, SILENT, "Error: model_not_found\n", "bad_model: Error: model_not_found"),
        (0, None, "Error: model_not_found\n", None),
        (0, FINE, f"rate limit exceeded\n{HEAP}\n{TRACE}", None),
        (256, FINE, "rate limit exceeded\n", "exit_code: exit code 1"),
        (256, FINE, TRACE, "agent_crashed: KeyError: 'a' (exit code 1)"),
        (256, REFUSED, f"overloaded_error\n{HEAP}", "auth: 401 go away (exit code 1)"),
        (256, None, TRACE + "and went on\n", "exit_code: exit code 1"),
        (256, None, "Traceback (most recent call last):\nMemoryError\n", "oom: MemoryError (exit code 1)"),
        (134 << 8, None, HEAP, f"oom: {HEAP} (exit code 134)"),
        (signal.SIGABRT, None, HEAP, f"oom: killed by SIGABRT (6): {HEAP}"),
        (signal.SIGKILL, None, HEAP, "signal: killed by SIGKILL (9)"),
        (256, None, "x\nTypeError: no\n    at f (a.js:1:2)\n", "agent_crashed: TypeError: no (exit code 1)"),
        (512, None, "panic: oh\n\ngoroutine 1 [running]:\n", "agent_crashed: panic: oh (exit code 2)"),
        (0x137F, None, "", "unknown: odd wait status 0x137f"),
    ],
)
def test_standard_error_tells_why_where_the_agent_does_not(
    status: int, result: AgentResult | None, stderr: str, reason: str | None
) -> None:
    assert judge(status, result, stderr=stderr).reason == reason


def test_the_end_of_a_limit() -> None:
    told = Problem("usage_limit", "limit", "try again in 2 hours")
    limit = AgentResult(told)
    assert judge(256, limit).resets_at == NOW + 7200
    assert judge(256, replace(limit, resets_at=NOW + 60)).resets_at == NOW + 60, "what the stream states"
    assert judge(256, replace(limit, resets_at=NOW - 60)).resets_at == NOW + 7200, "but not what is past"
    assert judge(256, AgentResult(told._replace(reason_class="auth"))).resets_at is None, "no limit, no end"
    assert judge(256, AgentResult(told._replace(words="limit")), stderr="try again in 5 s").resets_at is None
    assert judge(256, None, stderr="usage limit reached, try again in 5 s").resets_at == NOW + 5
    assert judge(256, None, stderr="rate_limit_error. Retrying in 5 s\nrate_limit_error").resets_at is None


def test_core_dump_and_unnamed_signal() -> None:
    assert judge(signal.SIGSEGV | 0x80).reason == "agent_crashed: killed by SIGSEGV (11), core dumped"
    unnamed = next(number for number in range(32, 64) if number not in set(signal.Signals))
    assert judge(unnamed).reason == f"signal: killed by signal ({unnamed})"


@pytest.mark.parametrize(
    ("script", "exit_code", "number"), [("exit 3", 3, None), ("kill -TERM $$", None, 15), ("exit 143", 143, None)]
)
def test_real_wait_statuses(script: str, exit_code: int | None, number: int | None) -> None:
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], {})
    finished = judge(os.waitpid(pid, 0)[1])
    assert (finished.exit_code, finished.signal, finished.verdict) == (exit_code, number, "failed")


@pytest.mark.parametrize(
    ("number", "detail", "reason"),
    [
        (errno.ENOENT, "/bin/x", "start_failed: /bin/x: No such file or directory (ENOENT)"),
        (errno.E2BIG, None, "start_failed: Argument list too long (E2BIG)"),
        (None, "no place to run", "start_failed: no place to run"),
        (None, None, "start_failed: no process was made"),
    ],
)
def test_no_process(number: int | None, detail: str | None, reason: str) -> None:
    finished = judge(None, None, number=number, detail=detail)
    assert (finished.verdict, finished.reason_class, finished.reason) == ("failed", "start_failed", reason)
    assert (finished.exit_code, finished.signal, finished.wait_status) == (None, None, None)


def test_what_the_agent_said_is_kept_whatever_the_verdict() -> None:
    for status in (0, 256, signal.SIGTERM):
        finished = judge(status, FINE)
        assert (finished.key, finished.conversation, finished.model) == (KEY, "c-1", "m")
        assert finished.turns == 3
        assert finished.usage == Usage(1, 2, 0.5)


def test_the_exit_code_survives_a_long_reason() -> None:
    talker = AgentResult(Problem("api_error", "x" * 5000))
    assert (judge(256, talker).reason or "").endswith("x (exit code 1)")


def test_a_reason_is_one_clean_line() -> None:
    hostile = "a\x1b[31mb\r\nc\td\x00e\x9bf\u2028g\u202eh\ud800i"
    assert format_reason("auth", hostile) == "auth: a [31mb c d e f g h i"
    assert len(format_reason("auth", "word " * 1000)) == MAX_REASON


results = st.none() | st.builds(
    AgentResult,
    st.none()
    | st.builds(
        Problem,
        st.sampled_from(["auth", "denied", "bad_output", "incomplete_output"]),
        st.text(st.characters(), max_size=400),
    ),
)


@given(st.integers(0, 0xFFFF), results, st.text() | st.sampled_from([HEAP, TRACE, "429 too many requests"]))
@example(0, AgentResult(Problem("bad_output", "\n")), "")
def test_every_status_gets_a_verdict(status: int, result: AgentResult | None, stderr: str) -> None:
    finished = judge(status, result, stderr=stderr)
    # The core dump bit without a signal: no system says so, and os.WIFEXITED takes it for exit code 0.
    assert (finished.verdict == "passed") is (status in (0, 0x80) and (result is None or result.problem is None))
    assert (finished.reason is None) is (finished.reason_class is None) is (finished.verdict == "passed")
    assert finished.wait_status == status
    orjson.dumps(to_record(Entry(1, 0.0, 0.0, finished)))
    if finished.reason is not None:
        assert finished.reason.startswith(f"{finished.reason_class}: ")
        assert len(finished.reason) <= MAX_REASON
        assert not [char for char in finished.reason if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
