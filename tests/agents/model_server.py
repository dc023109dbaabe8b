"""A tiny model server on loopback for tests of the real agent CLIs; it does what the prompt tells it to.

    answer[[TEXT]]           the answer is this text
    write[[NAME=CONTENT]]    first a call of the agent's own tool that writes this file in its directory
    run[[COMMAND]]           first a call of the agent's own shell
    tool[[NAME ARGUMENTS]]   first a call of this tool, if it is offered; ARGUMENTS is a JSON object
    fail[[STATUS]]           this HTTP status instead
    limit[[FORM]]            a usage limit in one of `ALL_FORMS` instead, over in an hour
    slow[[SECONDS]]          nothing for so long before the answer (but a tool is called at once)

Of each the last one in a request counts.  It must not know agents.
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

from . import wire
from .wire import INPUT_TOKENS, Answer, Call, Event, strings_of

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

    def headers_until(self, until: float) -> dict[str, str]:
        """The headers for a limit that is over then."""
        return {name: value.replace("RESET", str(int(until))) for name, value in self.headers.items()}

    def body_until(self, until: float, path: str) -> object:
        """The body of the answer, in the protocol of the path."""
        body = wire.refusal(path, self.status, self.message)
        body["error"].update(self.error)
        return json.loads(json.dumps(body).replace('"RESET"', str(int(until))).replace("RESET", str(int(until))))


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
        self._until = 0.0
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

    def limited_until(self, until: float) -> None:
        """Refuse all that speaks Anthropic's protocol until then (seconds since 1970)."""
        self._until = until

    def limit_of(self, request: Request) -> tuple[float, Form] | None:
        """The limit that this request meets now, with its end."""
        form = request.orders.get("limit")
        if form:
            return time.time() + HOUR_S, ALL_FORMS[form]
        is_limited = request.path.endswith("/messages") and time.time() < self._until
        return (self._until, FORMS["five_hour"]) if is_limited else None


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
            self._send(form.status, form.body_until(until, request.path), form.headers_until(until))
        elif "fail" in orders:
            status = int(orders["fail"])
            self._send(status, wire.refusal(request.path, status, f"test failure {status}"))
        else:
            self._answer(request, _decide(request, orders))

    def _answer(self, request: Request, answer: Answer) -> None:
        if answer.call is None:
            self.server.over.wait(float(request.orders.get("slow", 0)))
        path, streams = request.path, request.body.get("stream")
        if path.endswith(":generateContent"):
            self._send(200, wire.gemini_whole(answer))
        elif path.endswith(":streamGenerateContent"):
            self._stream(iter([(None, wire.gemini_whole(answer))]))
        elif path.endswith("/responses"):
            self._stream(wire.responses_events(answer))
        elif path.endswith("/messages"):
            self._stream(wire.anthropic_events(answer)) if streams else self._send(
                200, wire.anthropic_whole(answer)
            )
        elif streams:
            self._stream(wire.chat_events(answer))
        else:
            self._send(200, wire.chat_whole(answer))

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
    if not wire.has_tool_result(request.body):
        if name:
            call = wire.write_call(request.body, name, content)
        elif "run" in orders:
            call = wire.shell_call(request.body, orders["run"])
        elif "tool" in orders:
            tool, _, arguments = orders["tool"].partition(" ")
            call = Call(tool, json.loads(arguments)) if tool in wire.tools_of(request.body) else None
    if name and not wire.tools_of(request.body):
        text = f"{text}\n{wire.edit_block(request.body, name, content)}"
    return Answer(request.model, text, call)
