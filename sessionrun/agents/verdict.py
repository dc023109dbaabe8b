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
from typing import Final, NamedTuple

from sessionrun.agents.markers import drop_retries, find_in_errors
from sessionrun.agents.reading import WITHOUT_RESULT, AgentResult, find_crash
from sessionrun.agents.resets import check_reset, find_reset
from sessionrun.model.reasons import LEFT_RUNNING, REASONS, effect_of

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


class Problem(NamedTuple):
    """Why a job failed: the published word for it, and what there is to say."""

    reason_class: str
    text: str


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
        return Problem("start_failed", _describe_start(errno, detail))
    exit_code, signal = split_status(wait_status)
    if signal is not None:
        says = result is not None and result.reason_class not in (None, *WITHOUT_RESULT) and signal not in _FAULTS
        if result is not None and says and (stopped or result.reason_class == LEFT_RUNNING):
            return Problem(result.reason_class or "unknown", result.reason or "")
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
    text = _signal_text(number, core=core)
    if number not in _FAULTS:
        return Problem("signal", text)
    crash = find_crash(stderr)
    return Problem(crash[0], f"{text}: {crash[1]}") if crash else Problem("agent_crashed", text)


def _judge_code(code: int, result: AgentResult | None, stderr: str) -> Problem | None:
    """The failure of a process that ended by itself; None for none."""
    failed = result if result is not None and not result.ok else None
    if failed is not None and failed.reason_class not in WITHOUT_RESULT:
        text = failed.reason or "the agent reports a failure"
        return Problem(failed.reason_class or "unknown", _with_code(text, code))
    mended = result is not None and result.mended and find_crash(stderr) is None
    if failed is None and (mended or not code):
        return None
    # beside a result that claims success, a phrase may stem from a request that was tried again
    phrase = find_in_errors(stderr) if result is None or failed is not None else None
    if phrase is not None and (code or failed is not None):
        return Problem(phrase[0], _with_code(phrase[1], code))
    if not code:
        return Problem(failed.reason_class or "unknown", failed.reason or "") if failed else None
    crash = find_crash(stderr)
    if crash is not None:
        return Problem(crash[0], _with_code(crash[1], code))
    reason = failed.reason if failed else None
    if failed is not None and (failed.conversation or failed.text or failed.model):
        return Problem("agent_crashed", _with_code(reason or "the output broke off", code))
    return Problem("exit_code", f"exit code {code}" + (f"; {reason}" if reason else ""))


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
    end = find_reset(result.words, now) if result and result.words else None
    return end if end is not None or (result and result.words) else find_reset(drop_retries(stderr), now)


def _describe_start(errno: int | None, detail: str | None) -> str:
    words = [detail] if detail else []
    if errno is not None:
        words.append(f"{os.strerror(errno)} ({errnos.errorcode.get(errno, errno)})")
    return ": ".join(words) or "no process was made"


def _signal_text(number: int, *, core: bool) -> str:
    try:
        name = signals.Signals(number).name
    except ValueError:
        name = "signal"
    return f"killed by {name} ({number})" + (", core dumped" if core else "")
