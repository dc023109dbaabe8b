"""`report`: a session as one HTML page."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from sessionrun.cli.options import results_dir_option, session_argument
from sessionrun.cli.render import write_bytes
from sessionrun.client.lookup import open_session
from sessionrun.model.errors import InputError


@click.command("report")
@session_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it there.  [default: standard output]",
)
@results_dir_option
def command(session_id: str, output: Path | None, results_dir: Path | None) -> None:
    """Make a report of session ID, the newest if no ID is given: one HTML page, which needs no network.

    It shows outcomes, a timeline, needs, costs, and of each task its prompt, parts of its answer, and its changes.
    """
    if output is None and sys.stdout.isatty():
        raise InputError("report: name a file with -o, or send standard output to one")
    from sessionrun.client.report.gathering import gather, write_page
    from sessionrun.client.report.page import make_page

    page = make_page(gather(open_session(results_dir, session_id)), time.time()).encode(
        "utf-8", "backslashreplace"
    )
    if output is None:
        write_bytes(page)
        return
    write_page(output, page)
    click.echo(f"{output}: {len(page)} bytes", err=True)
