"""`hold`: nothing new of a session, or of some of its tasks, is started until it is released."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sessionrun.cli.control import EXIT_TIMEOUT, NOT_TAKEN, control_options, count_words
from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import print_json
from sessionrun.client.control import hold
from sessionrun.client.lookup import open_session


@click.command("hold")
@control_options
@click.option("--reason", metavar="TEXT", help="What `status` shows as the reason.  [default: on request]")
@json_option
@results_dir_option
def command(
    session_id: str,
    tasks: tuple[str, ...],
    timeout: float,
    reason: str | None,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Start nothing more of session ID, or of the given tasks, until `release`.

    What runs goes on: its check is still made, its worktree released.
    """
    taken, _, view, chosen = hold(open_session(results_dir, session_id), tasks, reason=reason, timeout_s=timeout)
    code = EXIT_TIMEOUT if timeout and not taken else 0
    if as_json:
        print_json({**view, "tasks": chosen})
        return code
    counts = count_words(
        (
            (sum(task["reason_class"] == "held" for task in chosen), "held"),
            (sum(task["status"] == "running" and task["reason_class"] != "held" for task in chosen), "running on"),
        )
    )
    click.echo(f"Session: {view['session_id']}: {(counts or _describe_rest(view)) if taken else NOT_TAKEN}")
    return code


def _describe_rest(view: Mapping[str, Any]) -> str:
    """What a hold means where no task waits."""
    feed = view.get("feed") or {}
    return "takes no more tasks from its queue" if feed.get("open") and feed["held"] else "nothing to hold"
