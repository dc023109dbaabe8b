"""`cancel`: ask the supervisor to stop a session, or some of its tasks, and see it done."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.follow import request_cancel
from sessionrun.cli.options import Seconds, choose_tasks, json_option, open_session, results_dir_option
from sessionrun.cli.render import print_json
from sessionrun.cli.view import load_view
from sessionrun.errors import SessionGone

DEFAULT_TIMEOUT_S: Final = 60.0
EXIT_TIMEOUT: Final = 124


@click.command("cancel")
@click.argument("session_id", metavar="ID")
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option(
    "--timeout",
    type=Seconds(),
    default=DEFAULT_TIMEOUT_S,
    metavar="S",
    help="Seconds to wait for the end; 0 = only ask.  [default: 60]",
)
@json_option
@results_dir_option
def command(
    session_id: str, tasks: tuple[str, ...], timeout: float, as_json: bool, results_dir: Path | None
) -> int:
    """Stop session ID, or only the given tasks, with all their processes.

    Tasks that have ended stay as they are; cancelling twice does no harm.
    """
    session = open_session(results_dir, session_id)
    before = load_view(session)
    chosen = choose_tasks(before, tasks)
    if before["status"] == "interrupted":
        raise SessionGone(_who_runs_still(before))
    seen: dict[str, Any] | None = before
    if not _ended(before, tasks):
        names = [task["id"] for task in chosen] if tasks else []
        seen = request_cancel(session, names, lambda view: _ended(view, tasks), timeout_s=timeout)
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
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
    counts = {
        "cancelled": sum(task["outcome"] == "cancelled" for task in tasks),
        "had ended before": sum(task["outcome"] not in (None, "cancelled") for task in tasks),
        "still stopping": sum(task["status"] != "completed" for task in tasks),
    }
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"Session: {view['session_id']}: {said or 'nothing to cancel'}"


def _who_runs_still(view: dict[str, Any]) -> str:
    pids = [str(task["pid"]) for task in view["tasks"] if task["status"] == "running" and task["pid"]]
    still = f"; still running without it: process groups {', '.join(pids)}" if pids else ""
    return f"nobody runs session {view['session_id']} any more, so nobody can cancel it{still}"
