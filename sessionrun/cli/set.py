"""`set`: change how many tasks of a running session may run at once."""

from __future__ import annotations

from pathlib import Path

import click

from sessionrun.cli.control import EXIT_TIMEOUT, NOT_TAKEN, taken_timeout_option
from sessionrun.cli.options import Count, json_option, results_dir_option
from sessionrun.cli.render import print_json, session_head
from sessionrun.client.asking.control import set_width
from sessionrun.client.lookup import open_session


@click.command("set")
@click.argument("session_id", metavar="ID")
@click.option(
    "--max-parallel",
    "width",
    type=Count(),
    metavar="N",
    required=True,
    help="How many tasks may run at once; 0 = no limit.",
)
@taken_timeout_option("it is done")
@json_option
@results_dir_option
def command(session_id: str, width: int, timeout: float, as_json: bool, results_dir: Path | None) -> int:
    """Change how many tasks of session ID, which runs, may run at once.

    Tasks that run go on, also if there are more of them.
    """
    taken, _, view, _ = set_width(open_session(results_dir, session_id), width, timeout_s=timeout)
    if as_json:
        print_json(view)
    else:
        limit = view["max_parallel"] or "no limit"
        click.echo(f"{session_head(view)}: {f'max_parallel: {limit}' if taken else NOT_TAKEN}")
    return EXIT_TIMEOUT if timeout and not taken else 0
