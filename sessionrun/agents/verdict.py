"""What really happened to a job: its wait status and what its agent says become one verdict.

Exit code 0 does not prove success and a code over 128 does not prove a signal (gemini: HTTP status modulo
256), so raw wait status, exit code, signal and verdict stay apart.  The verdict is `passed` or `failed`; that
a job was stopped or ran out of time is the scheduler's to say.  This module must not know files, processes
or clocks.

| what is known, first row that fits | verdict | reason class |
|---|---|---|
| the process could not be made | failed | `start_failed` |
| it was killed by a signal of a fault (SEGV, ABRT ...) | failed | `oom` where it says so, else `agent_crashed` |
| it was killed by another signal, its output says that it left work running | failed | `left_running` |
| sessionrun stopped it, and its output says what went wrong | failed | the agent's |
| it was killed by another signal | failed | `signal` |
| the agent says what went wrong, whatever the exit code | failed | the agent's, `unknown` if it does not say why |
| its result is missing, standard error has a known phrase | failed | that of the phrase |
| another exit code than 0, standard error ends in a trace | failed | `oom`, `agent_crashed` |
| another exit code than 0, its output began and broke off | failed | `agent_crashed` |
| another exit code than 0 | failed | `exit_code` |
| exit code 0, the agent's output is not what it should be | failed | `bad_output`, `incomplete_output` |
| exit code 0, the agent reports success or has no format | passed | none |
| another exit code than 0, no trace, the agent reports success after an error that it mended | passed | none |

A code that nothing explains is `exit_code` and not `unknown`: the code itself may tell its reader something.
"""

from __future__ import annotations

import errno as errnos
import os
import re
import signal as signals
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Final

from sessionrun.agents.markers import drop_retries, find_in_errors
from sessionrun.agents.reading import WITHOUT_RESULT, AgentResult, Problem, find_crash
from sessionrun.model.words import LEFT_RUNNING, REASONS, effect_of

MAX_AHEAD_S: Final = 8 * 86400.0
"""A limit of a week, and a day for clocks that differ."""

_JUST_NOW_S: Final = 300.0
"""A clock time that passed this little ago is meant as past, not as tomorrow's."""

_LOOKED_AT: Final = 16 * 1024
_LATEST: Final = 253_000_000_000.0
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}

# Words, not `re.compile`: `re` compiles a pattern, and keeps it, when it is used; a good run uses none.
# "Claude AI usage limit reached|1755615600"; {"resets_at": 1777936568}: claude, codex
_EPOCH: Final = r"(?i)reached\|(\d{10,13})\b|\bresets?_?at\\?[\"']?\s*[:=]\s*\\?[\"']?(\d{10,13})\b"
# {"resets_in_seconds": 13872}: codex; a Retry-After header; "retry_after": 30
_SECONDS: Final = (
    r"(?i)\b(?:resets_in_seconds|retry[-_ ]after(?:[-_](?:seconds|secs?))?)\\?[\"']?\s*[:=]\s*\\?[\"']?"
    r"(\d{1,9}(?:\.\d{1,9})?)(?:s\b|\\?[\"'}\s,]|\Z)"
)
# Google's RetryInfo and "Please retry in 12.5s": wrong where the quota is one of a day
_RETRY_DELAY: Final = (
    r"(?i)(?:retryDelay\\?[\"']?\s*[:=]\s*\\?[\"']?|please retry in )"
    r"((?:\d{1,9}(?:\.\d{1,12})?(?:ms|[smhd])){1,4})\b"
)
_PER_DAY: Final = r"(?i)PerDay|per\s+day|daily"
# "try again in 3 days 5 hours 2 minutes", "reset after 8h44m7s", "retrying in 6h16m"
_AMOUNT: Final = (
    r"\d{1,6}(?:\.\d{1,12})?\s?(?:weeks?|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?|ms|[smhdw])(?![a-z])"
)
_IN: Final = (
    r"(?i)\b(?:try again|retry(?:ing)?|resets?|available(?: again)?)\s+(?:in|after)\s+(?:about\s+)?"
    rf"({_AMOUNT}(?:,?\s?(?:and\s)?{_AMOUNT}){{0,4}})"
)
_PART: Final = r"(?i)(\d{1,6}(?:\.\d{1,12})?)\s?(ms|[wdhms])"
_WHEN: Final = r"(?i)\b(?:resets?|try again|retry|available(?: again)?)(?:_?time_?stamp)?(?: (?:at|on|until))?"
# "quotaResetTimeStamp": "2025-10-20T19:14:08Z"; "You will regain access on 2026-12-01 at 00:00 UTC": Anthropic
_ISO: Final = (
    r"(?i)(?:reset[\w \\\"':=]{0,24}?|regain access on )"
    r"(\d{4}-\d\d-\d\d(?:[T ]| at )\d\d:\d\d(?::\d\d)?)(?:\.\d{1,9})?\s?(Z|UTC|[+-]\d\d:?\d\d)"
)
# "resets 3:30am (Asia/Calcutta)", "resets Jan 30, 11am (UTC)", "try again at Jul 5th, 2026 8:19 PM"
_CLOCK: Final = (
    _WHEN
    + r" (?:(?P<month>[a-z]{3})[a-z]{0,6}\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,?(?: (?P<year>\d{4}))?(?: at)? )?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?\s?(?P<half>[ap]m)?(?:\s?\(?(?P<zone>[A-Za-z]+(?:/[A-Za-z_+-]+){1,2}|UTC|GMT)\)?)?"
)


