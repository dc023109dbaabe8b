"""OpenCode: how to start it and how to read the JSON lines of ``opencode run --format json`` (1.18).

There is no final event: a run is complete when its last step ended with the reason ``stop`` and no ``error``
event came.  This module must not know how processes are run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sessionrun.agents.reading import (
    AgentResult,
    class_of_message,
    class_of_status,
    conversation_at,
    cost_at,
    count_at,
    dig,
    error_line,
    one_line,
    sum_counts,
    text_at,
    tool_line,
    unfinished,
    whole_line,
)
from sessionrun.model import AgentSpec, Usage

AGENT: Final = AgentSpec(
    name="opencode",
    argv=("opencode", "run", "--format", "json", "{model_args}", "{approve_args}"),
    model_args=("--model={model}",),
    approve_args=("--auto",),
    output="opencode",
)


def read(events: Iterable[dict[str, Any]]) -> AgentResult:
    """The end of the last step, the last text, tokens and cost of all steps."""
    conversation = text = error = stop = refused = None
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
            refused = _refused_tool(event)
        elif kind == "step_finish":
            stop = text_at(event, "part", "reason")
            turns += 1
            usage = usage.plus(_usage_of(dig(event, "part")))
    if error is None and stop is None:
        return unfinished(text=text, conversation=conversation, usage=usage if turns else None)
    problem = _problem_of(error, stop, refused)
    return AgentResult(
        ok=problem is None,
        text=text,
        reason_class=problem[0] if problem else None,
        reason=problem[1] if problem else None,
        conversation=conversation,
        usage=usage if turns else None,
        turns=turns,
    )


def render(event: dict[str, Any]) -> str:
    """Text, tool calls (each is printed when it has ended) and errors."""
    kind = event.get("type")
    if kind == "text":
        return whole_line(text_at(event, "part", "text"))
    if kind == "tool_use":
        return tool_line(text_at(event, "part", "tool"), dig(event, "part", "state", "input"))
    return error_line(_message_of(event)) if kind == "error" else ""


def _problem_of(error: dict[str, Any] | None, stop: str | None, refused: str | None) -> tuple[str, str] | None:
    if error is not None:
        message = _message_of(error)
        status = count_at(error, "error", "data", "statusCode")
        kind = class_of_message(message) if status is None else class_of_status(status)
        return kind, one_line(message)
    if stop != "stop" and refused is not None:
        return "denied", one_line(f"a tool call was refused: {refused}")
    if stop != "stop":
        return "incomplete_output", one_line(f"the last step ended with {stop!r}, not with 'stop'")
    return None


def _refused_tool(event: dict[str, Any]) -> str | None:
    """The tool of a refused call; the run ends after one, with exit code 0."""
    said = text_at(event, "part", "state", "error") or ""
    return (text_at(event, "part", "tool") or "?") if "rejected permission" in said else None


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
    )
