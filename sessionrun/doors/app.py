"""The requests, and what answers each; all work with files is done in threads."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Hashable
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from sessionrun import api
from sessionrun.client.reading.selection import load_summaries
from sessionrun.doors import pages
from sessionrun.doors.gathering import Matter, gather
from sessionrun.doors.markup import Markup
from sessionrun.doors.report import make_page
from sessionrun.doors.watching import Watch, stamp
from sessionrun.house import describe_lack
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.wording import name_session
from sessionrun.store.session import SessionDir

ALL = ""
"""The name of the list of all sessions, among the ids of sessions."""

SHARE: Final = 5.0
"""The news of a page come no sooner than this many times what it takes to make it."""

LIVES_S: Final = 10.0
"""So often the list is made anew to see which sessions live: no file says that."""


_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_NUM: Final = re.compile(r"[0-9]{1,9}")


class Desk:
    """Answers all requests of one server."""

    def __init__(self, results_dir: Path, *, control: bool) -> None:
        self._results_dir, self._control = results_dir, control
        self._over = False
        self._outputs: dict[str, tuple[Path, ...]] = {}
        self._cost_s: dict[str, float] = {}
        self._watch = Watch(self._look, lambda name: SHARE * self._cost_s.get(name, 0.0))

    def make_app(self) -> Starlette:
        """What a server runs."""
        get = ["GET"]
        routes = [
            Route("/", self.show_list, methods=get),
            Route("/part", self.show_part, methods=get),
            Route("/events", self.follow, methods=get),
            Route("/live.js", self.give_script, methods=get),
            Route("/sessions/{session}", self.show_session, methods=get),
            Route("/sessions/{session}/part", self.show_part, methods=get),
            Route("/sessions/{session}/events", self.follow, methods=get),
            Route("/sessions/{session}/report", self.show_report, methods=get),
            Route("/sessions/{session}/tasks/{num}", self.show_task, methods=get),
            Route("/sessions/{session}/tasks/{num}/part", self.show_task_part, methods=get),
            Route("/sessions/{session}/tasks/{num}/events", self.follow, methods=get),
            Route("/sessions/{session}/{action}", self.act, methods=["POST"]),
            Route("/sessions/{session}/tasks/{num}/{action}", self.act, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={SessionrunError: _tell_error, OSError: _tell_error})

    def close(self) -> None:
        """End the streams, so that the server can leave."""
        self._over = True

    # --- pages ---

    async def show_list(self, request: Request) -> Response:
        """`/`: all sessions."""
        main = await asyncio.to_thread(self._make_part, ALL)
        return _answer(pages.make_document("Sessions", main, "/"))

    async def show_session(self, request: Request) -> Response:
        """`/sessions/ID`."""
        session = self._find(request)
        main = await asyncio.to_thread(self._make_part, session.session_id)
        name = name_session(await asyncio.to_thread(api.load_view, session))
        return _answer(pages.make_document(name, main, f"/sessions/{session.session_id}", [(name, "")]))

    async def show_part(self, request: Request) -> Response:
        """What changes of these pages."""
        name = self._find(request).session_id if "session" in request.path_params else ALL
        return _answer(await asyncio.to_thread(self._make_part, name))

    async def show_task(self, request: Request) -> Response:
        """`/sessions/ID/tasks/NUM`."""
        session, num = self._find(request), _read_num(request)
        main, title, way = await asyncio.to_thread(self._make_task, session, num)
        return _answer(pages.make_document(title, main, f"/sessions/{session.session_id}/tasks/{num}", way))

    async def show_task_part(self, request: Request) -> Response:
        """What changes of that page."""
        main, *_ = await asyncio.to_thread(self._make_task, self._find(request), _read_num(request))
        return _answer(main)

    async def show_report(self, request: Request) -> Response:
        """`/sessions/ID/report`: what `sessionrun report` makes."""
        session = self._find(request)
        return _answer(await asyncio.to_thread(lambda: make_page(gather(session))))

    async def give_script(self, request: Request) -> Response:
        """The script of all pages."""
        script = files(__package__).joinpath("live.js").read_bytes()
        return Response(script, media_type="text/javascript")

    async def follow(self, request: Request) -> Response:
        """Server-sent events: one for each change of a page."""
        name = self._find(request).session_id if "session" in request.path_params else ALL
        if "num" in request.path_params:
            num = _read_num(request)
            name = f"{name}/{num}"
            await asyncio.to_thread(self._make_task, self._find(request), num)
        return StreamingResponse(self._watch.follow(name, lambda: self._over), media_type="text/event-stream")

    # --- changes ---

    async def act(self, request: Request) -> Response:
        """A button was pressed."""
        session, num = self._find(request), _read_num(request) if "num" in request.path_params else None
        action = request.path_params["action"]
        if action not in ("cancel", "hold", "release", "retry", "land"):
            raise InputError("there is no such action")
        address = f"/sessions/{session.session_id}" + ("" if num is None else f"/tasks/{num}")
        try:
            problem = await asyncio.to_thread(_act, action, session, () if num is None else (str(num),))
        except (SessionrunError, OSError) as error:
            problem = str(error)
        if problem:
            return _answer(pages.make_notice(problem, address), 409)
        return RedirectResponse(address, status_code=303)

    # --- what they are made of ---

    def _find(self, request: Request) -> SessionDir:
        """The session that the address names by its whole id."""
        session_id = request.path_params["session"]
        session = self._open(session_id)
        if not _ID.fullmatch(session_id) or not session.spec_path.is_file():
            raise InputError(f"there is no session {session_id[:80]!r} in {self._results_dir}")
        return session

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

    def _make_part(self, name: str) -> Markup:
        began = time.monotonic()
        if name == ALL:
            part = pages.make_list(load_summaries(self._results_dir), time.time())
        else:
            session = self._open(name)
            matter = gather(session, lambda task: False)
            self._outputs[name] = tuple(
                session.path / str(shown.task[key])
                for shown in matter.tasks
                if shown.sections and shown.task["word"] == "running"
                for key in ("output", "stderr")
            )
            part = pages.make_session(matter, time.time(), control=self._control)
        self._cost_s[name] = time.monotonic() - began
        return part

    def _make_task(self, session: SessionDir, num: int) -> tuple[Markup, str, list[tuple[str, str]]]:
        matter: Matter = gather(session, lambda task: bool(task["num"] == num))
        shown = next((one for one in matter.tasks if one.task["num"] == num), None)
        if shown is None:
            raise InputError(f"session {session.session_id} has no task {num}")
        name = f"{session.session_id}/{num}"
        self._outputs[name] = tuple(session.path / str(shown.task[key]) for key in ("output", "stderr"))
        way = [
            (name_session(matter.view), f"/sessions/{session.session_id}"),
            (matter.names[shown.task["id"]], ""),
        ]
        return pages.make_task(shown, matter, control=self._control), str(shown.task["title"]), way


def _read_num(request: Request) -> int:
    num = request.path_params["num"]
    if not _NUM.fullmatch(num):
        raise InputError(f"there is no task {num[:80]!r}")
    return int(num)


def _land(session: SessionDir, tasks: tuple[str, ...]) -> str | None:
    report = api.merge(session, tasks)
    if any(task["status"] == "landed" for task in report["tasks"]):
        return None
    hold = report["hold"] or {}
    reasons = [f"task {task['id']}: {task['reason']}" for task in report["tasks"] if task["reason"]]
    return hold.get("reason") or "; ".join(reasons) or "there is nothing to land"


def _act(action: str, session: SessionDir, tasks: tuple[str, ...]) -> str | None:
    """Do what a button says; what was the matter if nothing came of it."""
    if action == "land":
        return describe_lack("landing") or _land(session, tasks)
    if action == "retry":
        return None if api.retry(session, tasks, failed=not tasks).tasks else "there is nothing to try again"
    if action == "cancel":
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
