"""`cancel`: ask the supervisor to stop a session, or some of its tasks, and see it done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sessionrun.cli.contact import cancel_lines
from sessionrun.cli.control import EXIT_TIMEOUT, control_options, count_words
from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import session_head, warn
from sessionrun.cli.selecting import Done, act_on_each, make_wanted
from sessionrun.client.asking.control import cancel, request_all
from sessionrun.client.reading.selection import choose_sessions
from sessionrun.client.reading.view import describe_shortage
from sessionrun.store.session import SessionDir


@click.command("cancel")
@control_options
@click.option(
    "--now", is_flag=True, help="Kill at once, without grace time; also jobs that are stopping or saving work."
)
@click.option("--tree", is_flag=True, help="Also the sessions that its tasks launched, and those inside of them.")
@json_option
@results_dir_option
def command(
    words: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...] | None,
    since: float | None,
    now: bool,
    tree: bool,
    timeout: float,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Stop session ID, or only the given tasks, with all their processes; or several sessions.

    Tasks that have ended stay as they are; cancelling twice does no harm.
    """
    chosen = choose_sessions(results_dir, words, make_wanted(labels, states, since), only_open=True)

    nested: set[str] = set()

    def act(session: SessionDir) -> Done:
        names = () if session.session_id in nested else chosen.tasks
        taken, _, view, tasks = cancel(session, names, now=now, timeout_s=timeout)
        shortage = describe_shortage(view)
        if shortage is not None:
            warn(f"{shortage}: ends of tasks are recorded once there is room")
        for line in cancel_lines(view, tasks):
            warn(line)
        code = EXIT_TIMEOUT if timeout and not taken else 0
        return Done({**view, "tasks": tasks}, _summary(view, tasks), code)

    if len(chosen.sessions) > 1:
        request_all(chosen.sessions, now=now)
    if tree:
        from sessionrun.client.asking.control import cancel_nested

        inside = cancel_nested(chosen.sessions, chosen.tasks, now=now, timeout_s=timeout)
        nested = {session.session_id for session in inside}
        chosen = chosen._replace(sessions=[*chosen.sessions, *inside], several=True)
    return act_on_each(chosen, act, as_json=as_json)


def _summary(view: dict[str, Any], tasks: list[dict[str, Any]]) -> str:
    counts = count_words(
        (
            (sum(task["outcome"] == "cancelled" for task in tasks), "cancelled"),
            (sum(task["outcome"] not in (None, "cancelled") for task in tasks), "had ended before"),
            (sum(task["status"] != "completed" for task in tasks), "still stopping"),
        )
    )
    nothing = (
        "no task to cancel; it takes none from the queue any more" if view.get("feed") else "nothing to cancel"
    )
    return f"{session_head(view)}: {counts or nothing}"
