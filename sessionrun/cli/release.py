"""`release`: what was held on request may start again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sessionrun.cli.control import EXIT_TIMEOUT, NOT_TAKEN, control_options, count_words
from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import print_json
from sessionrun.client.control import release
from sessionrun.client.lookup import open_session


@click.command("release")
@control_options
@json_option
@results_dir_option
def command(
    session_id: str, tasks: tuple[str, ...], timeout: float, as_json: bool, results_dir: Path | None
) -> int:
    """Let session ID, or only the given tasks, go on after `hold`.

    Without TASK every hold that was asked for ends, and that of a soft budget.  Holds that the machine made stay.
    """
    taken, tasks_before, view, chosen = release(open_session(results_dir, session_id), tasks, timeout_s=timeout)
    code = EXIT_TIMEOUT if timeout and not taken else 0
    if as_json:
        print_json({**view, "tasks": chosen})
        return code
    before = {task["id"] for task in tasks_before if task["reason_class"] == "held"}
    held = {task["id"] for task in chosen if task["reason_class"] == "held"}
    counts = count_words(((len(before - held), "released"), (len(held), "still held")))
    click.echo(f"Session: {view['session_id']}: {(counts or _describe_rest(view)) if taken else NOT_TAKEN}")
    return code


def _describe_rest(view: Mapping[str, Any]) -> str:
    """What a release means where no task waited."""
    feed = view.get("feed") or {}
    return (
        "takes tasks from its queue again" if feed.get("open") and not feed["held"] else "nothing waited for this"
    )
