"""`continue`: a task that has ended goes on in its conversation and on its branch, with a follow-up."""

from __future__ import annotations

from pathlib import Path

import click

from sessionrun.cli.control import EXIT_TIMEOUT, NOT_TAKEN, taken_timeout_option
from sessionrun.cli.options import (
    json_option,
    quiet_option,
    results_dir_option,
    sync_option,
)
from sessionrun.cli.render import print_json, session_head
from sessionrun.client.lookup import open_session
from sessionrun.model.errors import InputError


@click.command("continue")
@click.argument("session_id", metavar="ID")
@click.argument("task", metavar="TASK")
@click.argument("text", metavar="TEXT", required=False)
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="Read the follow-up from FILE.")
@taken_timeout_option("the session has taken it")
@sync_option
@quiet_option
@json_option
@results_dir_option
def command(
    session_id: str,
    task: str,
    text: str | None,
    file: Path | None,
    sync: bool,
    timeout: float,
    quiet: bool,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Ask more of TASK of session ID, which has ended: it goes on where it stopped, with TEXT.

    Its agent gets TEXT in the same conversation, and works on the same branch.  A TEXT of - is read from standard
    input.
    """
    from sessionrun.client.asking.continuing import continue_task

    session = open_session(results_dir, session_id)
    reply = continue_task(session, task, _read_text(text, file), timeout_s=timeout)
    if reply.taken and sync:
        from sessionrun.cli.sync import follow_run

        return follow_run(session, as_json=as_json, quiet=quiet)
    if as_json:
        view = reply.view
        print_json({"session_id": view["session_id"]} if quiet else {**view, "tasks": reply.tasks})
    elif quiet:
        click.echo(reply.view["session_id"])
    else:
        goes_on = f"task {reply.tasks[0]['id']} goes on, attempt {reply.tasks[0]['attempt']}"
        click.echo(f"{session_head(reply.view)}: {goes_on if reply.taken else NOT_TAKEN}")
    return 0 if reply.taken or not timeout else EXIT_TIMEOUT


def _read_text(text: str | None, file: Path | None) -> str:
    """The follow-up, from wherever it was given.

    Raises:
        InputError: it was given twice or nowhere, or cannot be read.
    """
    from sessionrun.client.planning.inputs import read_source

    if (text is None) == (file is None):
        raise InputError("give the follow-up once: as TEXT, as - for standard input, or with --file FILE")
    if text is not None and text != "-":
        return text
    given = "-" if file is None else str(file)
    try:
        return read_source(given).text.decode()
    except UnicodeDecodeError:
        raise InputError(f"{'stdin' if given == '-' else given}: is not UTF-8; save it as UTF-8") from None
