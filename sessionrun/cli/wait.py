"""`wait`: block until tasks have ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import Duration, find_place, json_option, results_dir_option, session_argument
from sessionrun.cli.render import print_json
from sessionrun.client.landed import count_landings
from sessionrun.client.lookup import open_session
from sessionrun.client.waiting import choose_decisive, has_landed, wait

EXIT_FAILED: Final = 1
EXIT_HELD: Final = 75
EXIT_TIMEOUT: Final = 124


@click.command("wait")
@session_argument
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option(
    "--all/--any", "need_all", default=True, help="Until all of them have ended (default), or the first."
)
@click.option(
    "--no-held", is_flag=True, help="Do not wait for held tasks: exit code 75 when nothing else is left."
)
@click.option("--timeout", type=Duration(), metavar="TIME", help="How long to wait at most: 90, 10m, 1h30m.")
@json_option
@results_dir_option
def command(
    session_id: str,
    tasks: tuple[str, ...],
    need_all: bool,
    no_held: bool,
    timeout: float | None,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Block until the tasks of session ID have ended: all tasks if no TASK is given.

    Exit code 0: they succeeded, and landed if they were to; 1: one of those that ended did not;
    4: the session's processes are gone; 75: with --no-held, only held tasks are left; 124: the time is up.
    """
    session = open_session(results_dir, session_id)
    view, chosen, in_time, done_with = wait(session, tasks, need_all=need_all, no_held=no_held, timeout_s=timeout)
    decisive = chosen if tasks else choose_decisive(view, chosen)
    if as_json:
        print_json({**view, "tasks": chosen, "timed_out": not in_time})
    else:
        done = sum(task["status"] == "completed" for task in chosen)
        good = sum(task["outcome"] == "succeeded" for task in chosen)
        place = find_place(view)
        where = f" (in {place})" if place else ""
        counts = f"{done}/{len(chosen)} completed, {good} succeeded{_word_left(decisive)}"
        click.echo(f"Session: {view['session_id']}: {counts}{where}")
    if not in_time:
        return EXIT_TIMEOUT
    if not done_with:
        return EXIT_HELD
    good_ends = (task["outcome"] == "succeeded" and has_landed(task) for task in decisive if task["outcome"])
    return 0 if all(good_ends) else EXIT_FAILED


def _word_left(tasks: list[dict[str, Any]]) -> str:
    """What of the work of these tasks has not landed, though it was to."""
    left = {status: count for status, count in count_landings(tasks).items() if status != "landed"}
    return "".join(f", {count} {status}" for status, count in left.items())
