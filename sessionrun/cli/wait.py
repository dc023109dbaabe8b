"""`wait`: block until tasks have ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.follow import has_ended, wait_until
from sessionrun.cli.options import (
    Seconds,
    choose_tasks,
    json_option,
    open_session,
    results_dir_option,
    session_argument,
)
from sessionrun.cli.render import print_json
from sessionrun.cli.view import load_summary_view, load_view

EXIT_FAILED: Final = 1
EXIT_TIMEOUT: Final = 124


@click.command("wait")
@session_argument
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--all/--any", "need_all", default=True, help="Until all of them have ended (default), or any.")
@click.option("--timeout", type=Seconds(), metavar="S", help="Seconds to wait at most.")
@json_option
@results_dir_option
def command(
    session_id: str,
    tasks: tuple[str, ...],
    need_all: bool,
    timeout: float | None,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Block until the tasks of session ID have ended: all tasks if no TASK is given.

    Exit code 0: they succeeded; 1: one of those that ended did not; 4: the session's processes are gone;
    124: the time is up.
    """
    session = open_session(results_dir, session_id)
    choose_tasks(load_view(session), tasks)
    whole = need_all and not tasks
    seen = wait_until(
        (lambda: load_summary_view(session)) if whole else (lambda: load_view(session)),
        has_ended if whole else (lambda view: _are_done(choose_tasks(view, tasks), need_all=need_all)),
        timeout_s=timeout,
    )
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
    if as_json:
        print_json({**view, "tasks": chosen, "timed_out": seen is None})
    else:
        done = sum(task["status"] == "completed" for task in chosen)
        good = sum(task["outcome"] == "succeeded" for task in chosen)
        click.echo(f"Session: {view['session_id']}: {done}/{len(chosen)} completed, {good} succeeded")
    return EXIT_TIMEOUT if seen is None else _exit_code(chosen)


def _are_done(tasks: list[dict[str, Any]], *, need_all: bool) -> bool:
    done = [task["status"] == "completed" for task in tasks]
    return all(done) if need_all else any(done) or not done


def _exit_code(tasks: list[dict[str, Any]]) -> int:
    ended = [task for task in tasks if task["status"] == "completed"]
    return 0 if all(task["outcome"] == "succeeded" for task in ended) else EXIT_FAILED
