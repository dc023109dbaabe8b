"""Codex: how to start it and how to read the JSON lines of ``codex exec --json`` (0.169).

Facts that are easy to get wrong: an item of type ``error`` may be a mere warning, and so may an ``error`` event (a
reconnect); only ``turn.completed`` and ``turn.failed`` decide.  A run that was stopped writes neither.  A command
that has begun and not ended when the turn ends is killed without a word.  In a conversation that goes on its
tokens are those of all runs so far (`table.COUNTS_ALL`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from sessionrun.agents.reading import (
    MAX_NAME,
    AgentResult,
    Problem,
    Step,
    class_of_failure,
    conversation_at,
    dig,
    error_line,
    finished,
    one_line,
    parse_event,
    text_at,
    tool_line,
    unfinished,
    usage_at,
    whole_line,
)
from sessionrun.model.spec import AgentSpec

AGENT: Final = AgentSpec(
    name="codex",
    argv=(
        "codex",
        "exec",
        "{continue_args}",
        "--json",
        "--skip-git-repo-check",
        "{model_args}",
        "{approve_args}",
        "-",
    ),
    model_args=("--model={model}",),
    approve_args=("--dangerously-bypass-approvals-and-sandbox",),
    continue_args=("resume", "{conversation}"),
    output="codex",
)


_GOES_ON: Final = frozenset(("command_execution", "collab_tool_call"))
"""Items that may go on while the model answers."""

_NO_TOOLS: Final = frozenset(("command_execution", "reasoning", "agent_message", "error"))
"""Finished items that call no tool, or one of which was told when it began."""


def read(events: Iterable[dict[str, Any]]) -> AgentResult:
    """The last turn's end and the last message."""
    text = conversation = end = error = None
    running: dict[str, str] = {}
    erred = False
    for event in events:
        kind = event.get("type")
        error = event if kind == "error" else None
        erred = erred or kind in ("error", "turn.failed")
        if kind == "thread.started":
            conversation = conversation_at(event, "thread_id")
        elif kind == "turn.started":
            end = None
        elif kind in ("turn.completed", "turn.failed"):
            end = event
        elif kind == "item.started" and text_at(event, "item", "type") in _GOES_ON:
            running[text_at(event, "item", "id") or ""] = _name_of(dig(event, "item"))
        elif kind == "item.completed":
            running.pop(text_at(event, "item", "id") or "", None)
            if dig(event, "item", "type") == "agent_message":
                text = text_at(event, "item", "text")
    known = AgentResult(text=text, conversation=conversation)
    if end is None:
        return unfinished(known, _problem_of(text_at(error, "message")) if error is not None else None)
    problem = None if end["type"] == "turn.completed" else _problem_of(text_at(end, "error", "message"))
    usage = usage_at(dig(end, "usage"), "cached_input_tokens")
    known = replace(known, usage=usage, is_final=not running, mended=erred)
    return finished(known, problem, list(running.values()))


def read_text(event: dict[str, Any]) -> str:
    """Messages, and warnings."""
    item = dig(event, "item") if event.get("type") == "item.completed" else None
    if dig(item, "type") == "error":
        return f"[warning] {one_line(text_at(item, 'message') or '?')}\n"
    return whole_line(text_at(item, "text")) if dig(item, "type") == "agent_message" else ""


def list_steps(event: dict[str, Any]) -> Iterator[Step]:
    """Started commands, other finished items by name, and that a turn failed; its events have no times."""
    kind = event.get("type")
    item = dig(event, "item")
    item_kind, key = text_at(item, "type"), text_at(item, "id")
    if kind == "item.started" and item_kind == "command_execution":
        yield Step(key, tool_line(item_kind, item))
    elif kind == "item.completed" and item_kind is not None and item_kind not in _NO_TOOLS:
        yield Step(key, tool_line(item_kind, None))
    elif kind == "turn.failed":
        yield Step(None, error_line(_problem_of(text_at(event, "error", "message")).text))


def _name_of(item: object) -> str:
    """A command without the shell that it is given to."""
    command = text_at(item, "command") or text_at(item, "tool") or "?"
    match = re.fullmatch(r"\S*sh -l?c (['\"]?)(.*)\1", command, re.DOTALL)
    return one_line(match.group(2) if match else command, MAX_NAME)


def _problem_of(message: str | None) -> Problem:
    """In the server's words, where the message is the server's JSON answer."""
    if not message:
        return Problem("unknown", "the turn failed without a message")
    reason_class = class_of_failure(message)
    answer = parse_event(message.encode("utf-8", "replace"))
    if reason_class == "agent_error" and dig(answer, "error") is not None:
        reason_class = "api_error"
    return Problem(reason_class, text_at(answer, "error", "message") or message, message)
