"""Claude Code: how to start it and how to read its ``stream-json`` output (2.1).

Facts that are easy to get wrong: an API error ends in ``"subtype": "success"`` with ``is_error`` true; a
refused tool ends in exit code 0, and only ``permission_denials`` tells; a prompt like ``/help`` is taken for a
command of the program itself and succeeds without a turn.  qwen prints the same kind of stream and uses this
reader.  This module must not know how processes are run.
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
    list_at,
    model_at,
    one_line,
    sum_counts,
    text_at,
    tool_line,
    unfinished,
    whole_line,
)
from sessionrun.model import AgentSpec, Usage

AGENT: Final = AgentSpec(
    name="claude",
    argv=("claude", "-p", "--output-format", "stream-json", "--verbose", "{model_args}", "{approve_args}"),
    model_args=("--model={model}",),
    approve_args=("--dangerously-skip-permissions",),
    output="claude",
)


def read(events: Iterable[dict[str, Any]]) -> AgentResult:
    """The last ``result`` event, judged."""
    model = conversation = result = None
    said_error: str | None = None
    for event in events:
        kind = event.get("type")
        if kind == "system" and event.get("subtype") == "init":
            model, conversation = model_at(event, "model"), conversation_at(event, "session_id")
        elif kind == "assistant":
            said_error = text_at(event, "error")
        elif kind == "result":
            result = event
    if result is None:
        return unfinished(conversation=conversation, model=model)
    problem = _problem_of(result, said_error)
    return AgentResult(
        ok=problem is None,
        text=text_at(result, "result"),
        reason_class=problem[0] if problem else None,
        reason=problem[1] if problem else None,
        conversation=conversation_at(result, "session_id") or conversation,
        model=model,
        usage=_usage_of(result),
        turns=count_at(result, "num_turns"),
    )


def render(event: dict[str, Any]) -> str:
    """Assistant text, tool calls and the final error of a stream."""
    kind = event.get("type")
    if kind == "assistant":
        return "".join(_render_block(block) for block in list_at(event, "message", "content"))
    if kind == "result" and event.get("is_error") is not False:
        return error_line(_message_of(event))
    return ""


def _render_block(block: object) -> str:
    kind = dig(block, "type")
    if kind == "text":
        return whole_line(text_at(block, "text"))
    if kind == "tool_use":
        return tool_line(text_at(block, "name"), dig(block, "input"))
    return ""


def _problem_of(result: dict[str, Any], said_error: str | None) -> tuple[str, str] | None:
    """Why this result is no success, as class and reason; None when it is one."""
    subtype = result.get("subtype")
    if result.get("is_error") is True or subtype != "success":
        message = _message_of(result)
        return _class_of(result, message, said_error), one_line(message)
    if result.get("is_error") is not False or text_at(result, "result") is None:
        return "bad_output", "the result event lacks is_error or result"
    if count_at(result, "num_turns") == 0:
        return "agent_error", one_line(f"it answered without asking its model: {_message_of(result)}")
    denials = list_at(result, "permission_denials")
    if denials:
        tools = sorted({text_at(denial, "tool_name") or "?" for denial in denials})
        return "denied", one_line(f"{len(denials)} tool calls were refused: {', '.join(tools)}")
    return None


def _class_of(result: dict[str, Any], message: str, said_error: str | None) -> str:
    if result.get("subtype") == "error_max_turns":
        return "max_turns"
    status = count_at(result, "api_error_status")
    if status is not None:
        return class_of_status(status)
    return "auth" if said_error == "authentication_failed" else class_of_message(message)


def _message_of(result: dict[str, Any]) -> str:
    errors = [error for error in list_at(result, "errors") if isinstance(error, str)]
    return (
        text_at(result, "result")
        or text_at(result, "error", "message")
        or (errors[0] if errors else None)
        or text_at(result, "subtype")
        or "an error without a message"
    )


def _usage_of(result: dict[str, Any]) -> Usage | None:
    """Tokens of the whole run; input counts what was written to and read from the cache as well.

    Claude counts those apart; qwen, which has no `cache_creation_input_tokens`, within `input_tokens`.
    """
    usage = dig(result, "usage")
    if not isinstance(usage, dict):
        return None
    read_apart = "cache_creation_input_tokens" in usage
    return Usage(
        input_tokens=sum_counts(
            count_at(usage, "input_tokens"),
            count_at(usage, "cache_creation_input_tokens"),
            count_at(usage, "cache_read_input_tokens") if read_apart else None,
        ),
        output_tokens=count_at(usage, "output_tokens"),
        cost_usd=cost_at(result, "total_cost_usd"),
    )
