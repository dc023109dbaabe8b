"""Following a session to its end: what `run --sync` does."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any

import click

from sessionrun.cli.interrupts import EXIT_INTERRUPTED
from sessionrun.cli.render import escape_line, hint, telling, warn
from sessionrun.cli.wait import EXIT_HELD
from sessionrun.client.lookup import name_for_command
from sessionrun.client.reading.view import load_summary_view, load_view
from sessionrun.client.reading.waiting import View, has_ended, is_all_held, wait_until
from sessionrun.model.errors import SessionrunError
from sessionrun.model.wording import tell_result
from sessionrun.store.session import SessionDir


def _summarise(session: SessionDir, view: View) -> dict[str, Any] | None:
    """The account of a session of job files; None for any other.  Warns of an export that is behind."""
    spec = session.load_spec()
    if not spec.exports:
        return None
    from sessionrun.client.reading.job_summary import find_export_problems, summarise_jobs

    for problem in find_export_problems(session, spec, view):
        warn(problem)
    return summarise_jobs(session, spec, view)


def follow_run(session: SessionDir, *, as_json: bool, quiet: bool, leaves_held: bool = False) -> int:
    """`run --sync`: follow to the end, print the results, return the exit code.

    With `leaves_held` also to where only held tasks, or held work, are left: then the code is `EXIT_HELD`.

    Ctrl+C cancels the session and waits for its end; anything else that ends us leaves it running.
    """
    progress = None
    interrupted = False
    try:
        from sessionrun.cli.progress import make_progress

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
    from sessionrun.cli.results import print_results, print_results_json

    summary = _summarise(session, view)
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
