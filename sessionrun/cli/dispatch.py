"""`queue work`: agents work through the queue of this repository; a session as of `run`, but fed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.backend import backend_option
from sessionrun.cli.options import (
    Count,
    flag,
    json_option,
    quiet_option,
    ready_option,
    results_dir_option,
    sync_option,
    valued,
)
from sessionrun.cli.render import escape_line, print_json, warn
from sessionrun.cli.start import Launch, options_of, start_session, take_options
from sessionrun.client.planning.plan import Planned, plan
from sessionrun.input.rows import SETTINGS
from sessionrun.queue.dispatch import Prepared, find_configuration, find_follow_ups, foresee, prepare

_SETTINGS: Final = tuple(row for row in SETTINGS if row.scope != "input" or row.name == "prompt_template")
_EPILOG: Final = "Also --prompt-template FILE, and all options of `run` but for its input: run --help-all."


@click.command("work", epilog=_EPILOG)
@click.argument("tasks", metavar="[TASK...]", nargs=-1)
@valued("--group", "GROUP", "Only the tasks of this group.")
@click.option("--once/--watch", "once", default=True, help="End when nothing is left, or wait for more tasks.")
@valued("--import listed", "FILE", "First put the tasks of this list into the queue.", click.Path(path_type=Path))
@valued("--ingest", Count(), "Let up to N follow-ups of agents come into the queue by themselves.")
@valued(
    "--config configuration",
    "FILE",
    "A dispatch_config.json.  [default: that in the top of the repository]",
    click.Path(path_type=Path),
)
@options_of(_SETTINGS, hidden=True)
@ready_option
@flag("--dry-run", "Show what would run first; change nothing.")
@sync_option
@quiet_option
@backend_option
@json_option
@results_dir_option
def command(
    tasks: tuple[str, ...],
    group: str | None,
    once: bool,
    listed: Path | None,
    ingest: int | None,
    configuration: Path | None,
    ready: bool,
    sync: bool,
    dry_run: bool,
    quiet: bool,
    backend: str | None,
    as_json: bool,
    results_dir: Path | None,
    **options: Any,
) -> int:
    """Let agents work through the queue of this repository; land their work.

    Each TASK of the queue that is ready (default: all) goes to the next free worker.  A task that fails is tried
    again from the branch as it is then; at last it stays open, with the reason.  Prints the session id and returns
    at once.
    """
    feed = {"chosen": list(tasks), "group": group, "watch": not once, "ingest": ingest, "backend": backend}
    given = {**take_options(options), "feed": {name: value for name, value in feed.items() if value}}
    how = Launch(results_dir, as_json, quiet, False, sync, ready=False, leaves_held=once)
    return work(given, how, configuration, listed, ready=ready, dry_run=dry_run)


def work(
    options: Mapping[str, Any],
    how: Launch,
    configuration: Path | None = None,
    listed: Path | None = None,
    *,
    ready: bool = True,
    dry_run: bool = False,
) -> int:
    """Start a session that works through the queue, or say why there is nothing to do; the exit code.

    Args:
        configuration: a ``dispatch_config.json``; None: that of the repository.
        listed: a list whose tasks come into the queue first.

    Raises:
        InputError: it cannot be started as it is asked for; no session was created.
    """
    file = configuration or find_configuration()
    given = {"feed": True} if file is None else str(file)
    dialect = "prompts" if file is None else "dispatch_config"
    planned = plan(given, {**options, "dialect": dialect}, preview=dry_run)
    assert isinstance(planned, Planned)
    return start_fed(planned, how, listed, ready=ready, dry_run=dry_run, file=file)


def start_fed(
    planned: Planned,
    how: Launch,
    listed: Path | None = None,
    *,
    ready: bool,
    dry_run: bool,
    file: Path | None = None,
) -> int:
    """Start a session that takes its tasks from a queue, if that has any; see `work`."""
    spec = planned.spec
    assert spec.feed is not None
    prepared = prepare(spec, listed, results_dir=how.results_dir, preview=dry_run, ready=ready)
    if not (spec.feed.watch or prepared.ready or dry_run):
        return _tell_nothing(prepared, how)
    for warning in planned.warnings:
        warn(warning)
    if not how.quiet:
        if file is not None:
            click.echo(f"configuration: {escape_line(str(file))}", err=True)
        _tell_findings(prepared)
    if dry_run:
        from sessionrun.cli.preview import print_preview

        print_preview(foresee(planned, prepared), as_json=how.as_json)
        return 0
    code = start_session(spec, how)
    for line in () if how.quiet else find_follow_ups(spec):
        click.echo(line, err=True)
    return code


def _tell_findings(prepared: Prepared) -> None:
    for one in prepared.findings:
        level = "" if one.level == "ok" else f"{one.level}: "
        click.echo(f"{level}{one.what}: {escape_line(one.text)}", err=True)


def _tell_nothing(prepared: Prepared, how: Launch) -> int:
    if not how.quiet:
        _tell_findings(prepared)
    if how.as_json:
        record = {"session_id": None, "total": 0, "open": prepared.left}
        print_json(record if how.beside is None else {**how.beside, "dispatch": record})
    else:
        left, are = prepared.left, "is" if prepared.left == 1 else "are"
        hint = f"ready; {left} {are} open (sessionrun queue list)" if left else "open (sessionrun queue add TITLE)"
        click.echo(f"nothing to do: no task is {hint}", err=True)
    return 0
