"""OpenCode: how to start it and how to read the JSON lines of ``opencode run --format json`` (1.18).

There is no final event: a run is complete when its last step ended with the reason ``stop`` and no ``error`` event
came after that.  An ``error`` before it was mended: the step was tried again.  Some versions end with exit code 1
all the same (anomalyco/opencode#50062).  A conversation belongs to the directory that it began in: from another
one ``--session`` edits there and then never ends.  Tokens and cost are the run's own, also where it goes on with
one.  In a new home several that start at once make its database at the same time, and some fail.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from sessionrun.agents.reading import (
    AgentResult,
    Logged,
    Problem,
    Step,
    class_of_failure,
    conversation_at,
    cost_at,
    count_at,
    dig,
    error_line,
    finished,
    parse_time,
    read_log,
    sum_counts,
    text_at,
    tool_line,
    unfinished,
    whole_line,
)
from sessionrun.model.spec import AgentSpec
from sessionrun.model.usage import Usage

AGENT: Final = AgentSpec(
    name="opencode",
    argv=("opencode", "run", "--format", "json", "{model_args}", "{approve_args}"),
    model_args=("--model={model}",),
    approve_args=("--auto",),
    continue_args=("--session={conversation}",),
    output="opencode",
)


def read(events: Iterable[dict[str, Any]]) -> AgentResult:
    """The end of the last step, the last text, tokens and cost of all steps."""
    conversation = text = error = stop = refused = None
    mended = False
    usage = Usage()
    turns = 0
    for event in events:
        kind = event.get("type")
        conversation = conversation_at(event, "sessionID") or conversation
        if kind == "error":
            error = event
        elif kind == "step_start":
            stop = None
        elif kind == "text":
            text = text_at(event, "part", "text") or text
        elif kind == "tool_use":
            # the run ends after a call that was refused, with exit code 0
            is_refused = "rejected permission" in (text_at(event, "part", "state", "error") or "")
            refused = (text_at(event, "part", "tool") or "?") if is_refused else None
        elif kind == "step_finish":
            stop = text_at(event, "part", "reason")
            if stop == "stop" and error is not None:
                error, mended = None, True
            turns += 1
            usage = usage.plus(_usage_of(dig(event, "part")))
    known = AgentResult(text=text, conversation=conversation, usage=usage if turns else None)
    if error is None and stop is None:
        return unfinished(known)
    known = replace(known, turns=turns, is_final=error is None and stop == "stop", mended=mended)
    return finished(known, _problem_of_end(stop, refused) if error is None else _problem_of_error(error))


def find_last_error(
    folder: str | None, environ: Mapping[str, str], cwd: str, conversation: str | None
) -> Logged | None:
    """The failure of the last request, as its own log has it: it prints nothing while it asks again.

    All processes write into one log.  A line names its process as `run`, and mostly the conversation; the first
    line of a process names its directory.
    """
    base = environ.get("XDG_DATA_HOME") or os.path.join(environ.get("HOME", ""), ".local/share")
    path = os.path.join(folder or os.path.join(base, "opencode"), "log/opencode.log")
    elsewhere: set[str] = set()
    failed: dict[str, Logged] = {}
    for raw in read_log(path):
        line = raw.decode("utf-8", "replace")
        run = _find_word(r"run=(\S+)", line)
        directory = _find_word(r' message="creating instance" directory="?(.+?)"?$', line.rstrip())
        if directory not in ("", cwd, os.path.realpath(cwd)):
            elsewhere.add(run)
        talks_in = _find_word(r" session\.id=(\S+)", line)
        if "small=true" in line or (conversation and talks_in not in ("", conversation)):
            continue  # it asks for a title, or another conversation does
        if " message=stream " in line:
            failed.pop(run, None)
        elif "level=ERROR" in line and (words := _find_word(r' error(?:\.error)?="((?:[^"\\]|\\.)*)"', line)):
            reason_class = class_of_failure(words)
            at = parse_time(_find_word(r"timestamp=(\S+)", line)) or os.path.getmtime(path)
            failed[run] = Logged(
                at, Problem("api_error" if reason_class == "agent_error" else reason_class, words)
            )
    own = [logged for run, logged in failed.items() if run not in elsewhere]
    return max(own, key=lambda logged: logged.at, default=None)


def _find_word(pattern: str, line: str) -> str:
    match = re.search(pattern, line)
    return match.group(1) if match else ""


def read_text(event: dict[str, Any]) -> str:
    return whole_line(text_at(event, "part", "text")) if event.get("type") == "text" else ""


def list_steps(event: dict[str, Any]) -> Iterator[Step]:
    """Calls of tools, and errors; one event has a call with its begin and its end."""
    kind = event.get("type")
    if kind == "tool_use":
        state = dig(event, "part", "state")
        begun, ended = (count_at(state, "time", name) for name in ("start", "end"))  # in milliseconds
        yield Step(
            text_at(event, "part", "callID"),
            tool_line(text_at(event, "part", "tool"), dig(state, "input")),
            begun and begun / 1000,
            ended and ended / 1000,
        )
    elif kind == "error":
        yield Step(None, error_line(_message_of(event)))


def _problem_of_end(stop: str | None, refused: str | None) -> Problem | None:
    if stop == "stop":
        return None
    if refused is not None:
        return Problem("denied", f"a tool call was refused: {refused}")
    if stop == "content-filter":
        return Problem("refused", "the last step ended with 'content-filter'")
    return Problem("incomplete_output", f"the last step ended with {stop!r}, not with 'stop'")


def _problem_of_error(error: dict[str, Any]) -> Problem:
    """The error's name and the server's answer tell more than its message, which is for people."""
    name = text_at(error, "error", "name") or ""
    parts = [name, _message_of(error), text_at(error, "error", "data", "responseBody")]
    after = text_at(error, "error", "data", "responseHeaders", "retry-after")
    parts += [f"retry-after: {after}"] if after else []
    words = "\n".join(part for part in parts if part)
    if name == "MessageAbortedError":
        return Problem("aborted", _message_of(error), words)
    status = count_at(error, "error", "data", "statusCode")
    known = name or status is not None or text_at(error, "error", "data", "message")
    return Problem(class_of_failure(words, status) if known else "unknown", _message_of(error), words)


def _message_of(error: dict[str, Any]) -> str:
    return (
        text_at(error, "error", "data", "message")
        or text_at(error, "error", "message")
        or text_at(error, "error", "name")
        or "an error without a message"
    )


def _usage_of(part: object) -> Usage:
    """One step; its input tokens come apart from the cached ones, its reasoning apart from the output."""
    tokens = dig(part, "tokens")
    return Usage(
        input_tokens=sum_counts(
            count_at(tokens, "input"), count_at(tokens, "cache", "read"), count_at(tokens, "cache", "write")
        ),
        output_tokens=sum_counts(count_at(tokens, "output"), count_at(tokens, "reasoning")),
        cost_usd=cost_at(part, "cost"),
        cached_input_tokens=count_at(tokens, "cache", "read"),
    )
