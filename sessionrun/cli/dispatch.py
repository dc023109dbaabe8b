"""`dispatch`: agents work through the queue of this repository, in a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sessionrun.cli.options import Count, Duration, ShellCommand, json_option, results_dir_option
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
    "--mends", type=Count(), metavar="N", help="Give work that bounced to an agent so often.  [default: 3]"
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
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    metavar="TIME",
    help="Time limit of each attempt; 0 = none.  [default: 30m]",
)
@click.option("--expect-change", is_flag=True, default=None, help="Fail tasks that change nothing.")
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
@click.option(
    "--no-ready",
    "ready",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not look first whether Ollama and the agents are ready.",
)
@click.option("--name", metavar="TEXT", help="A name for the session.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label the session; repeatable.")
@click.option("--sync", is_flag=True, help="Follow the session to its end; Ctrl+C ends all workers.")
@click.option("--dry-run", is_flag=True, help="Show what would run first; change nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Print the session id alone.")
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
    from sessionrun.cli.render import warn
    from sessionrun.client.dispatching.dispatch import find_follow_ups, foresee, prepare_dispatch
    from sessionrun.client.dispatching.settings import settle_dispatch

    given = {name: value for name, value in options.items() if value not in (None, ())}
    settings = settle_dispatch({**given, "tasks": tasks, "watch": not once}, configuration)
    prepared = prepare_dispatch(settings, listed, preview=dry_run, ready=ready)
    planned = prepared.planned
    if planned is None or (once and not prepared.ready and not dry_run):
        return _tell_nothing(prepared, as_json=as_json)
    for warning in planned.warnings:
        warn(warning)
    if not quiet:
        _tell_findings(prepared)
    if dry_run:
        from sessionrun.cli.preview import print_preview

        print_preview(foresee(prepared), as_json=as_json)
        return 0
    how = Launch(results_dir, as_json, quiet, False, sync, ready=False, leaves_held=once)
    code = start_session(planned.spec, how)
    for line in () if quiet else find_follow_ups(settings, planned.spec.session_id):
        click.echo(line, err=True)
    return code


def _tell_findings(prepared: Prepared) -> None:
    from sessionrun.cli.render import escape_line

    for one in prepared.findings:
        level = "" if one.level == "ok" else f"{one.level}: "
        click.echo(f"{level}{one.what}: {escape_line(one.text)}", err=True)


def _tell_nothing(prepared: Prepared, *, as_json: bool) -> int:
    from sessionrun.cli.render import print_json

    if as_json:
        print_json({"session_id": None, "total": 0, "open": prepared.left})
    else:
        left, are = prepared.left, "is" if prepared.left == 1 else "are"
        hint = f"ready; {left} {are} open (sessionrun queue list)" if left else "open (sessionrun queue add TITLE)"
        click.echo(f"nothing to do: no task is {hint}", err=True)
    return 0
