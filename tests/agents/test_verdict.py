"""The verdict on an ended process, from wait status and the agent's own words; and when a limit ends."""

from __future__ import annotations

import errno
import signal
import time
import unicodedata
from dataclasses import replace
from datetime import datetime, timezone

import orjson
import pytest
from agent_samples import NOW, judge_exit
from hypothesis import example, given
from hypothesis import strategies as st

from sessionrun.agents.reading import AgentResult, Problem
from sessionrun.agents.verdict import MAX_AHEAD_S, MAX_REASON, check_reset, find_reset, format_reason
from sessionrun.model.events import Entry, to_record
from sessionrun.model.usage import Usage

pytestmark = pytest.mark.usefixtures("utc")

FINE = AgentResult(text="hi", conversation="c-1", model="m", usage=Usage(1, 2, 0.5), turns=3)
REFUSED = AgentResult(Problem("auth", "401 go away"), conversation="c-1")
SILENT = AgentResult(Problem("incomplete_output", "no output; standard error: no key"))
GARBAGE = AgentResult(Problem("bad_output", "no line of the output is an event"))
BROKEN = AgentResult(Problem("incomplete_output", "the output ends"), conversation="c-1")

UNNAMED = next(number for number in range(32, 64) if number not in set(signal.Signals))
HEAP = "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"
TRACE = "Traceback (most recent call last):\n  File \"x\", line 1\nKeyError: 'a'\n"


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
    finished = judge_exit(code << 8, result)
    assert finished.verdict == ("passed" if reason_class is None else "failed")
    assert (finished.reason_class, finished.reason) == (reason_class, reason)
    assert (finished.exit_code, finished.signal, finished.wait_status) == (code, None, code << 8)
    said = result or AgentResult()  # it is kept, whatever the verdict is
    kept = (finished.conversation, finished.model, finished.turns, finished.usage)
    assert kept == (said.conversation, said.model, said.turns, said.usage)


@pytest.mark.parametrize("result", [None, FINE, REFUSED, SILENT])
def test_a_signal_wins_over_what_was_printed(result: AgentResult | None) -> None:
    finished = judge_exit(signal.SIGKILL, result)
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
        (signal.SIGSEGV | 0x80, None, "", "agent_crashed: killed by SIGSEGV (11), core dumped"),
        (UNNAMED, None, "", f"signal: killed by signal ({UNNAMED})"),
    ],
)
def test_standard_error_tells_why_where_the_agent_does_not(
    status: int, result: AgentResult | None, stderr: str, reason: str | None
) -> None:
    assert judge_exit(status, result, stderr=stderr).reason == reason


def test_the_end_of_a_limit() -> None:
    told = Problem("usage_limit", "limit", "try again in 2 hours")
    limit = AgentResult(told)
    assert judge_exit(256, limit).resets_at == NOW + 7200
    assert judge_exit(256, replace(limit, resets_at=NOW + 60)).resets_at == NOW + 60, "what the stream states"
    assert judge_exit(256, replace(limit, resets_at=NOW - 60)).resets_at == NOW + 7200, "but not what is past"
    assert judge_exit(256, AgentResult(told._replace(reason_class="auth"))).resets_at is None, "no limit, no end"
    assert judge_exit(256, AgentResult(told._replace(words="limit")), stderr="try again in 5 s").resets_at is None
    assert judge_exit(256, None, stderr="usage limit reached, try again in 5 s").resets_at == NOW + 5
    assert judge_exit(256, None, stderr="rate_limit_error. Retrying in 5 s\nrate_limit_error").resets_at is None


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
    finished = judge_exit(errno=number, detail=detail)
    assert (finished.verdict, finished.reason_class, finished.reason) == ("failed", "start_failed", reason)
    assert (finished.exit_code, finished.signal, finished.wait_status) == (None, None, None)


def test_a_reason_is_one_clean_line_that_keeps_the_exit_code() -> None:
    talker = AgentResult(Problem("api_error", "x" * 5000))
    assert (judge_exit(256, talker).reason or "").endswith("x (exit code 1)")
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
    finished = judge_exit(status, result, stderr=stderr)
    # The core dump bit without a signal: no system says so, and os.WIFEXITED takes it for exit code 0.
    assert (finished.verdict == "passed") is (status in (0, 0x80) and (result is None or result.problem is None))
    assert (finished.reason is None) is (finished.reason_class is None) is (finished.verdict == "passed")
    assert finished.wait_status == status
    orjson.dumps(to_record(Entry(1, 0.0, 0.0, finished)))
    if finished.reason is not None:
        assert finished.reason.startswith(f"{finished.reason_class}: ")
        assert len(finished.reason) <= MAX_REASON
        assert not [char for char in finished.reason if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]


