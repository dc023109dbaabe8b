"""`cancel`: ask the supervisor to stop a session, or some of its tasks, and see it done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sessionrun.cli.control import EXIT_TIMEOUT, control_options, count_words
from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import print_json, warn
from sessionrun.client.control import cancel
from sessionrun.client.lookup import open_session
from sessionrun.client.view import describe_shortage


@click.command("cancel")
@control_options
@click.option(
    "--now", is_flag=True, help="Kill at once, without grace time; also jobs that are stopping or releasing."
)
@json_option
@results_dir_option
def command(
    session_id: str, tasks: tuple[str, ...], now: bool, timeout: float, as_json: bool, results_dir: Path | None
) -> int:
    """Stop session ID, or only the given tasks, with all their processes.

    Tasks that have ended stay as they are; cancelling twice does no harm.
    """
    taken, _, view, chosen = cancel(open_session(results_dir, session_id), tasks, now=now, timeout_s=timeout)
    shortage = describe_shortage(view)
    if shortage is not None:
        warn(f"{shortage}: ends of tasks are recorded once there is room")
    if as_json:
        print_json({**view, "tasks": chosen})
    else:
        click.echo(_summary(view, chosen))
    return EXIT_TIMEOUT if timeout and not taken else 0


def _summary(view: dict[str, Any], tasks: list[dict[str, Any]]) -> str:
    counts = count_words(
        (
            (sum(task["outcome"] == "cancelled" for task in tasks), "cancelled"),
            (sum(task["outcome"] not in (None, "cancelled") for task in tasks), "had ended before"),
            (sum(task["status"] != "completed" for task in tasks), "still stopping"),
        )
    )
    return f"Session: {view['session_id']}: {counts or 'nothing to cancel'}"
