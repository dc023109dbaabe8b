"""Waiting for a session: a reader that looks again and again, so that nobody has to tell it anything."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import click

from sessionrun.cli.view import load_summary_view, load_view
from sessionrun.errors import SessionGone
from sessionrun.store import SessionDir

POLL_FIRST_S: Final = 0.01
POLL_LAST_S: Final = 0.2
POLL_GROWTH: Final = 1.25

View = dict[str, Any]


class Progress(Protocol):
    """Shows how far a session is."""

    def show(self, view: View) -> None:
        """Show the counters of a summary."""

    def close(self) -> None:
        """Take the display down."""


def wait_until(
    load: Callable[[], View],
    is_done: Callable[[View], bool],
    *,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> View | None:
    """Look until `is_done`; None when the time (seconds) is up.

    Raises:
        SessionGone: the session's processes are gone and it has not ended.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    interval = POLL_FIRST_S
    while True:
        view = load()
        if progress is not None:
            progress.show(view)
        if is_done(view):
            return view
        if view["status"] == "interrupted":
            raise SessionGone(f"the processes of session {view['session_id']} are gone before it ended")
        left = POLL_LAST_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(interval, left))
        interval = min(interval * POLL_GROWTH, POLL_LAST_S)


def request_cancel(
    session: SessionDir,
    tasks: list[str],
    is_done: Callable[[View], bool],
    *,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> View | None:
    """Ask the supervisor to stop these tasks, all when none is named, and look until `is_done`.

    Raises:
        SessionGone: see `wait_until`; the request stays for whoever resumes the session.
    """
    request_id, _ = session.send_request({"kind": "cancel", "tasks": tasks})
    view = wait_until(lambda: load_view(session), is_done, timeout_s=timeout_s, progress=progress)
    if view is not None and has_ended(view):
        session.drop_request(request_id)  # it came too late to be taken, and must not hit a later run
    return view


def has_ended(view: View) -> bool:
    """Whether the session is over."""
    return view["ended_at"] is not None


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
        interrupted = True
        click.echo("\ncancelling ...", err=True)
        request_cancel(session, [], has_ended, progress=progress)
    finally:
        if progress is not None:
            progress.close()
    from sessionrun.cli.render import print_json
    from sessionrun.cli.results import print_results

    view = load_view(session)
    if as_json:
        print_json(view)
    elif quiet:
        click.echo(session.session_id)
    else:
        print_results(session, view, view["tasks"], tail=None)
    return 130 if interrupted else int(view["outcome"] != "succeeded")
