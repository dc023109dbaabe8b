"""`wait`: block until tasks have ended; and `run --sync`, which follows a session to its end.

Meanwhile they show how far it is: on a terminal by a bar and what runs, elsewhere by a plain line now and then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sessionrun.cli.interrupts import EXIT_INTERRUPTED
from sessionrun.cli.options import (
    EXIT_FAILED,
    EXIT_HELD,
    EXIT_TIMEOUT,
    Answer,
    Duration,
    SinceOrCursor,
    act_on_each,
    flag,
    label_option,
    state_option,
    valued,
    verb,
)
from sessionrun.cli.render import escape_line, hint, is_json, paint, print_json, telling, terminal_width
from sessionrun.cli.standing import INDENT, draw_bar, ended_line, head_lines, how_far_lines, row_lines, tell_left
from sessionrun.client.lookup import Chosen, Wanted, choose_sessions, name_for_command
from sessionrun.client.reading.view import load_summary_view, load_view
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
from sessionrun.model.wording import clip, name_tasks, tell_result, tell_span, took_s
from sessionrun.model.words import BAD, GOOD
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from rich.live import Live


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
    results_dir: Path | None,
) -> Answer | int:
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
    limits: dict[str, Any] = {"through_holds": through_holds, "timeout_s": timeout}
    if not (need_all or chosen.several):
        found = wait_for_next(chosen.sessions[0], chosen.tasks, since=cursor or 0, failed=failed, **limits)
        return _describe_next(found, chosen)
    deadline = Deadline(timeout)
    if not need_all:
        over = wait_for_any(chosen.sessions, **limits)
        chosen = chosen._replace(sessions=over or chosen.sessions)
        deadline = Deadline(0.0)

    def act(session: SessionDir) -> Answer:
        is_shown = not is_json() and sys.stderr.isatty() and not has_ended(load_summary_view(session))
        with show_progress(session) if is_shown else nullcontext() as progress:
            left = deadline.left()
            waited = wait(session, chosen.tasks, through_holds=through_holds, timeout_s=left, progress=progress)
        return _describe(waited, chosen)

    return act_on_each(chosen, act)


def _describe(waited: Waited, chosen: Chosen) -> Answer:
    view, tasks = waited.view, waited.tasks
    record = {**view, "tasks": tasks, "timed_out": not waited.in_time}
    ended = [task for task in tasks if task["outcome"]]
    code = _choose_code(view, ended, in_time=waited.in_time, held=not waited.done, whole=not chosen.tasks)
    lines = how_far_lines(view, time.time(), tasks, waits=code in (EXIT_HELD, EXIT_TIMEOUT))
    return Answer(record, lines, code)


def _describe_next(found: NextEnd, chosen: Chosen) -> Answer:
    view, now = found.view, time.time()
    record = {
        **{key: view[key] for key in (*Standing.__annotations__, "results_dir")},
        "left": found.left,
        "cursor": found.cursor,
        "timed_out": not found.in_time,
        "tasks": [{key: task[key] for key in EndedTask.__annotations__} for task in found.tasks],
    }
    lines = how_far_lines(view, now, view["tasks"], waits=not found.tasks)
    lines += [ended_line(task, name_tasks(view), now) for task in found.tasks]
    lines.append(f"Cursor: {found.cursor}" if found.left else "Nothing is left to wait for.")
    code = _choose_code(view, found.tasks, in_time=found.in_time, held=found.held, whole=not chosen.tasks)
    return Answer(record, lines, code)


def _choose_code(view: View, ended: Sequence[View], *, in_time: bool, held: bool, whole: bool) -> int:
    """The exit code of `wait`, given the tasks that have `ended` of those that were waited for.

    `held` is whether only held tasks are left.  Of a `whole` session not all tasks decide.
    """
    if not in_time:
        return EXIT_TIMEOUT
    if held:
        return EXIT_HELD
    deciding = choose_decisive(view, ended) if whole else ended
    return 0 if all(task["word"] in GOOD and has_landed(task) for task in deciding) else EXIT_FAILED


PLAIN_EVERY_S: Final = 30.0
LOOK_EVERY_S: Final = 0.5
LOOK_SHARE: Final = 20
"""To look at the tasks may take this fraction of the time: that of 10,000 tasks takes long."""

MOST_ROWS: Final = 8
"""How many of the tasks that run have a row."""


def follow_run(session: SessionDir, *, quiet: bool, leaves_held: bool = False) -> int:
    """`run --sync`: follow to the end, print the results, return the exit code.

    With `leaves_held` also to where only held tasks, or held work, are left: then the code is `EXIT_HELD`.

    Ctrl+C cancels the session and waits for its end; anything else that ends us leaves it running.
    """
    progress, interrupted = None, False
    with ExitStack() as shown:
        try:
            if not quiet:
                hint(f"session: {session.session_id}")
                progress = shown.enter_context(show_progress(session))
            wait(session, through_holds=not leaves_held, progress=progress)
        except KeyboardInterrupt:
            from sessionrun.client.ask import cancel

            interrupted = True
            with suppress(BrokenPipeError):  # what reads it, such as `tee`, may have ended by the same Ctrl+C
                hint("\ncancelling ...")
            try:
                cancel(session, timeout_s=None, progress=progress)
            except KeyboardInterrupt:  # a second Ctrl+C does not wait for the end
                return EXIT_INTERRUPTED
    view = load_view(session)
    with telling(f"`sessionrun results {session.session_id}` prints what it should have shown"):
        _print_end(session, view, quiet=quiet)
    if not quiet:
        # what came out, as the last of all: on standard error if a program reads the results
        lines = [tell_result(view, time.time())]
        lines += [f"why: sessionrun results {name_for_command(view)} --failed"] if view["failed"] else []
        for line in map(escape_line, lines):
            click.echo(line) if sys.stdout.isatty() else hint(line)
    if interrupted:
        return EXIT_INTERRUPTED
    # what has not succeeded is work that could not land for a reason that is not its own
    is_only_held = view["result"] == "bounced" and not view["counts"]["bounced"]
    if leaves_held and (not has_ended(view) or is_only_held):
        return EXIT_HELD
    return int(view["outcome"] != "succeeded")


def _print_end(session: SessionDir, view: View, *, quiet: bool) -> None:
    from sessionrun.cli.results import find_summary, make_record, print_results  # not while it is followed

    if is_json():
        print_json(make_record(session, view, view["tasks"], tail=None))
        return
    summary = find_summary(session, view)
    if quiet:
        click.echo(session.session_id)
    else:
        print_results(session, view, view["tasks"], tail=None)
        if summary:
            counts = (f"{summary[key]} {key}" for key in ("processed", "passed", "failed", "skipped"))
            click.echo(f"\nJobs: {', '.join(counts)}")


# --- how far it is ---


@contextmanager
def show_progress(session: SessionDir) -> Iterator[Progress]:
    """Tell on standard error how far a session is, in the way that fits it."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield PlainProgress()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield LiveProgress(session, live)


