"""`run`: read the input, settle it into a spec, create the session, detach, say its id."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sessionrun.cli.help import RunCommand, print_all
from sessionrun.cli.options import (
    json_option,
    quiet_option,
    ready_option,
    results_dir_option,
    sync_option,
)
from sessionrun.cli.words import options_of, take_options
from sessionrun.client.lookup import resolve_results_dir
from sessionrun.input.rows import SETTINGS
from sessionrun.model.spec import SLOT, SessionSpec
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.client.planning.plan import Planned


class Launch(NamedTuple):
    """What a command line says about how to start a session, not of what."""

    results_dir: Path | None
    as_json: bool
    quiet: bool
    verbose: bool
    sync: bool
    ready: bool = True
    """Whether agents that can say so are asked if they are ready."""
    held: bool = False
    """Whether no task starts until the session is released."""
    leaves_held: bool = False
    """Whether to follow no further where only held tasks are left."""
    beside: Mapping[str, Any] | None = None
    """What `--json` prints; the record of the start is its key `dispatch`.  None: that record alone."""


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
    joined = None
    if into is not None:
        from sessionrun.cli.replies import open_joined

        joined = open_joined(results_dir, into, given, held=hold)
    planned = plan(file, given, preview=dry_run, into=joined and joined.spec)
    for warning in planned.warnings:
        warn(warning)
    if isinstance(planned, Nothing):
        return _tell_nothing(as_json=as_json)
    if planned.skipped:
        click.echo(
            f"skipped: {planned.skipped} that {planned.skipped_for} before (--rerun runs them again)", err=True
        )
    addition = joined.settle(planned.spec) if joined is not None and planned.spec.tasks else None
    if dry_run and planned.spec.tasks:
        from sessionrun.cli.preview import print_preview
        from sessionrun.client.launching.readiness import tell_signed_out

        for warning in tell_signed_out(planned.spec) if ready else ():
            warn(warning)
        print_preview(planned, as_json=as_json, verbose=verbose, held=hold)
        return 0
    if not planned.spec.tasks:
        if not dry_run and joined is None:
            from sessionrun.client.launching.launch import mend_exports

            mend_exports(planned.spec)
        return _tell_nothing_to_do(planned.skipped, planned.skipped_for, as_json=as_json)
    if not quiet:
        _tell_agent(planned)
    if joined is not None and addition is not None:
        return joined.add(planned.spec, addition, as_json=as_json, quiet=quiet, sync=sync, ready=ready)
    return start_session(planned.spec, Launch(results_dir, as_json, quiet, verbose, sync, ready, hold))


def _tell_agent(planned: Planned) -> None:
    """Say which agent was chosen and why; and that agents could be walled, if they could and are not."""
    from sessionrun.cli.render import escape_line, hint
    from sessionrun.client.planning.sandboxing import may_have_walls

    hint(f"agent: {escape_line(planned.choice.name)} ({planned.choice.why})")
    if may_have_walls(planned.spec):
        hint("walls: none (--sandbox project builds them: bubblewrap is installed)")


def _tell_nothing_to_do(skipped: int, before: str, *, as_json: bool) -> int:
    from sessionrun.cli.render import print_json

    if as_json:
        print_json({"session_id": None, "total": 0, "skipped": skipped})
    else:
        click.echo(f"nothing to do: all runs {before} before", err=True)
    return 0


def _tell_nothing(*, as_json: bool) -> int:
    from sessionrun.cli.render import print_json
    from sessionrun.client.reading.job_summary import empty_summary

    if as_json:
        print_json({"session_id": None, "summary": empty_summary()})
    else:
        click.echo("No jobs to process")
    return 0


def start_session(spec: SessionSpec, how: Launch) -> int:
    """Create a session, start it, say its id or follow it; the exit code.

    Raises:
        InputError: an agent is not signed in or not ready; nothing was created.
    """
    from sessionrun.cli.interrupts import ignore, was_pressed
    from sessionrun.cli.render import telling
    from sessionrun.client.launching.launch import launch

    results_dir = resolve_results_dir(how.results_dir)
    shown = SessionDir(results_dir / f"session-{spec.session_id}")
    if how.verbose:
        _say_more(spec)
    try:
        session = launch(spec, results_dir, ready=how.ready, held=how.held)
        if was_pressed():
            raise KeyboardInterrupt
        if how.sync:
            from sessionrun.cli.sync import follow_run

            return follow_run(session, as_json=how.as_json, quiet=how.quiet, leaves_held=how.leaves_held)
        with telling(f"session {spec.session_id} was started and runs"):
            _tell_start(spec, shown, how)
        ignore()  # what was told to run runs on: no exit code may say that it was cancelled
        return 0
    except KeyboardInterrupt:
        from sessionrun.cli.sync import cancel_interrupted

        return cancel_interrupted(shown)


def _tell_start(spec: SessionSpec, session: SessionDir, how: Launch) -> None:
    from sessionrun.cli.render import escape_line, print_json, sign

    if how.as_json and how.quiet:
        print_json({"session_id": spec.session_id})
    elif how.quiet:
        click.echo(spec.session_id)
    elif how.as_json:
        record = started_record(spec, session)
        print_json(record if how.beside is None else {**how.beside, "dispatch": record})
    else:
        name = f" ({escape_line(spec.name)})" if spec.name else ""
        click.echo(f"{sign('rocket')} Started session: {spec.session_id}{name}")
        click.echo(f"{sign('folder')} Results directory: {session.path}")
        click.echo("\nUse these commands to monitor progress:")
        click.echo(f"  sessionrun --status {spec.session_id}")
        click.echo(f"  sessionrun --results {spec.session_id}")


def started_record(spec: SessionSpec, session: SessionDir) -> dict[str, Any]:
    """What `run --json` prints."""
    return {
        "session_id": spec.session_id,
        "results_dir": str(session.path.absolute()),
        "agent": spec.agent,
        "dialect": spec.dialect,
        "name": spec.name,
        "labels": dict(spec.labels),
        "total": len(spec.tasks),
        "max_parallel": spec.resources.get(SLOT),
    }


def _say_more(spec: SessionSpec) -> None:
    from sessionrun.cli.render import escape_line
    from sessionrun.client.planning.preview import task_argv
    from sessionrun.model.repositories import has_worktree

    for task in spec.tasks:
        argv = shlex.join(task_argv(spec, task))
        place = "its worktree" if has_worktree(task) else task.cwd or spec.cwd
        click.echo(escape_line(f"task {task.id}: {argv} (in {place})"), err=True)
