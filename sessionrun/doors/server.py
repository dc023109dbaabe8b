"""Who may ask `serve`; the requests and what answers each, in threads; the program: its address, token, and end.

A page of another site can make a browser ask a server on this machine.  Such a request has the other site's name
as its origin or, if that site's name was made to lead here (DNS rebinding), as the name of the host.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Sequence
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import parse_qs, quote

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sessionrun import api
from sessionrun.client.ask import continue_task
from sessionrun.client.lookup import load_summaries
from sessionrun.client.reading.view import load_view
from sessionrun.doors import pages
from sessionrun.doors.gathering import Matter, gather
from sessionrun.doors.markup import Markup, policy
from sessionrun.doors.report import make_page
from sessionrun.house import describe_lack
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.wording import name_session
from sessionrun.store.requests import MAX_TEXT
from sessionrun.store.session import SessionDir

LOOK_S: Final = 0.4
ALIVE_S: Final = 15.0
"""How long a stream says nothing before it says that it is there still."""


def stamp(*paths: str | os.PathLike[str]) -> Hashable:
    """What changes when one of these files or directories does."""
    found: list[Hashable] = []
    for path in paths:
        try:
            seen = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
    return tuple(found)


class Watch:
    """Tells all who follow a name when its stamp changes; a name that is followed is looked at once for all.

    `look` gives the stamp of a name, `pause` how many seconds to wait between two looks, at least `LOOK_S`.
    """

    def __init__(self, look: Callable[[str], Hashable], pause: Callable[[str], float] = lambda name: 0.0) -> None:
        self._look, self._pause = look, pause
        self._seen: dict[str, tuple[float, int, Hashable]] = {}

    def version(self, name: str) -> int:
        """A number that grows when the name's stamp changes."""
        at, number, seen = self._seen.get(name, (0.0, 0, None))
        now = time.monotonic()
        if now - at >= max(LOOK_S, self._pause(name)):
            found = self._look(name)
            number += found != seen
            self._seen[name] = now, number, found
        return number

    async def follow(self, name: str, is_over: Callable[[], Any]) -> AsyncIterator[bytes]:
        """Server-sent events: a message for each change, from the first on, until `is_over`."""
        sent, at = -1, time.monotonic()
        while not is_over():
            number = self.version(name)
            if number != sent:
                sent, at = number, time.monotonic()
                yield b"data: %d\n\n" % number
            elif time.monotonic() - at >= ALIVE_S:
                at = time.monotonic()
                yield b": here\n\n"
            await asyncio.sleep(LOOK_S)


ALL = ""
"""The name of the list of all sessions, among the ids of sessions."""

SHARE: Final = 5.0
"""The news of a page come no sooner than this many times what it takes to make it."""

LIVES_S: Final = 10.0
"""So often the list is made anew to see which sessions live: no file says that."""

_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_NUM: Final = re.compile(r"[0-9]{1,9}")


Page = tuple[str, Markup, Sequence[tuple[str, str]]]
"""A page: its title, what it shows, and how one comes to it from the list (see `pages.make_document`)."""


