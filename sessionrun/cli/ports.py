"""Other doors to sessions: tools for an agent (MCP), pages for a browser, sessions as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sessionrun.cli.options import flag, results_dir_option, session_argument, valued
from sessionrun.cli.render import warn, write_bytes
from sessionrun.client.installation import lack
from sessionrun.client.lookup import LAST, find_results_dir, open_session
from sessionrun.model.errors import InputError
from sessionrun.store.session import iterate_sessions


@click.command("mcp")
@results_dir_option
def mcp(results_dir: Path | None) -> None:
    """Serve sessions as tools to an agent that starts this command (MCP).  Needs the extra `mcp`."""
    try:
        from sessionrun.doors.mcp import serve
    except ImportError as error:
        raise lack("mcp", error.name, "mcp") from None
    serve(results_dir)


@click.command("serve")
@valued("--port", "N", "Where to listen; 0: a free one.  [default: 0]", click.IntRange(0, 65535), default=0)
@valued("--host", "ADDRESS", "The address to listen at.  [default: 127.0.0.1]", default="127.0.0.1")
@flag("--control", "Also buttons: cancel, hold, release, retry, ask more, land.")
@results_dir_option
def browse(port: int, host: str, control: bool, results_dir: Path | None) -> None:
    """Show the sessions of the results directory to a browser until Ctrl-C: open the address that is printed.

    The address has a token, and so only its reader can see anything.
    Needs the extra `serve`: install sessionrun[serve].
    """
    try:
        from sessionrun.doors.server import serve
    except ImportError as error:
        raise lack("serve", error.name, "serve") from None

    def tell(address: str, is_open: bool) -> None:
        if is_open:
            warn(f"{host} can be asked from other machines, and what is sent is not encrypted")
        click.echo(address)

    serve(find_results_dir(results_dir).absolute(), host, port, control=control, tell=tell)


@click.command("report")
@session_argument
@flag("--all everything", "Of all sessions: success, cost and time, day by day.")
@valued(
    "-o --output",
    "FILE",
    "Write it there.  [default: standard output]",
    click.Path(dir_okay=False, path_type=Path),
)
@results_dir_option
def report(session_id: str, everything: bool, output: Path | None, results_dir: Path | None) -> None:
    """Make a report of session ID, the newest if no ID is given: one HTML page, which needs no network.

    It shows what came out, what needs a person, why tasks failed, when they ran, what they need of each other and
    cost, and of each task its check, its answer, its changes and its prompt.
    """
    if output is None and sys.stdout.isatty():
        raise InputError("report: name a file with -o, or send standard output to one")
    if everything and session_id != LAST:
        raise InputError("--all takes no session ID")
    from sessionrun.client.lookup import load_many
    from sessionrun.client.reading.view import load_view
    from sessionrun.doors.gathering import gather
    from sessionrun.doors.pages import make_overview_page
    from sessionrun.doors.report import make_page
    from sessionrun.store.files import replace_file

    if everything:
        sessions = iterate_sessions(find_results_dir(results_dir).absolute())
        text = make_overview_page(load_many(sessions, load_view))
    else:
        text = make_page(gather(open_session(results_dir, session_id)))
    page = text.encode("utf-8", "backslashreplace")
    if output is None:
        write_bytes(page)
        return
    place = output.resolve()
    if not place.parent.is_dir():
        raise InputError(f"{output}: there is no directory {place.parent}; make it, or name another file")
    if place.exists() and not place.is_file():  # a pipe is written to as it is
        place.write_bytes(page)
    else:  # the file is whole or not there at all, and its owner alone can read it
        replace_file(place, page, durable=False, sweeps=True)
    click.echo(f"{output}: {len(page)} bytes", err=True)
