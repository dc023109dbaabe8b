"""Asks an ASGI application as a server would, without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

HOST = "127.0.0.1:8000"
TOKEN = "the-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Answer(NamedTuple):
    """Code, headers and body."""

    code: int
    headers: Mapping[str, str]
    body: str


def ask(
    app: Any,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    host: str = HOST,
    enough: Callable[[str], bool] = lambda body: False,
) -> Answer:
    """One request; with `enough` the asker leaves once the body is that."""
    path, _, query = path.partition("?")
    given = {"host": host, **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    told: list[dict[str, Any]] = []
    bodies: list[bytes] = []

    async def run() -> None:
        begun, left = False, asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal begun
            if not begun:
                begun = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            told.append(message)
            bodies.append(message.get("body", b""))
            if enough(b"".join(bodies).decode()):
                left.set()

        await asyncio.wait_for(app(scope, receive, send), 60)

    asyncio.run(run())
    start = next(message for message in told if message["type"] == "http.response.start")
    named = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], named, b"".join(bodies).decode())
