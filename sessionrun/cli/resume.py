"""`resume`: let a session go on of which no process is left."""

from __future__ import annotations

from pathlib import Path

import click

from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import print_json, session_head
from sessionrun.client.asking.control import resume
from sessionrun.client.lookup import open_session
from sessionrun.client.reading.view import load_view


@click.command("resume")
@click.argument("session_id", metavar="ID")
@json_option
@results_dir_option
def command(session_id: str, as_json: bool, results_dir: Path | None) -> None:
    """Let session ID go on where it was when the last of its processes was killed or the machine went down.

    Jobs that still run are adopted.  What never started is started.  If a task's end was not seen, the task is
    `lost` or `interrupted`, and runs again only on `retry`.  Agents get the environment of this command.
    """
    session = open_session(results_dir, session_id)
    resumed = resume(session)
    view = load_view(session)
    if as_json:
        print_json({"session_id": session.session_id, "resumed": resumed, "status": view["status"]})
    elif resumed:
        click.echo(f"{session_head(view)}: goes on")
    elif view["ended_at"] is not None:
        click.echo(f"{session_head(view)}: has ended ({view['result']})")
    else:
        click.echo(f"{session_head(view)}: is running ({', '.join(session.held_locks())} held)")
