"""The four protocols that agent CLIs speak with their models: requests read, answers written.

Anthropic messages, OpenAI chat completions and responses, Gemini.  It must not know servers, nor what a
request asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

INPUT_TOKENS: Final = 11
OUTPUT_TOKENS: Final = 7

WRITERS: Final = ("Write", "write_file", "write")
SHELLS: Final = ("Bash", "bash", "run_shell_command", "exec_command", "shell_command", "shell")

Event = tuple[str | None, object]
Schema = dict[str, Any]

_ERROR_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_ERROR_STATUS: Final = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}
_PARAMETERS: Final = ("parameters", "input_schema", "parametersJsonSchema")
_NAMES: Final = {
    "path": ("file_path", "filePath", "path"),
    "content": ("content",),
    "command": ("command", "cmd"),
}
_NOTHING: Final = {"string": "x", "number": 0, "integer": 0, "boolean": False, "array": [], "object": {}}
_WHERE: Final = re.compile(
    r"(?i)(?:working (?:in the )?directory|workspace directories|<cwd>|\bcwd)(?:\s+is)?"
    r"[\s:*`'\"-]*(/[^\s<>`\"'*,]*)"
)


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a model says: a text, or one call of a tool."""

    model: str
    text: str
    call: Call | None = None


def strings_of(value: object) -> Iterator[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings_of(inner)


def tools_of(body: dict[str, Any]) -> dict[str, Schema]:
    """The tools that a request offers, by name, each with the schema of its arguments."""
    offered: list[Any] = []
    for tool in body.get("tools") or []:
        offered += tool.get("functionDeclarations") or [tool.get("function") or tool]
    return {
        tool["name"]: next((tool[key] for key in _PARAMETERS if key in tool), {})
        for tool in offered
        if "name" in tool
    }


def has_tool_result(value: object) -> bool:
    """Whether the messages of a request hold what a tool answered."""
    if isinstance(value, list):
        return any(has_tool_result(inner) for inner in value)
    if not isinstance(value, dict):
        return False
    kind = str(value.get("type"))
    if kind == "tool_result" or kind.endswith("_call_output") or value.get("role") == "tool":
        return True
    return "functionResponse" in value or any(has_tool_result(inner) for inner in value.values())


def write_call(body: dict[str, Any], name: str, content: str) -> Call | None:
    """A call that writes a file in the agent's directory, with the tool that is offered for it, else its shell."""
    tools = tools_of(body)
    for tool in WRITERS:
        if tool in tools:
            folder = directory_of(body)
            path = f"{folder}/{name}" if folder else name
            return Call(tool, _arguments(tools[tool], path=path, content=content + "\n"))
    return shell_call(body, f"printf '%s\\n' '{content}' > {name}")


def shell_call(body: dict[str, Any], command: str) -> Call | None:
    """A call of the shell that is offered; None where there is none."""
    tools = tools_of(body)
    return next((Call(tool, _arguments(tools[tool], command=command)) for tool in SHELLS if tool in tools), None)


def directory_of(body: dict[str, Any]) -> str:
    """The working directory that the agent told its model; '' when it said none."""
    found = (_WHERE.search(text) for text in strings_of(body))
    return next((match.group(1).rstrip("/.)") for match in found if match), "")


def edit_block(body: dict[str, Any], name: str, content: str) -> str:
    """The same as text, in the form that aider asks for."""
    if any("SEARCH/REPLACE" in text for text in strings_of(body)):
        return f"{name}\n```\n<<<<<<< SEARCH\n=======\n{content}\n>>>>>>> REPLACE\n```\n"
    return f"{name}\n```\n{content}\n```\n"


def chat_events(answer: Answer) -> Iterator[Event]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": answer.model}
    for delta, reason in ((_chat_message(answer), None), ({}, _chat_end(answer))):
        yield None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    yield None, {**head, "choices": [], "usage": _chat_usage()}
    yield None, "[DONE]"


def chat_whole(answer: Answer) -> object:
    choice = {"index": 0, "message": _chat_message(answer), "finish_reason": _chat_end(answer)}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": answer.model}
    return {**head, "choices": [choice], "usage": _chat_usage()}


def responses_events(answer: Answer) -> Iterator[Event]:
    message = [{"type": "output_text", "text": answer.text, "annotations": []}]
    said: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "content": message}
    if answer.call:
        arguments = json.dumps(answer.call.arguments)
        said = {"type": "function_call", "id": "f", "call_id": "call_1", "name": answer.call.tool}
        said["arguments"] = arguments
    said["status"] = "completed"
    usage = {
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    whole = {"id": "r", "object": "response", "model": answer.model, "status": "completed", "output": [said]}
    yield "response.created", {"type": "response.created", "response": {"id": "r"}}
    done = {"type": "response.output_item.done", "output_index": 0, "item": said}
    yield "response.output_item.done", done
    yield "response.completed", {"type": "response.completed", "response": {**whole, "usage": usage}}


def anthropic_events(answer: Answer) -> Iterator[Event]:
    def event(kind: str, **fields: object) -> Event:
        return kind, {"type": kind, **fields}

    block = _anthropic_block(answer)
    delta: dict[str, Any] = {"type": "text_delta", "text": answer.text}
    empty = {**block, "text": ""}
    if answer.call:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.call.arguments)}
        empty = {**block, "input": {}}
    yield event("message_start", message={**_anthropic_head(answer), "content": [], "stop_reason": None})
    yield event("content_block_start", index=0, content_block=empty)
    yield event("content_block_delta", index=0, delta=delta)
    yield event("content_block_stop", index=0)
    end = {"stop_reason": _anthropic_end(answer), "stop_sequence": None}
    yield event("message_delta", delta=end, usage={"output_tokens": OUTPUT_TOKENS})
    yield event("message_stop")


