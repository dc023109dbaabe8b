"""Follows a session to its end, as `run --sync` does, and shows meanwhile how far it is.

On a terminal that is a bar and what runs, elsewhere a plain line now and then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, Final

import click

from sessionrun.cli.interrupts import EXIT_INTERRUPTED
from sessionrun.cli.render import escape_line, hint, paint, telling, terminal_width, warn
from sessionrun.cli.selecting import EXIT_HELD
from sessionrun.cli.standing import INDENT, draw_bar, ended_line, head_lines, how_far_lines, row_lines, tell_left
from sessionrun.client.lookup import name_for_command
from sessionrun.client.reading.telling import tell
from sessionrun.client.reading.view import load_summary_view, load_view
from sessionrun.client.reading.waiting import Progress, View, has_ended, is_all_held, wait_until
from sessionrun.model.errors import SessionrunError
from sessionrun.model.wording import clip, name_tasks, tell_result, tell_span, took_s
from sessionrun.model.words import BAD
from sessionrun.store.session import SessionDir

PLAIN_EVERY_S: Final = 30.0
LOOK_EVERY_S: Final = 0.5
LOOK_SHARE: Final = 20
"""To look at the tasks may take this fraction of the time: that of 10,000 tasks takes long."""

MOST_ROWS: Final = 8
"""How many of the tasks that run have a row."""


def follow_run(session: SessionDir, *, as_json: bool, quiet: bool, leaves_held: bool = False) -> int:
    """`run --sync`: follow to the end, print the results, return the exit code.

    With `leaves_held` also to where only held tasks, or held work, are left: then the code is `EXIT_HELD`.

    Ctrl+C cancels the session and waits for its end; anything else that ends us leaves it running.
    """
    progress = None
    interrupted = False
    try:
        if not quiet:
            hint(f"session: {session.session_id}")
        progress = None if quiet else make_progress(sys.stderr, session)

        def is_over(view: View) -> bool:
            return has_ended(view) or (leaves_held and is_all_held(view))

        wait_until(lambda: load_summary_view(session), is_over, progress=progress)
    except KeyboardInterrupt:
        from sessionrun.client.ask import cancel

        interrupted = True
        hint("\ncancelling ...")
        try:
            cancel(session, timeout_s=None, progress=progress)
        except KeyboardInterrupt:  # a second Ctrl+C does not wait for the end
            return EXIT_INTERRUPTED
    finally:
        if progress is not None:
            progress.close()
    view = load_view(session)
    with telling(f"`sessionrun results {session.session_id}` prints what it should have shown"):
        _print_end(session, view, as_json=as_json, quiet=quiet)
    if not quiet:
        _tell_verdict(view)
    if interrupted:
        return EXIT_INTERRUPTED
    if leaves_held and (not has_ended(view) or _is_only_held(view)):
        return EXIT_HELD
    return int(view["outcome"] != "succeeded")


def cancel_interrupted(session: SessionDir) -> int:
    """After Ctrl+C during its start: cancel the session, if it was begun, and wait for its end; the exit code."""
    from sessionrun.client.ask import cancel

    if session.spec_path.exists():
        hint("\ncancelling ...")
        with suppress(SessionrunError, OSError):
            cancel(session, timeout_s=None)
    return EXIT_INTERRUPTED


def _print_end(session: SessionDir, view: View, *, as_json: bool, quiet: bool) -> None:
    from sessionrun.cli.results import find_summary, print_results, print_results_json  # not while it is followed

    summary = find_summary(session, view, warn)
    if as_json:
        head = {key: value for key, value in view.items() if key != "tasks"}
        head |= {"summary": summary} if summary else {}
        print_results_json(session, head, view["tasks"], tail=None)
    elif quiet:
        click.echo(session.session_id)
    else:
        print_results(session, view, view["tasks"], tail=None)
        if summary:
            from sessionrun.client.reading.job_summary import word_summary

            click.echo(f"\n{word_summary(summary)}")


def _tell_verdict(view: View) -> None:
    """What came out, as the last of all: on standard error if a program reads the results."""
    lines = [tell_result(view, time.time())]
    lines += [f"why: sessionrun results {name_for_command(view)} --failed"] if view["failed"] else []
    for line in map(escape_line, lines):
        click.echo(line) if sys.stdout.isatty() else hint(line)


def _is_only_held(view: View) -> bool:
    """Whether all that has not succeeded is work that could not land for a reason that is not its own."""
    return bool(view["result"] == "bounced" and not view["counts"]["bounced"])


# --- how far it is ---


def make_progress(stream: IO[str], session: SessionDir) -> Progress:
    """The display that fits the stream."""
    is_live = stream.isatty() and os.environ.get("TERM") != "dumb"
    return LiveProgress(stream, session) if is_live else PlainProgress()


class PlainProgress:
    """A `Progress`: a line on standard error when something changed, at most one in `PLAIN_EVERY_S`."""

    def __init__(self) -> None:
        self._shown: tuple[Any, ...] = ()
        self._shown_at = -PLAIN_EVERY_S

    def show(self, view: View) -> None:
        counts, now = (view["counts"], view["stopped"], view["state"]), time.monotonic()
        if counts == self._shown or view["ended_at"] or now - self._shown_at < PLAIN_EVERY_S:
            return
        self._shown, self._shown_at = counts, now
        stopped = [f"{process} stopped" for process in view["stopped"]]
        first, *more = how_far_lines(view, time.time(), waits=True)
        hint("\n".join(["; ".join([first, tell_span(took_s(view, time.time())), *stopped]), *more]))

    def close(self) -> None:
        """See `Progress.close`."""


class LiveProgress:
    """A `Progress`: head, bar and what runs, redrawn in place (rich); above it stay the tasks that failed."""

    def __init__(self, stream: IO[str], session: SessionDir) -> None:
        from rich.console import Console
        from rich.live import Live

        self._stream, self._session = stream, session
        self._told: set[str] = set()
        self._tasks: Sequence[View] = ()
        self._look_at = 0.0
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._live.start()

    def show(self, view: View) -> None:
        from rich.text import Text

        self._look(now=view["ended_at"] is not None)
        whole = {**view, "tasks": self._tasks}
        for line in self._tell_failures(whole):
            self._console.print(Text.from_ansi(line))
        self._live.update(Text.from_ansi("\n".join(self._draw(whole)), no_wrap=True), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _look(self, *, now: bool) -> None:
        """Read the tasks again if it is time for that, or `now`."""
        began = time.monotonic()
        if began >= self._look_at or now:
            self._tasks = load_view(self._session)["tasks"]
            took = time.monotonic() - began
            self._look_at = began + took + max(LOOK_EVERY_S, took * LOOK_SHARE)

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
        new = [
            task for task in view["tasks"] if task["word"] in (*BAD, "bounced") and task["id"] not in self._told
        ]
        self._told |= {task["id"] for task in new}
        lines, width = [], terminal_width(self._stream) - 1
        for task in new:
            section = tell(self._session, task)
            lines.append(ended_line(task, name_tasks(view), time.time(), self._stream))
            lines += [clip(INDENT + escape_line(line), width) for line in (section.lines[-1:] if section else ())]
        return lines
