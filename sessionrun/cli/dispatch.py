"""`dispatch`: agents work through the queue of this repository, in a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sessionrun.cli.options import Count, Duration, json_option, results_dir_option
from sessionrun.cli.queue import backend_option
from sessionrun.cli.run import Launch, start_session


@click.command("dispatch")
@click.argument("tasks", metavar="[TASK...]", nargs=-1)
@click.option("--group", metavar="GROUP", help="Only tasks of this group.")
@click.option("--workers", type=Count(1), metavar="N", help="How many agents work at once.  [default: 14]")
@click.option("--agent", metavar="NAME", help="Which agent works.  [default: aider]")
@click.option("--model", metavar="NAME", help="Which model.  [default: that of the agent]")
@click.option("--into", "branch", metavar="BRANCH", help="Land the work there.  [default: the current branch]")
@click.option("--gate", "gates", multiple=True, metavar="COMMAND", help="Must exit 0 before work lands.")
@click.option("--check", "checks", multiple=True, metavar="COMMAND", help="Must exit 0 after each task.")
@click.option("--retries", type=Count(), metavar="N", help="How often a task is tried again.  [default: 2]")
@click.option(
    "--timeout", "timeout_s", type=Duration(), metavar="TIME", help="Time limit of each attempt.  [default: 30m]"
)
@click.option("--expect-change", is_flag=True, default=None, help="Fail tasks that change nothing.")
@click.option("--once/--watch", "once", default=True, help="End when no task is ready, or wait for more.")
@click.option("--dry-run", is_flag=True, help="Show what would run; create nothing.")
@click.option("--sync", is_flag=True, help="Follow the session to its end; Ctrl+C ends it.")
@click.option("-q", "--quiet", is_flag=True, help="Print the session id alone.")
@backend_option
@json_option
@results_dir_option
def command(
    tasks: tuple[str, ...],
    once: bool,
    dry_run: bool,
    sync: bool,
    quiet: bool,
    as_json: bool,
    results_dir: Path | None,
    **options: Any,
) -> int:
    """Let agents work through the queue, each task in a worktree, and land their work.

    Prints the session id and returns at once.  A task that fails is tried again, and then stays open with the
    reason.
    """
    from sessionrun.cli.render import escape_line, warn
    from sessionrun.client.dispatching.dispatch import foresee, prepare
    from sessionrun.client.dispatching.settings import Settings
    from sessionrun.queue.place import find_place

    given = {name: value for name, value in options.items() if value not in (None, ())}
    settings = Settings(top=find_place(Path.cwd()).top, tasks=tasks, watch=not once, **given)
    prepared = prepare(settings, preview=dry_run)
    for warning in prepared.planned.warnings:
        warn(warning)
    if dry_run:
        from sessionrun.cli.preview import print_preview

        print_preview(foresee(prepared), as_json=as_json)
        return 0
    if not prepared.ready and once:
        click.echo("nothing to do: no task is ready", err=True)
        return 0
    if not quiet:
        choice = prepared.planned.choice
        click.echo(f"agent: {escape_line(choice.name)} ({choice.why})", err=True)
    return start_session(prepared.planned.spec, Launch(results_dir, as_json, quiet, False, sync))