def anthropic_whole(answer: Answer) -> object:
    end = _anthropic_end(answer)
    return {**_anthropic_head(answer), "content": [_anthropic_block(answer)], "stop_reason": end}


def gemini_whole(answer: Answer) -> object:
    part: dict[str, Any] = {"text": answer.text}
    if answer.call:
        part = {"functionCall": {"id": "call_1", "name": answer.call.tool, "args": answer.call.arguments}}
    usage = {"promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS}
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    return {
        "candidates": [candidate],
        "usageMetadata": {**usage, "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS},
        "modelVersion": answer.model,
    }


def refusal(path: str, status: int, message: str) -> dict[str, Any]:
    """The JSON body of an error, in the protocol that the path belongs to."""
    kind = _ERROR_KINDS.get(status, "api_error")
    if path.endswith("/messages"):
        return {"type": "error", "error": {"type": kind, "message": message}}
    if ":" in path:
        word = _ERROR_STATUS.get(status, "INTERNAL")
        return {"error": {"code": status, "message": message, "status": word}}
    return {"error": {"message": message, "type": kind, "code": kind, "param": None}}


def _arguments(schema: Schema, **given: str) -> dict[str, Any]:
    """What the tool requires, with what was given under the names that it has for it."""
    properties = schema.get("properties") or {}
    arguments = {name: _nothing(properties.get(name) or {}) for name in schema.get("required") or []}
    for what, text in given.items():
        name = next(name for name in _NAMES[what] if name in properties)
        is_list = str(properties[name].get("type")).lower() == "array"
        arguments[name] = ["sh", "-c", text] if is_list else text
    return arguments


def _nothing(schema: Schema) -> object:
    """The least value of a simple schema."""
    kind = schema.get("type", "string")
    return (schema.get("enum") or [_NOTHING.get(str(kind).lower())])[0]


def _chat_message(answer: Answer) -> dict[str, Any]:
    if answer.call is None:
        return {"role": "assistant", "content": answer.text}
    function = {"name": answer.call.tool, "arguments": json.dumps(answer.call.arguments)}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _chat_end(answer: Answer) -> str:
    return "tool_calls" if answer.call else "stop"


def _chat_usage() -> dict[str, int]:
    total = INPUT_TOKENS + OUTPUT_TOKENS
    return {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": total}


def _anthropic_block(answer: Answer) -> dict[str, Any]:
    if answer.call is None:
        return {"type": "text", "text": answer.text}
    return {"type": "tool_use", "id": "call_1", "name": answer.call.tool, "input": answer.call.arguments}


def _anthropic_end(answer: Answer) -> str:
    return "tool_use" if answer.call else "end_turn"


def _anthropic_head(answer: Answer) -> dict[str, object]:
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    return {"id": "m", "type": "message", "role": "assistant", "model": answer.model, "usage": usage}