class PlainProgress:
    """A line on standard error when something changed, at most one in `PLAIN_EVERY_S`."""

    def __init__(self) -> None:
        self._shown: tuple[Any, ...] = ()
        self._shown_at = -PLAIN_EVERY_S

    def __call__(self, view: View) -> None:
        counts, now = (view["counts"], view["stopped"], view["state"]), time.monotonic()
        if counts == self._shown or view["ended_at"] or now - self._shown_at < PLAIN_EVERY_S:
            return
        self._shown, self._shown_at = counts, now
        stopped = [f"{process} stopped" for process in view["stopped"]]
        first, *more = how_far_lines(view, time.time(), waits=True)
        hint("\n".join(["; ".join([first, tell_span(took_s(view, time.time())), *stopped]), *more]))


class LiveProgress:
    """Head, bar and what runs, redrawn in place (rich); above it stay the tasks that failed."""

    def __init__(self, session: SessionDir, live: Live) -> None:
        self._session, self._live = session, live
        self._stream = live.console.file  # meanwhile `sys.stderr` is another one, which leads to the display
        self._told: set[str] = set()
        self._tasks: Sequence[View] = ()
        self._look_at = 0.0

    def __call__(self, view: View) -> None:
        from rich.text import Text

        began = time.monotonic()
        if began >= self._look_at or view["ended_at"] is not None:
            self._tasks = load_view(self._session)["tasks"]
            took = time.monotonic() - began
            self._look_at = began + took + max(LOOK_EVERY_S, took * LOOK_SHARE)
        whole = {**view, "tasks": self._tasks}
        for line in self._tell_failures(whole):
            self._live.console.print(Text.from_ansi(line))
        self._live.update(Text.from_ansi("\n".join(self._draw(whole)), no_wrap=True), refresh=True)

    def _draw(self, view: View) -> list[str]:
        now, width = time.time(), terminal_width(self._stream) - 1
        first, *more = head_lines(view, now, left=tell_left(view, now))
        running = [task for task in view["tasks"] if task["status"] == "running"]
        rows = row_lines(running[:MOST_ROWS], now, width, self._stream)
        rest = [f"{INDENT}and {len(running) - MOST_ROWS} more run"] if len(running) > MOST_ROWS else []
        bar = "".join(paint(part, word, self._stream) for word, part in draw_bar(view, width, self._stream))
        return [clip(first, width), bar, *(clip(line, width) for line in more), *rows, *rest]

    def _tell_failures(self, view: View) -> list[str]:
        """Each task that failed or was bounced since the last call: why, and the line that tells most of it."""
        from sessionrun.client.reading.telling import tell  # it reads files of jobs; a poll does without

        new = [one for one in view["tasks"] if one["word"] in (*BAD, "bounced") and one["id"] not in self._told]
        self._told |= {task["id"] for task in new}
        lines = []
        for task in new:
            section = tell(self._session, task)
            lines.append(ended_line(task, name_tasks(view), time.time(), self._stream))
            last = INDENT + escape_line(section.lines[-1]) if section else ""
            lines += [clip(last, terminal_width(self._stream) - 1)] if last else []
        return lines
