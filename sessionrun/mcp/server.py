"""The tools as a server of the Model Context Protocol on standard input and output.

Each call runs in a thread, and each tool has threads of its own, so that many that wait hold up no other tool.  An
error of ours is the answer of the tool, marked as an error.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Awaitable, Callable
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

from sessionrun import __version__
from sessionrun.client import SessionrunError
from sessionrun.client.notices import begin
from sessionrun.mcp.tools import Record, SessionId, Tools

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


def make_server(results_dir: Path | None = None) -> MCPServer:
    """The server, for the sessions of one results directory; None: of the one in use."""
    server = _Server("sessionrun", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    tools = Tools(results_dir)

    def wait(
        context: Context,
        session_id: SessionId = "last",
        timeout_s: float = WAIT_S,
        until: Annotated[
            Literal["all", "any", "failed"],
            Field(description="The end of the session, or the next end, or the next failure, of a task."),
        ] = "all",
        since: Annotated[int, Field(description="With any and failed: the cursor of the call before.")] = 0,
    ) -> Record:
        """Wait, with progress notifications; timed_out says whether to call again.  Names what needs attention."""
        seconds = min(max(timeout_s, 0.0), MOST_WAIT_S)
        return tools.wait(session_id, timeout_s=seconds, until=until, since=since, progress=_Reporter(context))

    offered: tuple[Callable[..., Record], ...] = (
        tools.start_session,
        tools.status,
        wait,
        tools.results,
        tools.list,
        tools.cancel,
        tools.retry,
        tools.diff,
    )
    for tool in offered:
        words = (getdoc(tool) or "").partition("\n\n")[0]
        # structured output would repeat each answer
        server.add_tool(_offer(tool), description=words, structured_output=False)
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
