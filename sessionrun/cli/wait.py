"""`wait`: block until tasks have ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import Duration, find_place, json_option, results_dir_option, session_argument
from sessionrun.cli.render import print_json
from sessionrun.client.lookup import choose_tasks, open_session
from sessionrun.client.view import load_summary_view, load_view
from sessionrun.client.waiting import has_ended, wait_until

EXIT_FAILED: Final = 1
EXIT_HELD: Final = 75
EXIT_TIMEOUT: Final = 124


@click.command("wait")
@session_argument
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--all/--any", "need_all", default=True, help="Until all of them have ended (default), or any.")
@click.option("--no-held", is_flag=True, help="Do not wait for what is held: exit 75 when nothing else is left.")
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

    Exit code 0: they succeeded; 1: one of those that ended did not; 4: the session's processes are gone;
    75: with --no-held, only held tasks are left; 124: the time is up.
    """
    session = open_session(results_dir, session_id)
    choose_tasks(load_view(session), tasks)
    whole = need_all and not tasks and not no_held

    def is_over(view: dict[str, Any]) -> bool:
        chosen = choose_tasks(view, tasks)
        return _are_done(chosen, need_all=need_all) or (no_held and _is_held(view, chosen))

    seen = wait_until(
        (lambda: load_summary_view(session)) if whole else (lambda: load_view(session)),
        has_ended if whole else is_over,
        timeout_s=timeout,
    )
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
    done_with = seen is not None and (whole or _are_done(choose_tasks(seen, tasks), need_all=need_all))
    if as_json:
        print_json({**view, "tasks": chosen, "timed_out": seen is None})
    else:
        done = sum(task["status"] == "completed" for task in chosen)
        good = sum(task["outcome"] == "succeeded" for task in chosen)
        place = find_place(view)
        where = f" (in {place})" if place else ""
        click.echo(f"Session: {view['session_id']}: {done}/{len(chosen)} completed, {good} succeeded{where}")
    if seen is None:
        return EXIT_TIMEOUT
    return _exit_code(chosen) if done_with else EXIT_HELD


def _are_done(tasks: list[dict[str, Any]], *, need_all: bool) -> bool:
    done = [task["status"] == "completed" for task in tasks]
    return all(done) if need_all else any(done) or not done


def _is_held(view: dict[str, Any], chosen: list[dict[str, Any]]) -> bool:
    """Whether the tasks that are left are held, or need one that is; never where nobody could let them go."""
    if view["status"] == "interrupted":
        return False
    waiting = [task for task in view["tasks"] if task["status"] != "completed" and task["pid"] is None]
    held = {task["id"] for task in waiting if task["reason_class"] == "held"}
    while more := {task["id"] for task in waiting if not held.isdisjoint(task["needs"])} - held:
        held |= more
    left = {task["id"] for task in chosen if task["status"] != "completed"}
    return bool(left) and left <= held


def _exit_code(tasks: list[dict[str, Any]]) -> int:
    ended = [task for task in tasks if task["status"] == "completed"]
    return 0 if all(task["outcome"] == "succeeded" for task in ended) else EXIT_FAILED
