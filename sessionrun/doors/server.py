"""Who may ask `serve`, and the program that serves: its address, its token, and its end.

A page of another site can make a browser ask a server on this machine.  Such a request has the other site's name
as its origin or, if that site's name was made to lead here (DNS rebinding), as the name of the host.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import quote

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sessionrun.doors.app import Desk
from sessionrun.doors.markup import policy
from sessionrun.model.errors import InputError

HEADERS: Final = {
    "Content-Security-Policy": f"{policy(served=True)}; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # with none at all, a form says "null" as its origin
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets through to `app` what has the token; a token in the address becomes a cookie.

    Args:
        app: what answers.
        token: the secret of this server.
        hosts: by which names and ports it is asked, such as ``127.0.0.1:8000``.
        control: whether requests may change anything.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str], *, control: bool) -> None:
        self._app, self._token, self._hosts, self._control = app, token, frozenset(hosts), control
        port = min(hosts).rpartition(":")[2]
        # A browser sends a cookie to all ports of a host.  So a server at another port may learn its value, which
        # is no token, and is the cookie of no other server of ours.
        self._cookie = f"sessionrun-{port}"
        self._cookie_value = hmac.new(token.encode(), f"cookie of port {port}".encode(), "sha256").hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._answer(Request(scope)) or self._app)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """The refusal, or the way to the page without a token in its address; None: the request may pass."""
        headers = request.headers
        if headers.get("host", "").lower() not in self._hosts:
            return _refuse(421, "this server does not go by that name")
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://").lower() not in self._hosts:
            return _refuse(403, "a page of another site may not ask")
        given = request.query_params.get("token")
        if given is not None and request.method == "GET":
            return self._let_in(request) if _is_same(given, self._token) else _refuse(401, "that is not the token")
        has_token = _is_same(headers.get("authorization", "").removeprefix("Bearer "), self._token)
        if not has_token and not _is_same(request.cookies.get(self._cookie), self._cookie_value):
            return _refuse(401, "open the address that sessionrun serve printed: it has the token")
        if request.method not in ("GET", "HEAD"):
            if not self._control:
                return _refuse(403, "this server only shows: start it with --control")
            if origin is None and not has_token:
                return _refuse(403, "a browser has to say from which page it asks")
        return None

    def _let_in(self, request: Request) -> Response:
        rest = request.url.remove_query_params("token").query
        answer = RedirectResponse(quote(request.scope["path"]) + (f"?{rest}" if rest else ""), status_code=303)
        answer.set_cookie(self._cookie, self._cookie_value, httponly=True, samesite="strict")
        return answer


def _is_same(given: str | None, secret: str) -> bool:
    return hmac.compare_digest((given or "").encode("utf-8", "replace"), secret.encode())


def _refuse(code: int, why: str) -> Response:
    return PlainTextResponse(f"sessionrun: {why}\n", status_code=code)


def serve(results_dir: Path, host: str, port: int, *, control: bool, tell: Callable[[str, bool], None]) -> None:
    """Show the sessions of a directory until SIGINT or SIGTERM.

    Args:
        results_dir: where they are kept, absolute.
        host: an address of this machine.
        port: 0: one that is free.
        control: whether the pages may change anything.
        tell: is given the address with the token, and whether others than this machine can ask there.

    Raises:
        InputError: that address cannot be used.
    """
    listener = _listen(host, port)
    bound, port = listener.getsockname()[:2]
    named = f"[{bound}]" if ":" in bound else bound
    hosts = [f"{named}:{port}"]
    is_local = ipaddress.ip_address(bound).is_loopback
    if is_local:
        hosts.append(f"localhost:{port}")
    token = secrets.token_urlsafe(32)
    desk = Desk(results_dir, control=control)
    app = Guard(desk.make_app(), token, hosts, control=control)
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    config = uvicorn.Config(app, lifespan="off", timeout_graceful_shutdown=5, **quiet)
    tell(f"http://{named}:{port}/?token={token}", not is_local)
    _Server(config, desk).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends the streams first: a browser would keep them open."""

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self._desk = desk

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._desk.close()
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(address[0]).is_unspecified:
            raise InputError(f"--host {host}: name one address of this machine; browsers have to ask for that")
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen at {host} port {port}: {why}") from None
    return listener