def find_reset(text: str, now: float) -> float | None:
    """The time (epoch seconds) at which the text says that a limit ends; None without one that can be meant.

    Args:
        text: the words of a failure.
        now: epoch seconds; a time that is past, or more than `MAX_AHEAD_S` ahead, counts as none.
    """
    looked_at = text[-_LOOKED_AT:]
    for pattern, read in _SEARCHES:
        for match in re.finditer(pattern, looked_at):
            # no date or zone, or a date beyond what the system's calendar knows
            with suppress(ValueError, LookupError, OverflowError, OSError):
                if (checked := check_reset(read(match, now), now)) is not None:
                    return checked
    return None


def check_reset(at: float | None, now: float) -> float | None:
    """A stated end of a limit, epoch seconds or milliseconds; None when it cannot be meant."""
    if at is None or not 0 <= now < _LATEST:
        return None
    if at > 1e11:
        at /= 1000
    return float(at) if now < at <= now + MAX_AHEAD_S else None


def _read_date(match: re.Match[str], now: float) -> float:
    zone = match.group(2).upper().replace("UTC", "Z").replace("Z", "+00:00")
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    return datetime.fromisoformat(match.group(1).replace(" at ", "T").replace(" ", "T") + zone).timestamp()


def _read_wait(match: re.Match[str], now: float) -> float | None:
    if match.group(0).lower().startswith(("retry", "please retry")) and re.search(_PER_DAY, match.string):
        return None
    parts = re.findall(_PART, match.group(1))
    return now + sum(float(number) * _UNIT_S[unit.lower()] for number, unit in parts)


def _read_clock(match: re.Match[str], now: float) -> float | None:
    """The next such time after now; None where the number may be anything.

    Raises:
        ValueError, LookupError, OSError: a word is not a month, a day or a zone.
    """
    hour, minute, half = int(match["hour"]), int(match["minute"] or 0), (match["half"] or "").lower()
    if not half and match["minute"] is None:
        return None
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    zone: tzinfo | None = None  # the local one
    if match["zone"]:
        from zoneinfo import ZoneInfo

        zone = timezone.utc if match["zone"].upper() in ("UTC", "GMT") else ZoneInfo(match["zone"])
    today = datetime.fromtimestamp(now, zone)
    clock = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if match["month"] is None:
        at = clock.timestamp()
        return at if at > now - _JUST_NOW_S else (clock + timedelta(days=1)).timestamp()
    dated = clock.replace(
        year=int(match["year"] or today.year),
        month=_MONTHS.index(match["month"].lower()) + 1,
        day=int(match["day"]),
    )
    if match["year"] is None and dated.timestamp() < now - 180 * 86400:
        dated = dated.replace(year=dated.year + 1)
    return dated.timestamp()


_SEARCHES: Final[tuple[tuple[str, Callable[[re.Match[str], float], float | None]], ...]] = (
    (_EPOCH, lambda match, now: float(match.group(1) or match.group(2))),
    (_ISO, _read_date),
    (_SECONDS, lambda match, now: now + float(match.group(1))),
    (_CLOCK, _read_clock),
    (_RETRY_DELAY, _read_wait),
    (_IN, _read_wait),
)
"""In the order in which they are believed."""


MAX_REASON: Final = 300

# What a terminal or a JSON reader could choke on: C0, C1, line separators, bidirectional controls, surrogates.
_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+"
)

