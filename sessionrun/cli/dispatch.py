"""`dispatch`: agents work through the queue of this repository, in a session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sessionrun.cli.options import (
    Count,
    ShellCommand,
    attempt_timeout_option,
    json_option,
    name_options,
    quiet_option,
    ready_option,
    results_dir_option,
    sync_option,
)
from sessionrun.cli.queue import backend_option
from sessionrun.cli.run import Launch, start_session

if TYPE_CHECKING:
    from sessionrun.client.dispatching.dispatch import Prepared


@click.command("dispatch")
@click.argument("tasks", metavar="[TASK...]", nargs=-1)
@click.option("--group", metavar="GROUP", help="Only the tasks of this group.")
@click.option("--once/--watch", "once", default=True, help="End when nothing is left, or wait for more tasks.")
@click.option("--workers", type=Count(1), metavar="N", help="How many agents work at once.  [default: 14]")
@click.option("--agent", metavar="NAME", help="Which agent works.  [default: aider]")
@click.option("--model", metavar="NAME", help="Which model.  [default: ollama/qwen2.5-coder:7b for aider]")
@click.option(
    "--into", "branch", metavar="BRANCH", help="Land the work there.  [default: the branch of the main checkout]"
)
@click.option("--land/--no-land", "lands", default=None, help="Land the work by itself.  [default: --land]")
@click.option(
    "--gate", "gates", type=ShellCommand(), multiple=True, metavar="COMMAND", help="Must exit 0 before work lands."
)
@click.option(
    "--mends", type=Count(), metavar="N", help="How often an agent may mend work that bounced.  [default: 3]"
)
@click.option(
    "--check",
    "checks",
    type=ShellCommand(),
    multiple=True,
    metavar="COMMAND",
    help="Must exit 0 after each attempt.",
)
@click.option("--retries", type=Count(), metavar="N", help="How often a task is tried again.  [default: 2]")
@attempt_timeout_option("  [default: 30m]")
@click.option(
    "--expect-change/--no-expect-change", default=None, help="Fail tasks that change nothing (default), or do not."
)
@click.option(
    "--import",
    "listed",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="First put the tasks of this list into the queue.",
)
@click.option(
    "--ingest",
    type=Count(),
    metavar="N",
    help="Let up to N follow-ups of agents come into the queue by themselves.",
)
@click.option(
    "--prompt-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The prompt, with {title}, {body} and {id}, or {task} for title and text.",
)
@click.option(
    "--config",
    "configuration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings.  [default: dispatch_config.json in the top of the repository]",
)
@click.option("--cluster", metavar="ADDRESS|slurm", help="Run the jobs on a cluster's nodes, or as Slurm's.")
@ready_option
@name_options
@click.option("--dry-run", is_flag=True, help="Show what would run first; change nothing.")
@sync_option
@quiet_option
@backend_option
@json_option
@results_dir_option
def command(
    tasks: tuple[str, ...],
    once: bool,
    listed: Path | None,
    configuration: Path | None,
    ready: bool,
    sync: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    results_dir: Path | None,
    **options: Any,
) -> int:
    """Let agents work through the queue of this repository; land their work.

    Each TASK of the queue that is ready (default: all) goes to the next free worker.  A task that fails is tried
    again from the branch as it is then; at last it stays open, with the reason.  Prints the session id and returns
    at once.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    how = Launch(results_dir, as_json, quiet, False, sync, ready=False, leaves_held=once)
    asked = {**given, "chosen": tasks, "watch": not once}
    return start_dispatch(asked, how, configuration, listed, ready=ready, dry_run=dry_run)


def start_dispatch(
    given: Mapping[str, Any],
    how: Launch,
    configuration: Path | None = None,
    listed: Path | None = None,
    *,
    ready: bool = True,
    dry_run: bool = False,
) -> int:
    """Start a dispatch, or say why there is nothing to do; the exit code.

    Args:
        given: what was asked for: values of `Settings` and `FeedSpec` by their names.
        how: how the session is started, and what is said of that.
        configuration: the file with settings; None: that of the repository.
        listed: a list whose tasks come into the queue first.
        ready: look whether the agent's model can be asked.
        dry_run: show what would run, and change nothing.

    Raises:
        InputError: it cannot be started as it is asked for; no session was created.
    """
    from sessionrun.cli.render import warn
    from sessionrun.client.dispatching.dispatch import find_follow_ups, foresee, prepare_dispatch
    from sessionrun.client.dispatching.settings import settle_dispatch

    settings = settle_dispatch(given, configuration)
    prepared = prepare_dispatch(settings, listed, results_dir=how.results_dir, preview=dry_run, ready=ready)
    planned = prepared.planned
    if planned is None or not (settings.feed.watch or prepared.ready or dry_run):
        return _tell_nothing(prepared, how)
    for warning in planned.warnings:
        warn(warning)
    if not how.quiet:
        _tell_findings(prepared)
    if dry_run:
        from sessionrun.cli.preview import print_preview

        print_preview(foresee(prepared), as_json=how.as_json)
        return 0
    code = start_session(planned.spec, how)
    for line in () if how.quiet else find_follow_ups(settings, planned.spec.session_id):
        click.echo(line, err=True)
    return code


def _tell_findings(prepared: Prepared) -> None:
    from sessionrun.cli.render import escape_line

    for one in prepared.findings:
        level = "" if one.level == "ok" else f"{one.level}: "
        click.echo(f"{level}{one.what}: {escape_line(one.text)}", err=True)


def _tell_nothing(prepared: Prepared, how: Launch) -> int:
    from sessionrun.cli.render import print_json

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
