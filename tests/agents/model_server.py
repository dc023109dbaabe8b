"""A tiny model server on loopback for tests of the real agent CLIs; it answers what the prompt tells it to.

``answer[[TEXT]]`` in a prompt is answered with that text, ``fail[[STATUS]]`` with that HTTP status.  It speaks
the four protocols of the agents: Anthropic messages, OpenAI responses and chat completions, Gemini.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

_ANSWER: Final = re.compile(r"answer\[\[(.*?)\]\]")
_FAIL: Final = re.compile(r"fail\[\[(\d{3})\]\]")

INPUT_TOKENS: Final = 11
OUTPUT_TOKENS: Final = 7

Event = tuple[str | None, object]


class ModelServer(ThreadingHTTPServer):
    """Serves until `shutdown`; `bodies` holds every request, parsed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.bodies: list[Any] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The base address, without a slash at its end."""
        return f"http://127.0.0.1:{self.server_port}"

    def was_told(self, text: str) -> bool:
        """Whether one string of any request holds this text, unchanged."""
        return any(text in found for body in list(self.bodies) for found in strings_of(body))


def strings_of(value: object) -> Iterator[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings_of(inner)


def chat_events(text: str, model: str) -> Iterator[Event]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model}
    for delta, reason in (({"role": "assistant", "content": text}, None), ({}, "stop")):
        yield None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    yield None, {**head, "choices": [], "usage": _chat_usage()}
    yield None, "[DONE]"


def chat_whole(text: str, model: str) -> object:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": model}
    return {**head, "choices": [choice], "usage": _chat_usage()}


def responses_events(text: str, model: str) -> Iterator[Event]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    usage = {
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    whole = {"id": "r", "object": "response", "model": model, "status": "completed", "output": [item]}
    yield "response.created", {"type": "response.created", "response": {"id": "r"}}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield "response.output_item.done", done
    yield "response.completed", {"type": "response.completed", "response": {**whole, "usage": usage}}


def anthropic_events(text: str, model: str) -> Iterator[Event]:
    def event(kind: str, **fields: object) -> Event:
        return kind, {"type": kind, **fields}

    yield event("message_start", message={**_anthropic_head(model), "content": [], "stop_reason": None})
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    yield event("content_block_stop", index=0)
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=end, usage={"output_tokens": OUTPUT_TOKENS})
    yield event("message_stop")


def anthropic_whole(text: str, model: str) -> object:
    content = [{"type": "text", "text": text}]
    return {**_anthropic_head(model), "content": content, "stop_reason": "end_turn"}


def gemini_whole(text: str, model: str) -> object:
    usage = {"promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS}
    content = {"role": "model", "parts": [{"text": text}]}
    candidate = {"index": 0, "content": content, "finishReason": "STOP"}
    return {
        "candidates": [candidate],
        "usageMetadata": {**usage, "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS},
        "modelVersion": model,
    }


def _chat_usage() -> dict[str, int]:
    total = INPUT_TOKENS + OUTPUT_TOKENS
    return {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": total}


def _anthropic_head(model: str) -> dict[str, object]:
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    return {"id": "m", "type": "message", "role": "assistant", "model": model, "usage": usage}


class _Conversation(BaseHTTPRequestHandler):
    """One request: note it, then answer as its prompt says."""

    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [], "models": []})

    def do_POST(self) -> None:
        body = json.loads(self._read_body() or b"{}")
        self.server.bodies.append(body)
        said = "\n".join(strings_of(body))
        fail, answer = _FAIL.findall(said), _ANSWER.findall(said)
        if fail:
            error = {"type": "test_error", "code": int(fail[-1]), "message": "as asked", "status": "FAILED"}
            self._send(int(fail[-1]), {"type": "error", "error": error})
            return
        self._answer(self.path.split("?")[0], body, answer[-1] if answer else "ok")

    def _answer(self, path: str, body: dict[str, Any], text: str) -> None:
        model = str(body.get("model", "test-model"))
        if path.endswith((":countTokens", "/count_tokens")):
            self._send(200, {"input_tokens": INPUT_TOKENS, "totalTokens": INPUT_TOKENS})
        elif path.endswith(":generateContent"):
            self._send(200, gemini_whole(text, model))
        elif path.endswith(":streamGenerateContent"):
            self._stream(iter([(None, gemini_whole(text, model))]))
        elif path.endswith("/responses"):
            self._stream(responses_events(text, model))
        elif path.endswith("/messages"):
            streams = body.get("stream")
            self._stream(anthropic_events(text, model)) if streams else self._send(
                200, anthropic_whole(text, model)
            )
        elif body.get("stream"):
            self._stream(chat_events(text, model))
        else:
            self._send(200, chat_whole(text, model))

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, events: Iterator[Event]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for name, event in events:
            content = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write((f"event: {name}\n" if name else "").encode() + f"data: {content}\n\n".encode())
