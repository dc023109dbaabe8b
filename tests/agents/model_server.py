"""A tiny model server on loopback for tests of the real agent CLIs; it does what the prompt tells it to.

    answer[[TEXT]]           the answer is this text
    write[[NAME=CONTENT]]    first a call of the agent's own tool that writes this file in its directory
    run[[COMMAND]]           first a call of the agent's own shell
    tool[[NAME ARGUMENTS]]   first a call of this tool, if it is offered; ARGUMENTS is a JSON object
    fail[[STATUS]]           this HTTP status instead
    limit[[FORM]]            a usage limit in one of `ALL_FORMS` instead, over in an hour
    slow[[SECONDS]]          nothing for so long before the answer (but a tool is called at once)

Of each the last one in a request counts.  It must not know agents.

It speaks the four protocols of agent CLIs: Anthropic messages, OpenAI chat completions and responses, Gemini.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

INPUT_TOKENS: Final = 11
OUTPUT_TOKENS: Final = 7
ALL_TOKENS: Final = INPUT_TOKENS + OUTPUT_TOKENS

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


def chat_whole(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.call:
        function = {"name": answer.call.tool, "arguments": json.dumps(answer.call.arguments)}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if answer.call else "stop"}
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": ALL_TOKENS}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": answer.model}
    return {**head, "choices": [choice], "usage": usage}


def chat_events(answer: Answer) -> Iterator[Event]:
    whole = {**chat_whole(answer), "object": "chat.completion.chunk"}
    usage, (choice,) = whole.pop("usage"), whole["choices"]
    begun = {"index": 0, "delta": choice["message"], "finish_reason": None}
    yield None, {**whole, "choices": [begun]}
    yield None, {**whole, "choices": [{**begun, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield None, {**whole, "choices": [], "usage": usage}
    yield None, "[DONE]"


def responses_events(answer: Answer) -> Iterator[Event]:
    message = [{"type": "output_text", "text": answer.text, "annotations": []}]
    said: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "content": message}
    if answer.call:
        said = {"type": "function_call", "id": "f", "call_id": "call_1", "name": answer.call.tool}
        said["arguments"] = json.dumps(answer.call.arguments)
    said["status"] = "completed"
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS, "total_tokens": ALL_TOKENS}
    whole = {"id": "r", "object": "response", "model": answer.model, "status": "completed", "output": [said]}
    yield _event("response.created", response={"id": "r"})
    yield _event("response.output_item.done", output_index=0, item=said)
    yield _event("response.completed", response={**whole, "usage": usage})


def anthropic_whole(answer: Answer) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": answer.text}
    if answer.call:
        block = {"type": "tool_use", "id": "call_1", "name": answer.call.tool, "input": answer.call.arguments}
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    head = {"id": "m", "type": "message", "role": "assistant", "model": answer.model, "usage": usage}
    return {**head, "content": [block], "stop_reason": "tool_use" if answer.call else "end_turn"}


def anthropic_events(answer: Answer) -> Iterator[Event]:
    whole = anthropic_whole(answer)
    (block,) = whole["content"]
    delta: dict[str, Any] = {"type": "text_delta", "text": answer.text}
    empty = {**block, "text": ""}
    if answer.call:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.call.arguments)}
        empty = {**block, "input": {}}
    yield _event("message_start", message={**whole, "content": [], "stop_reason": None})
    yield _event("content_block_start", index=0, content_block=empty)
    yield _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=end, usage={"output_tokens": OUTPUT_TOKENS})
    yield _event("message_stop")


def _event(kind: str, **fields: object) -> Event:
    return kind, {"type": kind, **fields}


def gemini_whole(answer: Answer) -> object:
    part: dict[str, Any] = {"text": answer.text}
    if answer.call:
        part = {"functionCall": {"id": "call_1", "name": answer.call.tool, "args": answer.call.arguments}}
    tokens = {
        "promptTokenCount": INPUT_TOKENS,
        "candidatesTokenCount": OUTPUT_TOKENS,
        "totalTokenCount": ALL_TOKENS,
    }
    candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": tokens, "modelVersion": answer.model}


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
    properties, arguments = schema.get("properties") or {}, dict[str, Any]()
    for name in schema.get("required") or []:  # the least value of each
        wanted = properties.get(name) or {}
        arguments[name] = (wanted.get("enum") or [_NOTHING.get(str(wanted.get("type", "string")).lower())])[0]
    for what, text in given.items():
        name = next(name for name in _NAMES[what] if name in properties)
        is_list = str(properties[name].get("type")).lower() == "array"
        arguments[name] = ["sh", "-c", text] if is_list else text
    return arguments


# --- the server ---

_WORDS: Final = re.compile(r"(answer|write|run|tool|fail|limit|slow)\[\[(.*?)\]\]", re.DOTALL)


@dataclass(frozen=True)
class Request:
    """One request for an answer, as it came."""

    path: str
    body: dict[str, Any]

    @property
    def model(self) -> str:
        in_path = re.search(r"/models/([^/:]+):", self.path)
        return in_path.group(1) if in_path else str(self.body.get("model"))

    @property
    def orders(self) -> dict[str, str]:
        """What the prompts in it say that the server should do."""
        return dict(_WORDS.findall("\n".join(strings_of(self.body))))


@dataclass(frozen=True)
class Form:
    """How a provider says that an account's quota or money is used up; RESET in it becomes seconds since 1970.

    `error` is added to the error of the answer's body.
    """

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, object] = field(default_factory=dict)

    def answer(self, until: float, path: str) -> tuple[object, dict[str, str]]:
        """The body and the headers for a limit that is over then, in the protocol of the path."""
        end, body = str(int(until)), refusal(path, self.status, self.message)
        body["error"].update(self.error)
        text = json.dumps(body).replace('"RESET"', end).replace("RESET", end)
        return json.loads(text), {name: value.replace("RESET", end) for name, value in self.headers.items()}


def _unified(claim: str) -> dict[str, str]:
    """Headers that name the limit, with its end; an agent with a subscription shows them to its user."""
    head = "anthropic-ratelimit-unified-"
    return {f"{head}status": "rejected", f"{head}reset": "RESET", f"{head}representative-claim": claim}


_QUOTA: Final = (
    "You exceeded your current quota, please check your plan and billing details. For more information on this "
    "error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors."
)
_EXCEEDED: Final = "This request would exceed your account's rate limit. Please try again later."
FORMS: Final = {
    "five_hour": Form(429, _EXCEEDED, _unified("five_hour")),
    "seven_day": Form(429, _EXCEEDED, _unified("seven_day")),
    "seven_day_opus": Form(429, _EXCEEDED, _unified("seven_day_opus")),
    "older_words": Form(429, "Claude AI usage limit reached|RESET"),
    "rate": Form(429, "Number of requests has exceeded your rate limit", {"retry-after": "1"}),
    "credit": Form(
        400,
        "Your credit balance is too low to access the Anthropic API. "
        "Please go to Plans & Billing to upgrade or purchase credits.",
    ),
    "spend": Form(
        400,
        "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.",
    ),
    "overloaded": Form(529, "Overloaded"),
}
"""How Anthropic says it."""

OPENAI_FORMS: Final = {
    "plan": Form(
        429,
        "The usage limit has been reached",
        error={"type": "usage_limit_reached", "plan_type": "plus", "resets_at": "RESET"},
    ),
    "quota": Form(429, _QUOTA, error={"type": "insufficient_quota", "code": "insufficient_quota"}),
}
_DAILY: Final = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
GEMINI_FORMS: Final = {
    "daily": Form(
        429,
        "You exceeded your current quota, please check your plan and billing details.",
        error={
            "details": [
                {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": _DAILY}]},
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3600s"},
            ]
        },
    ),
}
ALL_FORMS: Final = {**FORMS, **OPENAI_FORMS, **GEMINI_FORMS}
HOUR_S: Final = 3600


class ModelServer(ThreadingHTTPServer):
    """Serves until `shutdown`; `requests` holds every request for an answer."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.requests: list[Request] = []
        self.limited_until = 0.0  # seconds since 1970; so long all that speaks Anthropic's protocol is refused
        self.over = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The base address, without a slash at its end."""
        return f"http://127.0.0.1:{self.server_port}"

    def shutdown(self) -> None:
        """End; answers that are slow come no more."""
        self.over.set()
        super().shutdown()

    def told(self, *texts: str) -> list[Request]:
        """The requests of which single strings hold each of these texts, unchanged."""
        return [
            request
            for request in list(self.requests)
            if all(any(text in found for found in strings_of(request.body)) for text in texts)
        ]

    def limit_of(self, request: Request) -> tuple[float, Form] | None:
        """The limit that this request meets now, with its end."""
        form = request.orders.get("limit")
        if form:
            return time.time() + HOUR_S, ALL_FORMS[form]
        is_limited = request.path.endswith("/messages") and time.time() < self.limited_until
        return (self.limited_until, FORMS["five_hour"]) if is_limited else None


class _Conversation(BaseHTTPRequestHandler):
    """One request: note it, then answer as its prompt says."""

    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [], "models": []})

    def do_POST(self) -> None:
        try:
            self._serve()
        except (BrokenPipeError, ConnectionResetError):  # the agent was stopped
            self.close_connection = True

    def _serve(self) -> None:
        request = Request(self.path.split("?")[0], json.loads(self._read_body() or b"{}"))
        if request.path.endswith((":countTokens", "/count_tokens")):
            self._send(200, {"input_tokens": INPUT_TOKENS, "totalTokens": INPUT_TOKENS})
            return
        self.server.requests.append(request)
        orders = request.orders
        limit = self.server.limit_of(request)
        if limit:
            until, form = limit
            self._send(form.status, *form.answer(until, request.path))
        elif "fail" in orders:
            status = int(orders["fail"])
            self._send(status, refusal(request.path, status, f"test failure {status}"))
        else:
            self._answer(request, _decide(request, orders))

    def _answer(self, request: Request, answer: Answer) -> None:
        if answer.call is None:
            self.server.over.wait(float(request.orders.get("slow", 0)))
        path, streams = request.path, request.body.get("stream")
        if path.endswith(":generateContent"):
            self._send(200, gemini_whole(answer))
        elif path.endswith(":streamGenerateContent"):
            self._stream(iter([(None, gemini_whole(answer))]))
        elif path.endswith("/responses"):
            self._stream(responses_events(answer))
        elif path.endswith("/messages"):
            self._stream(anthropic_events(answer)) if streams else self._send(200, anthropic_whole(answer))
        elif streams:
            self._stream(chat_events(answer))
        else:
            self._send(200, chat_whole(answer))

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int, answer: object, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        fixed = {"content-type": "application/json", "content-length": str(len(content))}
        for name, value in {**fixed, **(headers or {})}.items():
            self.send_header(name, value)
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


def _decide(request: Request, orders: dict[str, str]) -> Answer:
    """The tool call that was asked for, as long as no tool has answered; then the text."""
    text = orders.get("answer", "ok")
    name, _, content = orders.get("write", "").partition("=")
    call: Call | None = None
    if not has_tool_result(request.body):
        if name:
            call = write_call(request.body, name, content)
        elif "run" in orders:
            call = shell_call(request.body, orders["run"])
        elif "tool" in orders:
            tool, _, arguments = orders["tool"].partition(" ")
            call = Call(tool, json.loads(arguments)) if tool in tools_of(request.body) else None
    if name and not tools_of(request.body):
        text = f"{text}\n{edit_block(request.body, name, content)}"
    return Answer(request.model, text, call)