class Desk:
    """Answers all requests of one server."""

    def __init__(self, results_dir: Path, *, control: bool) -> None:
        self._results_dir, self._control = results_dir, control
        self._over = False
        self._outputs: dict[str, tuple[Path, ...]] = {}
        self._cost_s: dict[str, float] = {}
        self._watch = Watch(self._look, lambda name: SHARE * self._cost_s.get(name, 0.0))

    def make_app(self) -> Starlette:
        """What a server runs: of each page the whole, the part of it that changes, and the news of that."""
        get, session = ["GET"], "/sessions/{session}"
        script = files(__package__).joinpath("live.js").read_bytes()
        routes = [
            Route("/live.js", lambda _: Response(script, media_type="text/javascript"), methods=get),
            Route(f"{session}/report", self.show_report, methods=get),
        ]
        for address in ("", session, f"{session}/tasks/{{num}}"):
            routes += [
                Route(address or "/", self.show, methods=get),
                Route(f"{address}/part", self.show, methods=get),
                Route(f"{address}/events", self.follow, methods=get),
            ]
            routes += [Route(f"{address}/{{action}}", self.act, methods=["POST"])] if address else []
        return Starlette(routes=routes, exception_handlers={SessionrunError: _tell_error, OSError: _tell_error})

    def close(self) -> None:
        """End the streams, so that the server can leave."""
        self._over = True

    # --- pages ---

    async def show(self, request: Request) -> Response:
        """A page, or what changes of it."""
        title, main, way = await asyncio.to_thread(self._make, *self._read(request))
        address = request.url.path
        return _answer(main if address.endswith("/part") else pages.make_document(title, main, address, way))

    async def show_report(self, request: Request) -> Response:
        """`/sessions/ID/report`: what `sessionrun report` makes."""
        session, _ = self._read(request)
        assert session is not None
        return _answer(await asyncio.to_thread(lambda: make_page(gather(session))))

    async def follow(self, request: Request) -> Response:
        """Server-sent events: one for each change of a page."""
        session, num = self._read(request)
        if num is not None:  # which says what has to be looked at
            await asyncio.to_thread(self._make, session, num)
        return StreamingResponse(
            self._watch.follow(_name(session, num), lambda: self._over), media_type="text/event-stream"
        )

    # --- changes ---

    async def act(self, request: Request) -> Response:
        session, num = self._read(request)
        assert session is not None
        action = request.path_params["action"]
        if action not in ("cancel", "hold", "release", "retry", "land", *(("continue",) if num else ())):
            raise InputError("there is no such action")
        address = request.url.path.rpartition("/")[0]
        try:
            text = await _read_text(request)
            problem = await asyncio.to_thread(_act, action, session, num, text)
        except (SessionrunError, OSError) as error:
            problem = str(error)
        if problem:
            return _answer(pages.make_notice(problem, address), 409)
        return RedirectResponse(address, status_code=303)

    # --- what they are made of ---

    def _read(self, request: Request) -> tuple[SessionDir | None, int | None]:
        """The session that the address names by its whole id, and the number of the task; None: it names none."""
        named, num = request.path_params.get("session", ALL), request.path_params.get("num")
        session = self._open(named) if named else None
        if session is not None and not (_ID.fullmatch(named) and session.spec_path.is_file()):
            raise InputError(f"there is no session {named[:80]!r} in {self._results_dir}")
        if num is not None and not _NUM.fullmatch(num):
            raise InputError(f"there is no task {num[:80]!r}")
        return session, num and int(num)

    def _open(self, session_id: str) -> SessionDir:
        return SessionDir(self._results_dir / f"session-{session_id}")

    def _look(self, name: str) -> Hashable:
        if name == ALL:
            names = sorted(os.listdir(self._results_dir)) if self._results_dir.is_dir() else []
            summaries = [self._results_dir / one / "summary" for one in names if one.startswith("session-")]
            return stamp(self._results_dir, *summaries), int(time.monotonic() / LIVES_S)
        session = self._open(name.partition("/")[0])
        folder = session.path / LANDING_FOLDER
        logs = [folder / one / "log" for one in os.listdir(folder)] if folder.is_dir() else []
        return stamp(session.status_path, *logs, *self._outputs.get(name, ())), session.is_alive()

    def _make(self, session: SessionDir | None, num: int | None) -> Page:
        began = time.monotonic()
        if session is None:
            page: Page = ("Sessions", pages.make_list(load_summaries(self._results_dir), time.time()), ())
        else:
            page = self._make_session(session, num)
        self._cost_s[_name(session, num)] = time.monotonic() - began
        return page

    def _make_session(self, session: SessionDir, num: int | None) -> Page:
        """The page of a session, or of a task of it; what has to be looked at for its news is what it prints."""
        matter: Matter = gather(session, lambda task: task["num"] == num)
        name = name_session(matter.view)
        chosen = [shown for shown in matter.tasks if shown.task["num"] == num]
        if num is not None and not chosen:
            raise InputError(f"session {session.session_id} has no task {num}")
        live = [shown for shown in matter.tasks if shown.sections and shown.task["word"] == "running"]
        self._outputs[_name(session, num)] = tuple(
            session.path / str(shown.task[key]) for shown in chosen or live for key in ("output", "stderr")
        )
        if not chosen:
            return name, pages.make_session(matter, control=self._control), [(name, "")]
        (shown,) = chosen
        way = [(name, f"/sessions/{session.session_id}"), (matter.names[shown.task["id"]], "")]
        return str(shown.task["title"]), pages.make_task(shown, matter, control=self._control), way


