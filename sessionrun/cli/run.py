"""`run`: read the input, settle it into a spec, create the session, detach, say its id."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sessionrun.cli.options import (
    Count,
    Dollars,
    Duration,
    ShellCommand,
    attempt_timeout_option,
    json_option,
    name_options,
    quiet_option,
    ready_option,
    results_dir_option,
    sync_option,
)
from sessionrun.cli.run_options import (
    handing_options,
    help_format_options,
    own_options,
    pace_options,
    take_own,
    take_tasks,
)
from sessionrun.client.lookup import resolve_results_dir
from sessionrun.input.own_options import SHARED_OPTIONS
from sessionrun.model.places import KEEP_POLICIES
from sessionrun.model.sandbox import POLICIES
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


@click.command(
    "run", epilog="FILE's formats: man 5 sessionrun-input.  Files of a session: man 5 sessionrun-files."
)
@click.argument("file", required=False, metavar="[FILE]")
@handing_options
@click.option("--into", metavar="ID", help="Add the tasks to session ID, which runs, instead.")
@sync_option
@click.option("--agent", metavar="NAME", help="Agent for tasks that name none.  [default: first found]")
@click.option("--model", metavar="NAME", help="Model, as the agent CLI spells it.")
@click.option(
    "--fallback",
    multiple=True,
    metavar="AGENT[/MODEL]",
    help="Agent that takes over at a limit; repeatable, in order.",
)
@click.option(
    "--max-parallel", type=Count(), metavar="N", help="How many tasks may run at once; 0 = no limit, the default."
)
@click.option("--workers", "--max-concurrent", "-j", "max_parallel", type=Count(), hidden=True)
@attempt_timeout_option("")
@click.option(
    "--idle-timeout",
    "idle_timeout_s",
    type=Duration(),
    metavar="TIME",
    help="Stop an agent that prints nothing for this long.",
)
@click.option(
    "--budget",
    "budget_usd",
    type=Dollars(),
    metavar="USD",
    help="Start no work that may bring the session over this.",
)
@click.option(
    "--soft-budget",
    "soft_budget_usd",
    type=Dollars(),
    metavar="USD",
    hidden=True,
    help="When this is spent, hold the session.",
)
@click.option(
    "--task-budget",
    "task_budget_usd",
    type=Dollars(),
    metavar="USD",
    hidden=True,
    help="What each task may cost, over all attempts.",
)
@click.option(
    "--yolo/--no-yolo",
    "approve",
    default=None,
    help="Let agents use all their tools without asking, or not.  [default: --yolo]",
)
@name_options
@click.option("--run-name", "name", hidden=True)
@click.option(
    "--envelope", is_flag=True, hidden=True, help="Wrap prompts: transaction id before, answer marker after."
)
@click.option(
    "--no-auto-release",
    "auto_release",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Hold a provider with a usage limit until `release`.",
)
@click.option(
    "--from",
    "dialect",
    metavar="FORMAT",
    help="Input format: prompts, matrix, markdown or swebench.  [default: guessed]",
)
@help_format_options(tuple(SHARED_OPTIONS))
@own_options
@click.option("--worktree", is_flag=True, help="Give each task its own git worktree and branch.")
@click.option("--base", metavar="REF", help="Branch, tag or commit where worktrees begin.  [default: HEAD]")
@click.option(
    "--worktree-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where worktrees go, outside the repository.  [default: ../REPOSITORY-worktrees]",
)
@click.option(
    "--keep-worktree",
    "keep",
    type=click.Choice(KEEP_POLICIES),
    metavar="WHEN",
    help="Keep worktrees whose work is on a branch: always, on-failure, never.  [default: never]",
)
@click.option(
    "--cache-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    hidden=True,
    help="Where mirrors and environments are kept.  [default: the user's cache directory]",
)
@click.option(
    "--require-cache/--no-require-cache",
    default=None,
    hidden=True,
    help="Fetch no repository and build no environment: take what the cache has.",
)
@click.option(
    "--sandbox",
    type=click.Choice(POLICIES),
    metavar="POLICY",
    help="Walls around tasks: none, project, strict.",
)
@click.option("--land", is_flag=True, help="Land the work on a branch, as `merge` does.")
@click.option("--land-into", metavar="BRANCH", hidden=True, help="With --land: that branch.")
@click.option(
    "--gate",
    "gates",
    type=ShellCommand(),
    multiple=True,
    metavar="COMMAND",
    help="With --land: must exit 0 first.",
)
@click.option(
    "--mends", type=Count(), metavar="N", hidden=True, help="With --land: how often a task may mend bounced work."
)
@click.option("--expect-change", is_flag=True, help="Fail tasks that change nothing in their worktree.")
@click.option("--prove", is_flag=True, help="The check must pass by the work alone.")
@ready_option
@click.option("--rerun", is_flag=True, help="Also run what succeeded, or ended, before.")
@click.option("--stop-on-fail", is_flag=True, help="Start nothing more after the first failed task.")
@pace_options
@click.option(
    "--job",
    "only",
    multiple=True,
    metavar="ID",
    hidden=True,
    help="Only this job file, whatever became of it; repeatable.",
)
@click.option(
    "--resume", "include_stuck", is_flag=True, hidden=True, help="Also job files that were begun and did not end."
)
@click.option("--dry-run", is_flag=True, help="Show what would run; create nothing.")
@click.option(
    "--verbose", is_flag=True, help="Print each task's arguments and directory; with --dry-run all of its prompt."
)
@quiet_option
@json_option
@results_dir_option
def command(
    file: str | None,
    into: str | None,
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
    from sessionrun.client.planning.asked import Asked
    from sessionrun.client.planning.plan import Nothing, plan

    options["own"] = take_own(options)
    asked = Asked(*(options[name] for name in Asked._fields))
    joined = None
    if into is not None:
        from sessionrun.cli.replies import open_joined

        joined = open_joined(results_dir, into, options)
    planned = plan(file, asked, take_tasks(options), preview=dry_run, into=joined and joined.spec)
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
        print_preview(planned, as_json=as_json, verbose=verbose, held=options["hold"])
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
    return start_session(planned.spec, Launch(results_dir, as_json, quiet, verbose, sync, ready, options["hold"]))


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
