"""Claude Code: how to start it and how to read its ``stream-json`` output (2.1).

Facts that are easy to get wrong: an API error ends in ``"subtype": "success"`` with ``is_error`` true; a
refused tool ends in exit code 0, and only ``permission_denials`` tells; a prompt like ``/help`` is taken for a
command of the program itself and succeeds without a turn.  Some versions gave out a limit or an API error as
the answer, with ``is_error`` false (anthropics/claude-code#79500).  A used up account answers HTTP 429 too; a
``rate_limit_event`` that names the limit tells it from mere haste and states its end (handarbeit/fabrik#1811,
#1815); mere haste has an event without them, and with an API key there is none.  In a conversation that goes on
``total_cost_usd`` and ``modelUsage`` are those of all its runs, while ``usage`` is the run's own, and without what
was used when a budget stopped it; ``model_usage_since_last_result`` has the run's own tokens and price.
The first ``result`` is not the end: while a job runs in the background it waits, and then takes another turn,
which begins with ``init`` and ends with a ``result`` of its own (`background`).

qwen prints the same kind of stream and uses this reader.  This module must not know how processes are run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import Any, Final

from sessionrun.agents.background import Background
from sessionrun.agents.markers import is_no_answer
from sessionrun.agents.reading import (
    AgentResult,
    Problem,
    Step,
    class_of_failure,
    conversation_at,
    cost_at,
    count_at,
    dig,
    error_line,
    finished,
    list_at,
    model_at,
    parse_time,
    sum_counts,
    text_at,
    tool_line,
    unfinished,
    whole_line,
)
from sessionrun.model.spec import AgentSpec
from sessionrun.model.usage import Usage

AGENT: Final = AgentSpec(
    name="claude",
    argv=("claude", "-p", "--output-format", "stream-json", "--verbose", "{model_args}", "{approve_args}"),
    model_args=("--model={model}",),
    approve_args=("--dangerously-skip-permissions",),
    continue_args=("--resume={conversation}",),
    budget_args=("--max-budget-usd={budget}",),
    output="claude",
)


_SUBTYPES: Final = {"error_max_turns": "max_turns", "error_max_budget_usd": "budget"}
_ENDINGS: Final = {"blocking_limit": "usage_limit", "aborted_tools": "aborted", "aborted_streaming": "aborted"}
"""Reason classes that `subtype` and `terminal_reason` of a result state by themselves."""


def read(events: Iterable[dict[str, Any]], ended: Set[str] = frozenset()) -> AgentResult:
    """The last ``result`` event, judged, and what became of the work in the background (`ended`: see there)."""
    model = conversation = result = usage = kind = None
    background, turn_is_open, erred = Background(), False, False
    limit: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for event in events:
        kind = event.get("type")
        background.see(event)
        if kind == "system" and event.get("subtype") == "init":
            model, conversation = model_at(event, "model"), conversation_at(event, "session_id")
            turn_is_open = True
        elif kind == "assistant":
            last = event
        elif kind == "rate_limit_event":
            limit = event
        elif kind == "result":
            result, usage, turn_is_open = event, _add_usage(usage, event), False
            erred = erred or event.get("is_error") is True
    resets_at = count_at(limit, "rate_limit_info", "resetsAt")
    named = text_at(limit, "rate_limit_info", "rateLimitType") or resets_at
    rejected = bool(named) and text_at(limit, "rate_limit_info", "status") == "rejected"
    known = AgentResult(conversation=conversation, model=model, resets_at=resets_at)
    if result is None:
        is_last = rejected and kind == "rate_limit_event"
        return unfinished(known, Problem("usage_limit", f"the limit {named} is reached") if is_last else None)
    problem = _problem_of(result, last, limited=rejected)
    if problem is None and turn_is_open:
        problem = Problem("incomplete_output", "the output ends before the result of its last turn")
    known = replace(
        known,
        text=text_at(result, "result"),
        conversation=conversation_at(result, "session_id") or conversation,
        usage=usage,
        turns=count_at(result, "num_turns"),
        resets_at=resets_at if rejected else None,
        is_final=not turn_is_open and not background.is_open,
        mended=erred,
    )
    return finished(known, problem, background.list_left(ended))


def render(event: dict[str, Any]) -> str:
    """Assistant text, tool calls and the final error of a stream."""
    kind = event.get("type")
    if kind == "assistant":
        return "".join(_render_block(block) for block in list_at(event, "message", "content"))
    return "".join(step.line for step in list_steps(event)) if kind == "result" else ""


def _render_block(block: object) -> str:
    kind = dig(block, "type")
    if kind == "text":
        return whole_line(text_at(block, "text"))
    return _call_line(block) if kind == "tool_use" else ""


def _call_line(block: object) -> str:
    return tool_line(text_at(block, "name"), dig(block, "input"))


def list_steps(event: dict[str, Any]) -> Iterator[Step]:
    """Calls of tools, with their times in versions that print some, and the final error."""
    at = parse_time(text_at(event, "timestamp")) or None
    for block in list_at(event, "message", "content"):
        kind = dig(block, "type")
        if kind == "tool_use":
            yield Step(text_at(block, "id"), _call_line(block), begun=at)
        elif kind == "tool_result":
            yield Step(text_at(block, "tool_use_id"), "", ended=at)
    if event.get("type") == "result" and event.get("is_error") is not False:
        yield Step(None, error_line(_message_of(event) or _ending_of(event)))


def _problem_of(result: dict[str, Any], last: dict[str, Any], *, limited: bool) -> Problem | None:
    """Why this result is a failure; None if it is a success.

    Args:
        last: the last message of the assistant; the program's own errors come as such, too.
        limited: whether the stream says that a limit of the account is reached.
    """
    message = _message_of(result) or ""
    if result.get("is_error") is True or result.get("subtype") != "success":
        return Problem(_class_of(result, message, last, limited=limited), message or _ending_of(result))
    if result.get("is_error") is not False or text_at(result, "result") is None:
        return Problem("bad_output", "the result event lacks is_error or result")
    if "refusal" in (result.get("stop_reason"), dig(last, "message", "stop_reason")):
        return Problem("refused", f"the model declined: {message}")
    if is_no_answer(message) or last.get("is_api_error_message") is True:
        return Problem(_class_of(result, message, last, limited=limited), message)
    if count_at(result, "num_turns") == 0:
        return Problem("agent_error", f"it answered without asking its model: {message}")
    denials = list_at(result, "permission_denials")
    if denials:
        tools = sorted({text_at(denial, "tool_name") or "?" for denial in denials})
        return Problem("denied", f"{len(denials)} tool calls were refused: {', '.join(tools)}")
    return None


def _class_of(result: dict[str, Any], message: str, last: dict[str, Any], *, limited: bool) -> str:
    stated = _SUBTYPES.get(str(result.get("subtype"))) or _ENDINGS.get(str(result.get("terminal_reason")))
    if stated is not None:
        return stated
    status = count_at(result, "api_error_status")
    if limited and status in (None, 429):
        return "usage_limit"
    if "refusal" in (result.get("stop_reason"), dig(last, "message", "stop_reason")):
        return "refused"
    reason_class = class_of_failure(message, status)
    if reason_class == "agent_error" and last.get("error") == "authentication_failed":
        return "auth"
    return "unknown" if reason_class == "agent_error" and not message else reason_class


def _message_of(result: dict[str, Any]) -> str | None:
    errors = [error for error in list_at(result, "errors") if isinstance(error, str)]
    return text_at(result, "result") or text_at(result, "error", "message") or (errors[0] if errors else None)


def _ending_of(result: dict[str, Any]) -> str:
    """What a failure without a message is called."""
    return text_at(result, "terminal_reason") or text_at(result, "subtype") or "the agent reports a failure"


def _add_usage(before: Usage | None, result: dict[str, Any]) -> Usage | None:
    """Tokens and cost of the run up to this result; versions that do not tell them by result state a total."""
    models = dig(result, "model_usage_since_last_result")
    if not isinstance(models, dict):
        return _usage_of(result)
    used = before or Usage(0, 0, 0.0, 0)
    for model in models.values():
        cached = count_at(model, "cacheReadInputTokens")
        sent = sum_counts(count_at(model, "inputTokens"), count_at(model, "cacheCreationInputTokens"), cached)
        used = used.plus(Usage(sent, count_at(model, "outputTokens"), cost_at(model, "costUSD"), cached))
    return used


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
        cached_input_tokens=count_at(usage, "cache_read_input_tokens"),
    )
