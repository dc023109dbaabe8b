"""`wait`: block until tasks have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from sessionrun.cli.options import Duration, SinceOrCursor, flag, valued, verb
from sessionrun.cli.selecting import (
    EXIT_FAILED,
    EXIT_HELD,
    EXIT_TIMEOUT,
    Done,
    act_on_each,
    label_option,
    state_option,
)
from sessionrun.cli.standing import ended_line, how_far_lines
from sessionrun.client.reading.selection import Chosen, Wanted, choose_sessions
from sessionrun.client.reading.view import load_summary_view
from sessionrun.client.reading.waiting import (
    Deadline,
    NextEnd,
    Progress,
    View,
    Waited,
    choose_decisive,
    has_ended,
    has_landed,
    wait,
    wait_for_any,
    wait_for_next,
)
from sessionrun.model.errors import InputError
from sessionrun.model.shown import EndedTask, Standing
from sessionrun.model.wording import name_tasks
from sessionrun.model.words import GOOD
from sessionrun.store.session import SessionDir


@verb("wait")
@click.argument("words", nargs=-1, metavar="[ID] [TASK]...")
@click.option(
    "--all/--any", "need_all", default=True, help="Until all of them have ended (default), or the first."
)
@flag("--failed", "With --any: until one has failed, and name only those that have.")
@valued(
    "--since",
    SinceOrCursor(),
    "With --any and one session: only tasks that ended after this cursor, a number.  "
    "Else only sessions started since then.",
)
@label_option
@state_option
@flag("--through-holds", "Wait on if all that is left is held: not exit code 75 at once.")
@valued("--timeout", Duration(), "How long to wait at most: 90, 10m, 1h30m.")
def command(
    words: tuple[str, ...],
    need_all: bool,
    failed: bool,
    since: float | None,
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...] | None,
    through_holds: bool,
    timeout: float | None,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Block until the tasks of session ID have ended: all tasks if no TASK is given; or several sessions.

    With --any: until the first has ended.  It is named, with a cursor for --since that waits for the next one.

    Exit code 0: they succeeded, and landed if they were to; 1: one of those that ended did not;
    4: the session's processes are gone; 75: all that is left is held without a known time; 124: the time is up.
    """
    cursor = since if isinstance(since, int) else None
    wanted = Wanted(labels, states or (), since if cursor is None else None)
    chosen = choose_sessions(results_dir, words, wanted, reads=True)
    if (need_all or chosen.several) and (failed or cursor is not None):
        raise InputError("wait: --failed and a cursor for --since go with --any and one session")
    if not (need_all or chosen.several):

        def wait_on(session: SessionDir) -> Done:
            found = wait_for_next(
                session,
                chosen.tasks,
                since=cursor or 0,
                failed=failed,
                through_holds=through_holds,
                timeout_s=timeout,
            )
            return _describe_next(found, chosen)

        return act_on_each(chosen, wait_on, as_json=as_json)
    deadline = Deadline(timeout)
    if not need_all:
        over = wait_for_any(chosen.sessions, through_holds=through_holds, timeout_s=timeout)
        chosen = chosen._replace(sessions=over or chosen.sessions)
        deadline = Deadline(0.0)

    def act(session: SessionDir) -> Done:
        progress = None if as_json else _make_progress(session)
        try:
            left = deadline.left()
            waited = wait(session, chosen.tasks, through_holds=through_holds, timeout_s=left, progress=progress)
        finally:
            if progress is not None:
                progress.close()
        return _describe(waited, chosen)

    return act_on_each(chosen, act, as_json=as_json)


def _make_progress(session: SessionDir) -> Progress | None:
    """The display of a wait that a person watches; none off a terminal, and none for a session that has ended."""
    if not sys.stderr.isatty() or has_ended(load_summary_view(session)):
        return None
    from sessionrun.cli.sync import make_progress

    return make_progress(sys.stderr, session)


def _describe(waited: Waited, chosen: Chosen) -> Done:
    view, tasks = waited.view, waited.tasks
    record = {**view, "tasks": tasks, "timed_out": not waited.in_time}
    ended = [task for task in tasks if task["outcome"]]
    code = _choose_code(view, ended, in_time=waited.in_time, held=not waited.done, whole=not chosen.tasks)
    lines = how_far_lines(view, time.time(), tasks, waits=code in (EXIT_HELD, EXIT_TIMEOUT))
    return Done(record, "\n".join(lines), code)


def _describe_next(found: NextEnd, chosen: Chosen) -> Done:
    """Which tasks ended, and a cursor that waits for the next one."""
    view, now = found.view, time.time()
    head = {key: view[key] for key in (*Standing.__annotations__, "results_dir")}
    ends = {"left": found.left, "cursor": found.cursor, "timed_out": not found.in_time}
    record = {
        **head,
        **ends,
        "tasks": [{key: task[key] for key in EndedTask.__annotations__} for task in found.tasks],
    }
    lines = how_far_lines(view, now, view["tasks"], waits=not found.tasks)
    lines += [ended_line(task, name_tasks(view), now) for task in found.tasks]
    lines.append(f"Cursor: {found.cursor}" if found.left else "Nothing is left to wait for.")
    code = _choose_code(view, found.tasks, in_time=found.in_time, held=found.held, whole=not chosen.tasks)
    return Done(record, "\n".join(lines), code)


def _choose_code(view: View, ended: Sequence[View], *, in_time: bool, held: bool, whole: bool) -> int:
    """The exit code of `wait`.

    Args:
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
