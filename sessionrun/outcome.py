"""What really happened to a job: its wait status and what its agent says become one verdict.

Exit code 0 is no proof of success and a code over 128 is no proof of a signal (gemini: HTTP status modulo
256), so raw wait status, exit code, signal and verdict stay apart.  The verdict is `passed` or `failed`; that
a job was stopped or ran out of time is the scheduler's to say.  This module must not know files, processes
or clocks.

| what is known | verdict | reason class |
|---|---|---|
| the process could not be made | failed | `start_failed` |
| it was killed by a signal | failed | `signal` |
| the agent says what went wrong, whatever the exit code | failed | the agent's |
| another exit code than 0, the agent's output is missing or silent on it | failed | `exit_code` |
| exit code 0, the agent's output is not what it should be | failed | `bad_output`, `incomplete_output` |
| exit code 0, the agent reports success or has no format | passed | none |
"""

from __future__ import annotations

import errno as errnos
import os
import re
import signal as signals
from typing import Final

from sessionrun.agents import WITHOUT_RESULT, AgentResult
from sessionrun.events import JobFinished
from sessionrun.model import JobKey

MAX_REASON: Final = 300

# What a terminal or a JSON reader could choke on: C0, C1, line separators, bidirectional controls, surrogates.
_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+"
)


def judge_exit(
    key: JobKey,
    *,
    wait_status: int | None,
    errno: int | None,
    detail: str | None,
    result: AgentResult | None,
) -> JobFinished:
    """Judge one ended job.

    Args:
        key: the job.
        wait_status: raw status of wait(2); None when no process was made.
        errno: why none was made.
        detail: one more word on that, such as the program's path.
        result: what the agent's output says; None when nothing reads it (setup, check).
    """
    exit_code = signal = None
    if wait_status is not None:
        if os.WIFSIGNALED(wait_status):
            signal = os.WTERMSIG(wait_status)
        elif os.WIFEXITED(wait_status):
            exit_code = os.WEXITSTATUS(wait_status)
    problem = _problem_of(wait_status, exit_code, signal, errno, detail, result)
    return JobFinished(
        key=key,
        verdict="failed" if problem else "passed",
        reason_class=problem[0] if problem else None,
        reason=format_reason(*problem) if problem else None,
        wait_status=wait_status,
        exit_code=exit_code,
        signal=signal,
        conversation=result.conversation if result else None,
        model=result.model if result else None,
        usage=result.usage if result else None,
    )


def format_reason(reason_class: str, text: str) -> str:
    """``class: text`` as one line of at most `MAX_REASON` characters without control characters."""
    line = " ".join(_CONTROLS.sub(" ", f"{reason_class}: {text}").split())
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


def _problem_of(
    wait_status: int | None,
    exit_code: int | None,
    signal: int | None,
    errno: int | None,
    detail: str | None,
    result: AgentResult | None,
) -> tuple[str, str] | None:
    """Class and text of the failure, None for none; the rows of the table above, in order."""
    if wait_status is None:
        return "start_failed", _start_problem(errno, detail)
    if signal is not None:
        return "signal", _signal_text(signal, core=os.WCOREDUMP(wait_status))
    said = None if result is None or result.ok else (result.reason_class or "agent_error", result.reason)
    if exit_code is None:
        return "exit_code", f"odd wait status {wait_status:#x}"
    if exit_code and (said is None or said[0] in WITHOUT_RESULT):
        return "exit_code", f"exit code {exit_code}" + (f"; {said[1]}" if said and said[1] else "")
    if said is None:
        return None
    text = said[1] or "the agent reports a failure"
    return said[0], f"{text[: MAX_REASON - 60]} (exit code {exit_code})" if exit_code else text


def _start_problem(errno: int | None, detail: str | None) -> str:
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
