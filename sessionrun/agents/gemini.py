"""Gemini CLI: how to start it and how to read its ``stream-json`` output (0.61).

Facts that are easy to get wrong: the exit code of an API error is the HTTP status modulo 256, so a code over 128
is not a signal; after TERM it ends with exit code 0; ``--resume`` takes a conversation's id as well, which its
help does not say, in the directory that it began in, and then counts the tokens of that run alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from sessionrun.agents.reading import (
    MAX_LINE_BYTES,
    AgentResult,
    Problem,
    Step,
    class_of_failure,
    conversation_at,
    dig,
    error_line,
    finished,
    model_at,
    parse_time,
    text_at,
    tool_line,
    unfinished,
    usage_at,
    whole_line,
)
from sessionrun.model.spec import AgentSpec

AGENT: Final = AgentSpec(
    name="gemini",
    argv=("gemini", "--output-format", "stream-json", "--skip-trust", "{model_args}", "{approve_args}"),
    model_args=("--model={model}",),
    approve_args=("--yolo",),
    continue_args=("--resume={conversation}",),
    output="gemini",
)


def read(events: Iterable[dict[str, Any]]) -> AgentResult:
    """The ``result`` event and the last unbroken piece of the assistant's text."""
    model = conversation = result = None
    answer: list[str] = []
    size = 0
    broken_off = erred = False
    for event in events:
        kind = event.get("type")
        erred = erred or kind == "error"
        if kind == "init":
            model, conversation = model_at(event, "model"), conversation_at(event, "session_id")
        elif kind == "tool_use":
            broken_off = True
        elif kind == "result":
            result = event
        elif kind == "message" and event.get("role") == "assistant":
            piece = text_at(event, "content") or ""
            if broken_off or event.get("delta") is not True:
                answer, size, broken_off = [], 0, False
            if piece and size + len(piece) <= MAX_LINE_BYTES:
                answer.append(piece)
                size += len(piece)
    known = AgentResult(text="".join(answer) or None, conversation=conversation, model=model)
    if result is None:
        return unfinished(known)
    usage, used = usage_at(dig(result, "stats"), "cached"), dig(result, "stats", "models")
    if model == "auto":  # it is none: the one that answered is meant, and none where there were several
        names = [*used] if isinstance(used, dict) else []
        model = model_at({"model": names[0]}, "model") if len(names) == 1 else None
    known = replace(known, model=model, usage=usage, is_final=True, mended=erred)
    return finished(known, _problem_of(result))


def read_text(event: dict[str, Any]) -> str:
    """Assistant text as it comes, in pieces of a line, and the end of its line."""
    kind = event.get("type")
    if kind == "message" and event.get("role") == "assistant":
        text = text_at(event, "content")
        return text or "" if event.get("delta") is True else whole_line(text)
    return "\n" if kind in ("tool_use", "error", "result") else ""


def list_steps(event: dict[str, Any]) -> Iterator[Step]:
    """Calls of tools with their times, and errors."""
    kind, key = event.get("type"), text_at(event, "tool_id")
    at = parse_time(text_at(event, "timestamp")) or None
    if kind == "tool_use":
        yield Step(key, tool_line(text_at(event, "tool_name"), dig(event, "parameters")), begun=at)
    elif kind == "tool_result":
        yield Step(key, "", ended=at)
    elif kind == "error":
        yield Step(None, error_line(text_at(event, "message")))
    elif kind == "result" and (problem := _problem_of(event)) is not None:
        yield Step(None, error_line(problem.text))


def _problem_of(result: dict[str, Any]) -> Problem | None:
    if result.get("status") == "success":
        return None
    message = text_at(result, "error", "message")
    if not message:
        return Problem("unknown", "an error without a message")
    kind = text_at(result, "error", "type")
    if kind == "FatalTurnLimitedError":
        return Problem("max_turns", message)
    return Problem(class_of_failure(message), message)
