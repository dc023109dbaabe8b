"""`cancel`: ask the supervisor to stop a session, or some of its tasks, and see it done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sessionrun.cli.control import EXIT_TIMEOUT, Target, control_options, count_words
from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import print_json, warn
from sessionrun.client.lookup import choose_tasks
from sessionrun.client.requests import request_cancel
from sessionrun.model.errors import SessionGone


@click.command("cancel")
@control_options
@click.option("--now", is_flag=True, help="Kill at once, without grace; also jobs that are stopping or releasing.")
@json_option
@results_dir_option
def command(
    session_id: str, tasks: tuple[str, ...], now: bool, timeout: float, as_json: bool, results_dir: Path | None
) -> int:
    """Stop session ID, or only the given tasks, with all their processes.

    Tasks that have ended stay as they are; cancelling twice does no harm.
    """
    target = Target(results_dir, session_id, tasks)
    seen: dict[str, Any] | None = target.view
    if not _ended(target.view, tasks):
        try:
            seen = request_cancel(
                target.session, target.ids, lambda view: _ended(view, tasks), now=now, timeout_s=timeout
            )
        except SessionGone as error:
            raise SessionGone(f"{error}{_who_runs_still(target.view)}") from error
    view, chosen = target.reload()
    if view["disk_full"]:
        from sessionrun.store.ballast import describe_shortage

        warn(f"{describe_shortage(view['disk_full'])}: ends of tasks are recorded once there is room")
    if as_json:
        print_json({**view, "tasks": chosen})
    else:
        click.echo(_summary(view, chosen))
    return EXIT_TIMEOUT if seen is None and timeout else 0


def _ended(view: dict[str, Any], tasks: tuple[str, ...]) -> bool:
    if not tasks:
        return view["ended_at"] is not None
    return all(task["status"] == "completed" for task in choose_tasks(view, tasks))


def _summary(view: dict[str, Any], tasks: list[dict[str, Any]]) -> str:
    said = count_words(
        (
            (sum(task["outcome"] == "cancelled" for task in tasks), "cancelled"),
            (sum(task["outcome"] not in (None, "cancelled") for task in tasks), "had ended before"),
            (sum(task["status"] != "completed" for task in tasks), "still stopping"),
        )
    )
    return f"Session: {view['session_id']}: {said or 'nothing to cancel'}"


def _who_runs_still(view: dict[str, Any]) -> str:
    pids = [str(task["pid"]) for task in view["tasks"] if task["status"] == "running" and task["pid"]]
    return f"; still running without it: process groups {', '.join(pids)}" if pids else ""