_FAULTS: Final = frozenset(
    {
        signals.SIGSEGV,
        signals.SIGABRT,
        signals.SIGBUS,
        signals.SIGILL,
        signals.SIGFPE,
        signals.SIGSYS,
        signals.SIGTRAP,
    }
)
"""Signals that a process brings upon itself."""


def find_problem(
    wait_status: int | None,
    errno: int | None,
    detail: str | None,
    result: AgentResult | None,
    stderr: str = "",
    *,
    stopped: bool = False,
) -> Problem | None:
    """What went wrong with an ended job, by the table above; None: nothing.

    Args:
        wait_status: raw status of wait(2); None when no process was made.
        errno: why none was made.
        detail: one more word on that, such as the program's path.
        result: what the agent's output says; None when nothing reads it (setup, check, plain text).
        stderr: the end of its standard error, as far as that may tell of the agent; '' where it may not.
        stopped: sessionrun had it stopped, so that a signal says nothing.
    """
    if wait_status is None:
        code = f"{os.strerror(errno)} ({errnos.errorcode.get(errno, errno)})" if errno else None
        return Problem("start_failed", ": ".join(filter(None, (detail, code))) or "no process was made")
    exit_code, signal = split_status(wait_status)
    if signal is not None:
        says = result.problem if result is not None and signal not in _FAULTS else None
        if says and says.reason_class not in WITHOUT_RESULT and (stopped or says.reason_class == LEFT_RUNNING):
            return says
        return _judge_signal(signal, stderr, core=os.WCOREDUMP(wait_status))
    if exit_code is None:
        return Problem("unknown", f"odd wait status {wait_status:#x}")
    return _judge_code(exit_code, result, stderr)


def split_status(wait_status: int | None) -> tuple[int | None, int | None]:
    """The exit code and the signal in a raw status of wait(2): one of them, or neither."""
    if wait_status is None:
        return None, None
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return (os.WEXITSTATUS(wait_status) if os.WIFEXITED(wait_status) else None), None


def format_reason(reason_class: str, text: str) -> str:
    """``class: text`` as one line of at most `MAX_REASON` characters without control characters.

    Without a text it says what the class means.
    """
    meaning = REASONS[reason_class].meaning if reason_class in REASONS else "it does not say why"
    words = _CONTROLS.sub(" ", text).split() or [meaning]
    line = " ".join((f"{reason_class}:", *words))
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


def _judge_signal(number: int, stderr: str, *, core: bool) -> Problem:
    try:
        name = signals.Signals(number).name
    except ValueError:
        name = "signal"
    text = f"killed by {name} ({number})" + (", core dumped" if core else "")
    if number not in _FAULTS:
        return Problem("signal", text)
    crash = find_crash(stderr)
    return Problem(crash[0], f"{text}: {crash[1]}") if crash else Problem("agent_crashed", text)


def _judge_code(code: int, result: AgentResult | None, stderr: str) -> Problem | None:
    failed = result.problem if result is not None else None
    if failed is not None and failed.reason_class not in WITHOUT_RESULT:
        return Problem(failed.reason_class, _with_code(failed.text, code))
    mended = result is not None and result.mended and find_crash(stderr) is None
    if failed is None and (mended or not code):
        return None
    # beside a result that claims success, a phrase may stem from a request that was tried again
    phrase = find_in_errors(stderr) if result is None or failed is not None else None
    if phrase is not None and (code or failed is not None):
        return Problem(phrase[0], _with_code(phrase[1], code))
    if not code:
        return failed
    crash = find_crash(stderr)
    if crash is not None:
        return Problem(crash[0], _with_code(crash[1], code))
    if failed is not None and result is not None and (result.conversation or result.text or result.model):
        return Problem("agent_crashed", _with_code(failed.text, code))
    return Problem("exit_code", f"exit code {code}" + (f"; {failed.text}" if failed else ""))


def _with_code(text: str, code: int) -> str:
    return f"{text[: MAX_REASON - 60]} (exit code {code})" if code else text


def find_end_of_limit(reason_class: str, result: AgentResult | None, stderr: str, now: float) -> float | None:
    """When the provider's limit ends (epoch seconds): what the stream states, else what the words say.

    `now` is wall time (epoch seconds): a limit's end is often told relative to it.
    """
    if effect_of(reason_class) == "none":
        return None
    stated = check_reset(result.resets_at, now) if result else None
    if stated is not None:
        return stated
    words = result.problem.words if result and result.problem else None
    return find_reset(words or drop_retries(stderr), now)
