"""Sessions as tools of the Model Context Protocol, on standard input and output.

The names, arguments and first lines of the tools are what an agent reads.  A caller pays for each byte of an
answer: so each has at most `MAX_BYTES` bytes, unless the caller asks for more, and what is left out is counted.

Each call runs in a thread, and each tool has threads of its own, so that many that wait hold up no other tool.  An
error of ours is the answer of the tool, marked as an error.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import orjson
from anyio.from_thread import run as run_in_loop
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from sessionrun import __version__, api
from sessionrun.client.lookup import find_results_dir
from sessionrun.client.notices import begin
from sessionrun.client.reading.digest import describe_digest, drop_empty, find_most, make_brief
from sessionrun.client.reading.telling import add_tellings
from sessionrun.client.reading.waiting import has_failed
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.spec import SLOT
from sessionrun.model.wording import BRIEF_BYTES
from sessionrun.store.session import SessionDir

INSTRUCTIONS: Final = """\
Runs many AI coding agents (claude, codex, qwen, gemini, ... or plain shell commands) at once, in detached \
background sessions. Start a session, then call wait until timed_out is false. The tasks that status and wait \
name need attention. results gives the telling parts of answers. With worktree each task works on a git branch of \
its own, and diff shows what it changed."""

WAIT_S: Final = 50
"""How long `wait` waits unless it is told: many callers end a call after a minute."""

MOST_WAIT_S: Final = 3600
THREADS: Final = 40
"""So many calls of a tool run at once; more of them wait for one of these."""

WAITS: Final = 1000
"""The same of `wait`, whose threads sleep."""

ERROR_BYTES: Final = 2000

MAX_BYTES: Final = 6000
LEAST_BYTES: Final = 1000
MOST_BYTES: Final = 200_000

Record = dict[str, Any]
SessionId = Annotated[str, Field(description="A session's id, an unambiguous beginning of it, its name, or last.")]
Tasks = Annotated[tuple[str, ...], Field(description="Ids or numbers of tasks; empty: all that are meant.")]
Size = Annotated[int, Field(description="The answer has at most so many bytes; about 3 make a token.")]


class Tools:
    """The tools of one server, for the sessions of one results directory."""

    def __init__(self, results_dir: Path | None = None) -> None:
        self._results_dir = results_dir

    def start_session(
        self,
        prompts: Annotated[tuple[str, ...], Field(description="One task for each prompt.")] = (),
        plan: Annotated[
            dict[str, Any] | list[Any] | str | None,
            Field(
                description='In place of prompts: {"prompts": [{"id": "a", "prompt": "...", "needs": ["b"], '
                '"check": "make test"}], "defaults": {...}}, or the name of a file.'
            ),
        ] = None,
        agent: Annotated[str | None, Field(description="claude, codex, qwen, gemini, shell, ...")] = None,
        model: str | None = None,
        max_parallel: Annotated[int | None, Field(description="How many tasks run at once; 0: all.")] = None,
        timeout: Annotated[str | None, Field(description="Of each attempt, such as 10m or 2h.")] = None,
        name: str | None = None,
        worktree: Annotated[bool, Field(description="Each task gets a git worktree and a branch.")] = False,
        check: Annotated[tuple[str, ...], Field(description="Commands that must exit 0 before work counts.")] = (),
        budget_usd: float | None = None,
    ) -> Record:
        """Start a session of tasks in the background and return at once with its session_id.

        Raises:
            InputError: what is wrong with what was given; nothing was started.
            StoreError: the session could not be made.
        """
        if bool(prompts) == (plan is not None):
            raise InputError("give either prompts, a list of texts, or plan, an object or the name of a file")
        asked = {"agent": agent, "model": model, "name": name, "prompts": list(prompts), "check": list(check)}
        limits = {"max_parallel": max_parallel, "timeout_s": timeout, "budget_usd": budget_usd}
        if isinstance(plan, str) and plan.lstrip()[:1] in ("{", "["):  # the plan itself, spelled as a text
            try:
                plan = orjson.loads(plan)
            except orjson.JSONDecodeError as error:
                raise InputError(f"plan: not valid JSON: {error}") from None
        planned = api.plan(plan, {**asked, **limits, "worktree": worktree})
        if isinstance(planned, api.Nothing) or not planned.spec.tasks:
            return {"session_id": None, "total": 0}
        session = api.launch(planned.spec, self._results_dir)
        spec = planned.spec
        return {
            "session_id": session.session_id,
            "total": len(spec.tasks),
            "max_parallel": spec.resources.get(SLOT),
            "agent": spec.agent,
            "agent_reason": planned.agent_reason,
            "results_dir": str(session.path),
            "warnings": list(planned.warnings),
        }

    def status(
        self,
        session_id: SessionId = "last",
        since: Annotated[int | None, Field(description="A cursor: then all tasks that changed since.")] = None,
    ) -> Record:
        """Counts of a session, and the tasks that need attention: failed, held, not landed.  Has a cursor."""
        session = self._open(session_id)
        if since is None:
            view = api.load_view(session)
            return _fit(make_brief(view, _add_words(session, view["tasks"])))
        view, changed = api.load_since(session, since)
        return _fit(make_brief(view, _add_words(session, changed), every=True))

    def wait(
        self,
        session_id: SessionId = "last",
        timeout_s: float = WAIT_S,
        until: Annotated[
            Literal["all", "any", "failed"],
            Field(description="The end of the session, or the next end, or the next failure, of a task."),
        ] = "all",
        since: Annotated[int, Field(description="With any and failed: the cursor of the call before.")] = 0,
        context: Context | None = None,
    ) -> Record:
        """Wait, with progress notifications; timed_out says whether to call again.  Names what needs attention."""
        session, seconds = self._open(session_id), min(max(timeout_s, 0.0), MOST_WAIT_S)
        if until == "all":
            waited = api.wait(session, timeout_s=seconds, progress=_report_to(context) if context else None)
            brief = make_brief(waited.view, _add_words(session, waited.tasks))
            return _fit({**brief, "timed_out": not waited.in_time})
        found = api.wait_for_next(session, since=since, failed=until == "failed", timeout_s=seconds)
        ends = {"cursor": found.cursor, "left": found.left, "timed_out": not found.in_time}
        return _fit({**make_brief(found.view, _add_words(session, found.tasks), every=True), **ends})

    def results(
        self,
        session_id: SessionId = "last",
        tasks: Tasks = (),
        failed: Annotated[bool, Field(description="Only tasks that did not succeed.")] = False,
        max_bytes: Size = MAX_BYTES,
    ) -> Record:
        """What tasks answered: all of it if it fits, else beginning, lines with errors, and end of each answer."""
        session = self._open(session_id)
        view = api.load_view(session)
        chosen = api.choose_tasks(view, tasks)
        chosen = [task for task in chosen if not failed or has_failed(task)]
        return describe_digest(session, view, chosen, _bound(max_bytes))

    def list(self, limit: int = 10) -> Record:
        """The newest sessions of this project."""
        views = api.load_summaries(find_results_dir(self._results_dir))
        keys = (
            *("session_id", "name", "status", "state", "result", "held_until", "started_at"),
            *("total", "completed", "running", "failed", "counts"),
        )
        shown = [drop_empty({key: view[key] for key in keys}) for view in views[: max(1, limit)]]
        return _fit({"total": len(views), "sessions": shown}, "sessions")

    def cancel(
        self,
        session_id: Annotated[str, Field(description="A session's id, or an unambiguous beginning of it.")],
        tasks: Tasks = (),
        now: Annotated[bool, Field(description="Kill without grace.")] = False,
    ) -> Record:
        """Stop a session, or some of its tasks.  Work in worktrees is saved on branches."""
        return _tell(api.cancel(self._open(session_id), tasks, now=now))

    def retry(self, session_id: SessionId = "last", tasks: Tasks = ()) -> Record:
        """Try tasks again: the named ones, else all that failed, timed out or were lost."""
        return _tell(api.retry(self._open(session_id), tasks))

    def diff(
        self,
        session_id: SessionId = "last",
        tasks: Tasks = (),
        patch: Annotated[bool, Field(description="The patches, not only which files changed.")] = False,
        max_bytes: Size = MAX_BYTES,
    ) -> Record:
        """What tasks changed in their worktrees."""
        session = self._open(session_id)
        chosen = api.find_changed(session, tasks)
        bound, changes = _bound(max_bytes), []
        for change in api.read_changes(session, chosen, stat=not patch):
            text, size = b"", 0
            for piece in change.pieces:  # the beginning of it all is kept, and how much there is
                size += len(piece)
                text += piece[: max(0, bound - len(text))]
            about = {key: change.task[key] for key in ("id", "branch", "commit")}
            changes.append({**about, "text": text.decode("utf-8", "backslashreplace"), "text_bytes": size})
        record: Record = {"session_id": session.session_id, "tasks": changes}
        frame = len(orjson.dumps({**record, "tasks": [{**task, "text": ""} for task in changes]}))
        for task in changes:
            task["text"] = _cut(task["text"], max(0, bound - frame) // len(changes))
        return _fit(record, max_bytes=bound)

    def _open(self, session_id: str) -> SessionDir:
        return api.open_session(self._results_dir, session_id)


def _bound(max_bytes: int) -> int:
    return min(max(max_bytes, LEAST_BYTES), MOST_BYTES)


def _add_words(session: SessionDir, tasks: Sequence[dict[str, Any]]) -> list[Record]:
    return add_tellings(session, tasks, BRIEF_BYTES // 2)  # an answer fills the context of an agent


def _tell(reply: api.Reply) -> Record:
    return _fit({**make_brief(reply.view, reply.tasks, every=True), "taken": reply.taken})


def _cut(text: str, room: int) -> str:
    """The beginning of a text that takes no more room than this in JSON."""
    return text[: find_most(len(text), lambda length: len(orjson.dumps(text[:length])) - 2 <= room)]


def _fit(record: Record, key: str = "tasks", *, max_bytes: int = MAX_BYTES) -> Record:
    """A record whose list is cut at its end until it fits; `more` counts what was left out."""
    items = record[key]

    def make(count: int) -> Record:
        left = len(items) - count
        return {**record, key: items[:count], **({"more": left} if left else {})}

    if len(orjson.dumps(record)) <= max_bytes:
        return record
    return make(find_most(len(items), lambda count: len(orjson.dumps(make(count))) <= max_bytes))


# --- the server ---


def serve(results_dir: Path | None = None) -> None:
    """Answer calls on standard input and output until the caller goes.

    They are about the sessions of one results directory; None: of the one in use.
    """
    warnings.simplefilter("ignore")  # they would go to standard error, which callers do not show
    server = _Server("sessionrun", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    tools = Tools(results_dir)
    for name in ("start_session", "status", "wait", "results", "list", "cancel", "retry", "diff"):
        tool = getattr(tools, name)
        words = (getdoc(tool) or "").partition("\n\n")[0]
        # structured output would repeat each answer
        server.add_tool(_offer(tool), description=words, structured_output=False)
    server.run("stdio")
    sys.stdout.flush()
    os._exit(0)  # the threads of calls that the caller has left may wait for an hour


class _Server(MCPServer):
    """Keeps errors short: that of an argument which does not fit has a line for each of its items."""

    async def call_tool(self, *words: Any, **more: Any) -> Any:
        """Call a tool.

        Raises:
            ToolError: what went wrong.
        """
        try:
            return await super().call_tool(*words, **more)
        except ToolError as error:
            text = str(error).encode("utf-8", "backslashreplace")
            if len(text) > ERROR_BYTES:
                error.args = (f"{text[:ERROR_BYTES].decode('utf-8', 'ignore')}... ({len(text)} bytes)",)
            raise


def _offer(tool: Callable[..., Record]) -> Callable[..., Awaitable[str]]:
    """A tool as the protocol offers it, with the arguments and the description that an agent reads."""
    limiter = anyio.CapacityLimiter(WAITS if tool.__name__ == "wait" else THREADS)
    # when the caller goes, a session that is being made is made whole; all else may be left at any moment
    may_leave = tool.__name__ != "start_session"

    @wraps(tool)
    async def call(*words: Any, **named: Any) -> str:
        work = partial(_run, partial(tool, *words, **named))
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=may_leave, limiter=limiter)

    return call


def _report_to(context: Context) -> Callable[[dict[str, Any]], None]:
    """What tells the caller how far a session is, in the thread of a tool."""
    last = ""

    def report(view: dict[str, Any]) -> None:
        nonlocal last
        message = f"{view['completed']}/{view['total']} done, {view['failed']} failed"
        if message != last:
            last = message
            run_in_loop(context.report_progress, float(view["completed"]), float(view["total"]), message)

    return report


def _run(work: Callable[[], dict[str, Any]]) -> str:
    begin()
    try:
        record = work()
    except SessionrunError as error:
        raise ToolError(" ".join(str(error).split())) from None
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else "reading or writing"
        raise ToolError(f"{where}: {error.strerror or error}") from None
    return orjson.dumps(record).decode()
