"""Waiting for a session: a reader that looks again and again, so that nobody has to tell it anything."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import click

from sessionrun.cli.view import load_summary_view, load_view
from sessionrun.errors import SessionGone
from sessionrun.store import SessionDir

POLL_FIRST_S: Final = 0.01
POLL_LAST_S: Final = 0.2
POLL_GROWTH: Final = 1.25
GONE_AFTER_S: Final = 1.0
"""A session's processes are gone when none is found by two looks this far apart: its chain restarts itself."""

View = dict[str, Any]


class Progress(Protocol):
    """Shows how far a session is."""

    def show(self, view: View) -> None:
        """Show the counters of a summary."""

    def close(self) -> None:
        """Take the display down."""


class Watch:
    """Tells a session whose processes are gone from one that is just being restarted."""

    def __init__(self) -> None:
        self._missed_at: float | None = None

    def is_gone(self, view: View) -> bool:
        """Whether this look and one long enough before it, with all between them, found no process."""
        if view["status"] != "interrupted":
            self._missed_at = None
            return False
        now = time.monotonic()
        self._missed_at = now if self._missed_at is None else self._missed_at
        return now - self._missed_at >= GONE_AFTER_S

    @property
    def doubts(self) -> bool:
        """Whether the last look found no process."""
        return self._missed_at is not None


def wait_until(
    load: Callable[[], View],
    is_done: Callable[[View], bool],
    *,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> View | None:
    """Look until `is_done`; None when the time (seconds) is up.

    Who finds no process then looks a second longer, so that waiting in short slices, too, learns that they are
    gone.

    Raises:
        SessionGone: the session's processes are gone and it has not ended.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    interval, watch = POLL_FIRST_S, Watch()
    while True:
        view = load()
        if progress is not None:
            progress.show(view)
        if is_done(view):
            return view
        if watch.is_gone(view):
            raise SessionGone(gone_words(view))
        left = POLL_LAST_S if deadline is None else deadline - time.monotonic()
        if left <= 0 and not watch.doubts:
            return None
        time.sleep(min(interval, left) if left > 0 else interval)
        interval = min(interval * POLL_GROWTH, POLL_LAST_S)


def gone_words(view: View) -> str:
    """That no process of the session is left, and what helps."""
    from sessionrun.damage import describe_rest
    from sessionrun.replay import find_damage

    session_id = view["session_id"]
    damage = find_damage(SessionDir(Path(view["results_dir"])))
    if damage is not None:
        gone = f"no process of session {session_id} is left, and it cannot go on"
        return f"{gone}: {damage}; {describe_rest(session_id)}"
    gone = f"the processes of session {session_id} are gone before it ended"
    return f"{gone}; to go on with it: sessionrun resume {session_id}"


def has_ended(view: View) -> bool:
    """Whether the session is over."""
    return view["ended_at"] is not None


def _summarise(session: SessionDir, view: View) -> dict[str, Any] | None:
    """The account of a session of jobs; None for any other.  A view that is behind is told."""
    spec = session.load_spec()
    if not spec.views:
        return None
    from sessionrun.cli.batch import summarise_jobs
    from sessionrun.cli.render import warn
    from sessionrun.views import find_behind

    problems = view.get("view_problems") or ()
    for problem in problems:
        warn(problem)
    for path in () if problems else find_behind(session, spec):
        warn(f"{path} could not be brought up to date: {session.path / 'supervisor.log'} says why")
    return summarise_jobs(session, spec, view)


def follow_run(session: SessionDir, *, as_json: bool, quiet: bool) -> int:
    """`run --sync`: follow to the end, print the results, return the exit code.

    Ctrl+C cancels the session and waits for its end; anything else that ends us leaves it running.
    """
    progress = None
    interrupted = False
    try:
        from sessionrun.cli.progress import make_progress

        if not quiet:
            click.echo(f"session: {session.session_id}", err=True)
        progress = None if quiet else make_progress(sys.stderr)
        wait_until(lambda: load_summary_view(session), has_ended, progress=progress)
    except KeyboardInterrupt:
        from sessionrun.cli.control import request_cancel

        interrupted = True
        click.echo("\ncancelling ...", err=True)
        request_cancel(session, [], has_ended, progress=progress)
    finally:
        if progress is not None:
            progress.close()
    from sessionrun.cli.render import print_json
    from sessionrun.cli.results import print_results

    view = load_view(session)
    summary = _summarise(session, view)
    if as_json:
        print_json({**view, "summary": summary} if summary else view)
    elif quiet:
        click.echo(session.session_id)
    else:
        print_results(session, view, view["tasks"], tail=None)
        if summary:
            from sessionrun.cli.batch import word_summary

            click.echo(f"\n{word_summary(summary)}")
    return 130 if interrupted else int(view["outcome"] != "succeeded")
