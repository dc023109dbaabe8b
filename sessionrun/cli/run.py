"""`run`: read the input, settle it into a spec, create the session, detach, say its id."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sessionrun.cli.help import RunCommand, print_all
from sessionrun.cli.options import (
    json_option,
    quiet_option,
    ready_option,
    results_dir_option,
    sync_option,
)
from sessionrun.cli.start import Launch, options_of, start_session, take_options
from sessionrun.input.rows import SETTINGS
from sessionrun.model.errors import InputError

if TYPE_CHECKING:
    from sessionrun.client.planning.plan import Planned
    from sessionrun.model.events import TasksAdded
    from sessionrun.model.spec import SessionSpec
    from sessionrun.store.session import SessionDir


@click.command("run", cls=RunCommand)
@click.argument("file", required=False, metavar="[FILE]")
@options_of(SETTINGS)
@click.option("--into", metavar="ID", help="Add the tasks to session ID, which runs, instead.")
@click.option("--hold", is_flag=True, help="Start no task until `release`.")
@ready_option
@sync_option
@click.option("--dry-run", is_flag=True, help="Show what would run; create nothing.")
@click.option(
    "--verbose", is_flag=True, help="Print each task's arguments and directory; with --dry-run all of its prompt."
)
@quiet_option
@json_option
@results_dir_option
@click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_all,
    help="Show all options, by topic.",
)
def command(
    file: str | None,
    into: str | None,
    hold: bool,
    sync: bool,
    ready: bool,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    results_dir: Path | None,
    **options: Any,
) -> int:
    """Start a session of the tasks in FILE, or on standard input.

    Prints the session id and returns at once; the tasks run in the background.
    """
    from sessionrun.cli.render import warn
    from sessionrun.client.planning.plan import Nothing, plan

    given = take_options(options)
    session, spec = (None, None) if into is None else _open_joined(results_dir, into, given, held=hold)
    planned = plan(file, given, preview=dry_run, into=spec)
    for warning in planned.warnings:
        warn(warning)
    if isinstance(planned, Nothing):
        from sessionrun.client.reading.job_summary import empty_summary

        return _tell_nothing({"summary": empty_summary()}, "No jobs to process", as_json=as_json, err=False)
    if planned.skipped:
        click.echo(
            f"skipped: {planned.skipped} that {planned.skipped_for} before (--rerun runs them again)", err=True
        )
    if planned.spec.feed is not None:
        from sessionrun.cli.dispatch import start_fed

        how = Launch(results_dir, as_json, quiet, verbose, sync, ready=False, held=hold)
        return start_fed(planned, how, ready=ready, dry_run=dry_run)
    addition = None
    if spec is not None and planned.spec.tasks:
        from sessionrun.client.planning.joining import settle_addition

        addition = settle_addition(planned.spec, spec)
    if dry_run and planned.spec.tasks:
        return _preview(planned, ready=ready, as_json=as_json, verbose=verbose, held=hold)
    if not planned.spec.tasks:
        if not dry_run and session is None:
            from sessionrun.client.launching.launch import mend_exports

            mend_exports(planned.spec)
        words = f"nothing to do: all runs {planned.skipped_for} before"
        return _tell_nothing({"total": 0, "skipped": planned.skipped}, words, as_json=as_json, err=True)
    if not quiet:
        _tell_agent(planned)
    if session is not None and addition is not None:
        return _add(session, planned.spec, addition, ready=ready, as_json=as_json, quiet=quiet, sync=sync)
    return start_session(planned.spec, Launch(results_dir, as_json, quiet, verbose, sync, ready, hold))


def _open_joined(
    results_dir: Path | None, session_id: str, given: Mapping[str, Any], *, held: bool
) -> tuple[SessionDir, SessionSpec]:
    """Find the session to which tasks are to be added, with its spec as it is now.

    Raises:
        InputError: it has ended, or an option holds for a whole session.
    """
    from sessionrun.client.ask import load_open
    from sessionrun.client.lookup import open_session
    from sessionrun.client.planning.joining import describe_whole, refuse_session_options

    session = open_session(results_dir, session_id)
    spec = load_open(session)
    refuse_session_options(given, spec)
    if held:
        raise InputError(describe_whole("--hold"))
    return session, spec


def _add(session: SessionDir, planned: SessionSpec, addition: TasksAdded, *, ready: bool, **shown: bool) -> int:
    """Add tasks to a session that runs, and say what became of them; the exit code."""
    from sessionrun.cli.control import ask_each
    from sessionrun.cli.render import warn
    from sessionrun.client.ask import add
    from sessionrun.client.launching.launch import check_machine, check_ready
    from sessionrun.client.reading.selection import Chosen

    if ready:
        check_ready(planned)
    for warning in check_machine(planned):
        warn(warning)
    return ask_each(Chosen([session], (), False), "add", lambda *_: add(session, addition), waits=True, **shown)


def _preview(planned: Planned, *, ready: bool, **shown: bool) -> int:
    from sessionrun.cli.preview import print_preview
    from sessionrun.cli.render import warn
    from sessionrun.client.launching.launch import tell_signed_out

    for warning in tell_signed_out(planned.spec) if ready else ():
        warn(warning)
    print_preview(planned, **shown)
    return 0


def _tell_agent(planned: Planned) -> None:
    """Say which agent was chosen and why; and that agents could be walled, if they could and are not."""
    from sessionrun.cli.render import escape_line, hint
    from sessionrun.walls.steps import may_have_walls

    hint(f"agent: {escape_line(planned.choice.name)} ({planned.choice.why})")
    if may_have_walls(planned.spec):
        hint("walls: none (--sandbox project builds them: bubblewrap is installed)")


def _tell_nothing(record: Mapping[str, Any], words: str, *, as_json: bool, err: bool) -> int:
    from sessionrun.cli.render import print_json

    if as_json:
        print_json({"session_id": None, **record})
    else:
        click.echo(words, err=err)
    return 0
