"""`resume`: let a session go on of which no process is left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import print_json, warn
from sessionrun.client.lookup import open_session
from sessionrun.client.view import load_view
from sessionrun.store.session import SessionDir


@click.command("resume")
@click.argument("session_id", metavar="ID")
@json_option
@results_dir_option
def command(session_id: str, as_json: bool, results_dir: Path | None) -> None:
    """Let session ID go on where it was when the last of its processes was killed or the machine went down.

    Jobs that still run are adopted; what never started is started; a task that was running when nobody was there
    to see its end is `lost` or `interrupted`, and runs again only on `retry`.  Agents get the environment of this
    command.
    """
    from sessionrun.runtime.launch import resume

    session = open_session(results_dir, session_id)
    view = load_view(session)
    resumed = view["ended_at"] is None and resume(session)
    if resumed:
        _warn_of_other_programs(session)
    if as_json:
        print_json({"session_id": session.session_id, "resumed": resumed, "status": load_view(session)["status"]})
    elif resumed:
        click.echo(f"Session: {session.session_id}: goes on")
    elif view["ended_at"] is not None:
        click.echo(f"Session: {session.session_id}: has ended ({view['outcome']})")
    else:
        click.echo(f"Session: {session.session_id}: is running ({', '.join(session.held_locks())} held)")


def _warn_of_other_programs(session: SessionDir) -> None:
    """An agent keeps the program it was launched with, whatever this command's PATH has by that name."""
    for agent in session.load_spec().agents.values():
        program = agent.argv[0]
        here = shutil.which(os.path.basename(program))
        if not os.access(program, os.X_OK):
            warn(f"agent {agent.name}: {program}, with which the session was started, cannot be executed any more")
        elif here is not None and not os.path.samefile(here, program):
            warn(f"agent {agent.name}: the session goes on with {program}; PATH has {here} now")