# --- when a limit ends: what agents and servers write, as a time ---

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("text", "ahead"),
    [
        # claude
        (f"Claude AI usage limit reached|{int(NOW + 7200)}", 2 * HOUR),
        (f"Claude AI usage limit reached|{int(NOW + 7200)}000", 2 * HOUR),
        ("You've hit your limit · resets 3pm (Europe/Berlin)", 2 * HOUR),
        ("You've hit your session limit · resets 12:50am (America/Los_Angeles)", 20 * HOUR + 50 * 60),
        ("You've hit your weekly limit · resets Nov 25, 3am (Europe/Dublin)", 4 * DAY + 15 * HOUR),
        ("You've hit your limit · resets Nov 25 at 3:30pm", 5 * DAY + 3.5 * HOUR),
        ("5-hour limit reached ∙ resets 3pm", 3 * HOUR),
        ("resets 12am", 12 * HOUR),
        ("resets 12pm", None),  # this very moment
        ("resets 11:58am (UTC)", None),  # just now, and not tomorrow
        ("resets 11am (UTC)", 23 * HOUR),
        ("resets at 14:00 UTC", 2 * HOUR),
        ("Your limit will reset at 5pm (Europe/Warsaw).", 4 * HOUR),
        ('"rate_limit_info":{"status":"rejected","resetsAt":1795190400}', 4 * HOUR),
        # codex
        ("or try again in 3 days 5 hours 2 minutes.", 3 * DAY + 5 * HOUR + 120),
        ("Try again in 12 minutes.", 720.0),
        ("try again in 1 day, 2 hours and 3 minutes", DAY + 2 * HOUR + 180),
        ("or try again at Nov 25th, 2026 8:19 PM.", 5 * DAY + 8 * HOUR + 19 * 60),
        ("try again at 12:16 PM.", 16 * 60.0),
        ("Please try again in 11.054s.", 11.054),
        ("try again in 250ms", 0.25),
        ('{"error":{"type":"usage_limit_reached","resets_at":1795189872}}', 13872.0),
        (r"{\"error\":{\"resets_in_seconds\":13872}}", 13872.0),
        # gemini
        ('"retryDelay": "34.07s"', 34.07),
        (r"\"retryDelay\": \"34.07s\"", 34.07),
        ("Please retry in 12.5s.", 12.5),
        ("Please retry in 1h2m3s.", 3723.0),
        ("GenerateRequestsPerDayPerProject ... Please retry in 12.5s. retryDelay: 12s", None),
        ("Your quota will reset after 8h44m7s.", 8 * HOUR + 44 * 60 + 7),
        ("quotaResetTimeStamp: '2026-11-20T19:14:08Z'", 7 * HOUR + 14 * 60 + 8),
        ("resets at 2026-11-20T13:00:00+00:00", HOUR),
        ("resets on 2026-11-20 13:00 UTC", HOUR),
        ("You will regain access on 2026-11-24 at 00:00 UTC.", 3 * DAY + 12 * HOUR),
        ("You will regain access on 2026-12-01 at 00:00 UTC.", None),  # too far ahead to be held for
        # headers
        ("retry-after: 30", 30.0),
        ('"retry-after":"30"', 30.0),
        ("retry_after_seconds=1.5", 1.5),
        ("retry after 5 minutes", 300.0),
        ("retrying in 6h16m - attempt #1", 6 * HOUR + 16 * 60),
        # nothing that can be meant
        ("", None),
        ("try again later", None),
        ("resets 3", None),
        ("resets 25:00 (UTC)", None),
        ("resets 13pm (UTC)", None),
        ("resets 3pm (Middle/Earth)", None),
        ("resets Feb 31, 3pm (UTC)", None),
        ("resets Foo 3, 3pm (UTC)", None),
        ("resets Jan 30, 11:30am (Asia/Calcutta)", None),  # more than eight days
        ("try again in 9 days", None),
        (f"usage limit reached|{int(NOW - 5)}", None),
        ("reached|9999999999999", None),
        ("error at 2026-11-20T13:00:00Z", None),
        ("it was 3pm (Europe/Berlin)", None),
        ("try again in 0 s", None),
        ("quotaResetTimeStamp: 2026-13-45T25:61:00Z", None),
        (f"usage limit reached|{int(NOW - 5)}, try again in 5 s", 5.0),
    ],
)
def test_find_reset(text: str, ahead: float | None) -> None:
    found = find_reset(text, NOW)
    assert (None if found is None else found - NOW) == pytest.approx(ahead, abs=1e-3)


def test_a_date_without_a_year_is_the_next_one() -> None:
    end_of_year = datetime(2026, 12, 30, 12, 0, tzinfo=timezone.utc).timestamp()
    assert find_reset("resets Jan 2, 12pm (UTC)", end_of_year) == end_of_year + 3 * DAY


def test_a_clock_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = find_reset("try again at 11:30 PM", NOW)  # it is 21:00 there
    finally:
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
    assert found == NOW + 2.5 * HOUR


@pytest.mark.parametrize(
    "at", [None, NOW, NOW - 1, NOW + MAX_AHEAD_S + 1, float("nan"), float("inf"), -1.0, 1e300]
)
def test_a_stated_time_that_cannot_be_meant(at: float | None) -> None:
    assert check_reset(at, NOW) is None
    assert check_reset((NOW + 5) * 1000, NOW) == NOW + 5, "milliseconds are known by their size"


PIECES = st.sampled_from(
    'resets |try again in |at |3am| (|Europe/Berlin|)|Jan 30, |99|99999999999999| days |retryDelay|"|: |1h|2m|'
    "reached\\|2026-11-20T|13:00|Z|+99:99|UTC|../x|\0".replace("\\|", "\x01").split("|")
).map(lambda piece: piece.replace("\x01", "|"))


@given(st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join), st.floats())
def test_it_never_raises(text: str, now: float) -> None:
    found = find_reset(text, now)
    assert found is None or now < found <= now + MAX_AHEAD_S
