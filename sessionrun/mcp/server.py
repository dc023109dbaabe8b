"""The tools as a server of the Model Context Protocol on standard input and output.

Each call runs in a thread, and each tool has threads of its own, so that many that wait hold up no other tool.  An
error of ours is the answer of the tool, marked as an error.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import anyio
import orjson
from anyio.from_thread import run as run_in_loop
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from sessionrun import __version__
from sessionrun.client import SessionrunError
from sessionrun.client.notices import begin
from sessionrun.mcp.tools import MAX_BYTES, Tools

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

SessionId = Annotated[str, Field(description="A session's id, an unambiguous beginning of it, its name, or last.")]
Tasks = Annotated[tuple[str, ...], Field(description="Ids or numbers of tasks; empty: all that are meant.")]
Size = Annotated[int, Field(description="The answer has at most so many bytes; about 3 make a token.")]


def make_server(results_dir: Path | None = None) -> MCPServer:
    """The server, for the sessions of one results directory; None: of the one in use."""
    server = _Server("sessionrun", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    door = _Door(Tools(results_dir))
    for tool in (
        door.start_session,
        door.status,
        door.wait,
        door.results,
        door.list,
        door.cancel,
        door.retry,
        door.diff,
    ):
        server.add_tool(tool, structured_output=False)  # it would repeat each answer
    return server


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


class _Door:
    """The tools as the protocol offers them: their names, arguments and descriptions are what an agent reads."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._threads: dict[str, anyio.CapacityLimiter] = {}

    async def _call(self, work: partial[dict[str, Any]]) -> str:
        """Run a tool in a thread; its answer as JSON.

        Raises:
            ToolError: what the client said.
        """
        tool = work.func.__name__
        if tool not in self._threads:
            self._threads[tool] = anyio.CapacityLimiter(WAITS if tool == "wait" else THREADS)
        # when the caller goes, a session that is being made is made whole; all else may be left at any moment
        may_leave = work.func != self._tools.start
        return await anyio.to_thread.run_sync(_run, work, abandon_on_cancel=may_leave, limiter=self._threads[tool])

    async def start_session(
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
    ) -> str:
        """Start a session of tasks in the background and return at once with its session_id."""
        return await self._call(
            partial(
                self._tools.start,
                prompts,
                plan,
                agent=agent,
                model=model,
                max_parallel=max_parallel,
                timeout=timeout,
                name=name,
                worktree=worktree,
                check=check,
                budget_usd=budget_usd,
            ),
        )

    async def status(
        self,
        session_id: SessionId = "last",
        since: Annotated[int | None, Field(description="A cursor: then all tasks that changed since.")] = None,
    ) -> str:
        """Counts of a session, and the tasks that need attention: failed, held, not landed.  Has a cursor."""
        return await self._call(partial(self._tools.status, session_id, since))

    async def wait(
        self,
        context: Context,
        session_id: SessionId = "last",
        timeout_s: float = WAIT_S,
        until: Annotated[
            Literal["all", "any", "failed"],
            Field(description="The end of the session, or the next end, or the next failure, of a task."),
        ] = "all",
        since: Annotated[int, Field(description="With any and failed: the cursor of the call before.")] = 0,
    ) -> str:
        """Wait, with progress notifications; timed_out says whether to call again.  Names what needs attention."""
        seconds = min(max(timeout_s, 0.0), MOST_WAIT_S)
        reporter = _Reporter(context)
        return await self._call(
            partial(self._tools.wait, session_id, timeout_s=seconds, until=until, since=since, progress=reporter),
        )

    async def results(
        self,
        session_id: SessionId = "last",
        tasks: Tasks = (),
        failed: Annotated[bool, Field(description="Only tasks that did not succeed.")] = False,
        max_bytes: Size = MAX_BYTES,
    ) -> str:
        """What tasks answered: all of it if it fits, else beginning, lines with errors, and end of each answer."""
        return await self._call(
            partial(self._tools.results, session_id, tasks, failed=failed, max_bytes=max_bytes)
        )

    async def list(self, limit: int = 10) -> str:
        """The newest sessions of this project."""
        return await self._call(partial(self._tools.list, limit))

    async def cancel(
        self,
        session_id: Annotated[str, Field(description="A session's id, or an unambiguous beginning of it.")],
        tasks: Tasks = (),
        now: Annotated[bool, Field(description="Kill without grace.")] = False,
    ) -> str:
        """Stop a session, or some of its tasks.  Work in worktrees is saved on branches."""
        return await self._call(partial(self._tools.cancel, session_id, tasks, now=now))

    async def retry(self, session_id: SessionId = "last", tasks: Tasks = ()) -> str:
        """Try tasks again: the named ones, else all that failed, timed out or were lost."""
        return await self._call(partial(self._tools.retry, session_id, tasks))

    async def diff(
        self,
        session_id: SessionId = "last",
        tasks: Tasks = (),
        patch: Annotated[bool, Field(description="The patches, not only which files changed.")] = False,
        max_bytes: Size = MAX_BYTES,
    ) -> str:
        """What tasks changed in their worktrees."""
        return await self._call(partial(self._tools.diff, session_id, tasks, stat=not patch, max_bytes=max_bytes))


class _Reporter:
    """Tells the caller how far a session is: see `client.Progress`.  Called in the thread of a tool."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: tuple[int, int] | None = None

    def show(self, view: dict[str, Any]) -> None:
        """Notify the caller, if something changed."""
        counts = (int(view["completed"]), int(view["failed"]))
        if counts != self._told:
            self._told = counts
            message = f"{view['completed']}/{view['total']} done, {view['failed']} failed"
            run_in_loop(self._context.report_progress, float(counts[0]), float(view["total"]), message)

    def close(self) -> None:
        """Nothing stays open."""


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


def serve(results_dir: Path | None = None) -> None:
    """Answer calls on standard input and output until the caller goes."""
    warnings.simplefilter("ignore")  # they would go to standard error, which callers do not show
    make_server(results_dir).run("stdio")
    sys.stdout.flush()
    os._exit(0)  # the threads of calls that the caller has left may wait for an hour