MAX_FORM: Final = 3 * MAX_TEXT + 100
"""How long a form may be (bytes): of a text in it each byte may be three."""


async def _read_text(request: Request) -> str:
    """What a person wrote into a form; empty: nothing."""
    form = bytearray()
    async for piece in request.stream():
        form += piece
        if len(form) > MAX_FORM:
            raise InputError(
                f"the text is too long: it may have {MAX_TEXT} bytes; put it into a file and name that"
            )
    text = parse_qs(form.decode("utf-8", "replace")).get("text", [""])[0]
    return text.replace("\r\n", "\n")  # as browsers end the lines of a form


def _name(session: SessionDir | None, num: int | None) -> str:
    return ALL if session is None else session.session_id + ("" if num is None else f"/{num}")


def _act(action: str, session: SessionDir, num: int | None, text: str) -> str | None:
    tasks: list[str] = []
    if num is not None:  # the id of another task may be this number
        known = load_view(session)["tasks"]
        if not 0 < num <= len(known):
            raise InputError(f"session {session.session_id} has no task {num}")
        tasks = [str(known[num - 1]["id"])]
    if action == "land" and (lack := describe_lack("landing")):
        return lack
    if action == "land":
        report = api.merge(session, tasks)
        reasons = [f"task {task['id']}: {task['reason']}" for task in report["tasks"] if task["reason"]]
        why = (report["hold"] or {}).get("reason") or "; ".join(reasons) or "there is nothing to land"
        return None if any(task["status"] == "landed" for task in report["tasks"]) else why
    if action == "retry":
        return None if api.retry(session, tasks, failed=not tasks).tasks else "there is nothing to try again"
    if action == "continue":
        continue_task(session, tasks[0], text)
    elif action == "cancel":
        api.cancel(session, tasks, timeout_s=10.0)
    else:
        (api.hold if action == "hold" else api.release)(session, tasks)
    return None


def _answer(page: str, code: int = 200) -> Response:
    return HTMLResponse(page.encode("utf-8", "backslashreplace"), status_code=code)


async def _tell_error(request: Request, error: Exception) -> Response:
    words: Any = error.strerror if isinstance(error, OSError) else error
    code = 404 if isinstance(error, InputError) else 500
    return PlainTextResponse(f"sessionrun: {words}\n", status_code=code)


HEADERS: Final = {
    "Content-Security-Policy": f"{policy(served=True)}; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",  # with none at all, a form says "null" as its origin
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets through to `app` what has the token; a token in the address becomes a cookie.

    `hosts` are the names and ports by which it is asked, such as ``127.0.0.1:8000``.
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
            if not _is_same(given, self._token):
                return _refuse(401, "that is not the token")
            rest = request.url.remove_query_params("token").query
            place = quote(request.scope["path"]) + (f"?{rest}" if rest else "")
            answer = RedirectResponse(place, status_code=303)
            answer.set_cookie(self._cookie, self._cookie_value, httponly=True, samesite="strict")
            return answer
        has_token = _is_same(headers.get("authorization", "").removeprefix("Bearer "), self._token)
        if not has_token and not _is_same(request.cookies.get(self._cookie), self._cookie_value):
            return _refuse(401, "open the address that sessionrun serve printed: it has the token")
        if request.method not in ("GET", "HEAD"):
            if not self._control:
                return _refuse(403, "this server only shows: start it with --control")
            if origin is None and not has_token:
                return _refuse(403, "a browser has to say from which page it asks")
        return None


def _is_same(given: str | None, secret: str) -> bool:
    return hmac.compare_digest((given or "").encode("utf-8", "replace"), secret.encode())


def _refuse(code: int, why: str) -> Response:
    return PlainTextResponse(f"sessionrun: {why}\n", status_code=code)


def serve(results_dir: Path, host: str, port: int, *, control: bool, tell: Callable[[str, bool], None]) -> None:
    """Show the sessions of a directory until SIGINT or SIGTERM.

    Port 0 is one that is free.  `tell` is given the address with the token, and whether others can ask there.

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
