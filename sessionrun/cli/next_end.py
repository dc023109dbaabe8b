"""`wait --any` of one session: says which tasks ended, and gives a cursor that waits for the next one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import click

from sessionrun.cli.render import print_json
from sessionrun.cli.standing import ended_line, how_far_lines
from sessionrun.client.reading.next_end import NextEnd, wait_for_next
from sessionrun.client.reading.selection import Chosen
from sessionrun.client.reading.waiting import View, choose_decisive, has_landed
from sessionrun.model.shown import EndedTask, Standing
from sessionrun.model.wording import name_tasks
from sessionrun.model.words import GOOD

EXIT_FAILED: Final = 1
EXIT_HELD: Final = 75
EXIT_TIMEOUT: Final = 124


def wait_for_one(
    chosen: Chosen, *, since: int, failed: bool, through_holds: bool, timeout_s: float | None, as_json: bool
) -> int:
    """Wait, print what ended, return the exit code of `wait`."""
    found = wait_for_next(
        chosen.sessions[0],
        chosen.tasks,
        since=since,
        failed=failed,
        through_holds=through_holds,
        timeout_s=timeout_s,
    )
    if as_json:
        head = {key: found.view[key] for key in (*Standing.__annotations__, "results_dir")}
        ends = {"left": found.left, "cursor": found.cursor, "timed_out": not found.in_time}
        tasks = [{key: task[key] for key in EndedTask.__annotations__} for task in found.tasks]
        print_json({**head, **ends, "tasks": tasks})
    else:
        _print(found)
    return choose_code(found.view, found.tasks, in_time=found.in_time, held=found.held, whole=not chosen.tasks)


def _print(found: NextEnd) -> None:
    now = time.time()
    lines = how_far_lines(found.view, now, found.view["tasks"], waits=not found.tasks)
    lines += [ended_line(task, name_tasks(found.view), now) for task in found.tasks]
    click.echo("\n".join([*lines, f"Cursor: {found.cursor}" if found.left else "Nothing is left to wait for."]))


def choose_code(view: View, ended: Sequence[View], *, in_time: bool, held: bool, whole: bool) -> int:
    """The exit code of `wait`.

    Args:
        view: the session.
        ended: those of the tasks that were waited for which have ended.
        in_time: whether the time was not up.
        held: whether only tasks are left that are held.
        whole: whether the tasks of the whole session were waited for: then not all of them decide.
    """
    if not in_time:
        return EXIT_TIMEOUT
    if held:
        return EXIT_HELD
    deciding = choose_decisive(view, ended) if whole else ended
    return 0 if all(task["word"] in GOOD and has_landed(task) for task in deciding) else EXIT_FAILED
