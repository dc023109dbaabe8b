"""`run`: read the input, settle it into a spec, create the session, detach, say its id."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from sessionrun.cli.options import Count, Seconds, json_option, resolve_results_dir, results_dir_option
from sessionrun.errors import InputError
from sessionrun.model import KEEP_POLICIES, SLOT, KeepPolicy, SessionSpec
from sessionrun.store import SessionDir


class _Run(NamedTuple):
    """What the command line of `run` says about how to run, not what."""

    results_dir: Path | None
    as_json: bool
    quiet: bool
    verbose: bool
    sync: bool


@click.command(
    "run", epilog="FILE's formats: man 5 sessionrun-input.  Files of a session: man 5 sessionrun-files."
)
@click.argument("file", required=False, metavar="[FILE]")
@click.option("--sync", is_flag=True, help="Wait for the end, show progress, print the results.")
@click.option("--agent", metavar="NAME", help="Agent for tasks that name none.  [default: first found]")
@click.option("--model", metavar="NAME", help="Model, as the agent CLI spells it.")
@click.option("--max-parallel", type=Count(), metavar="N", help="Most tasks at once; 0 = unlimited.")
@click.option("--workers", "--max-concurrent", "max_parallel", type=Count(), hidden=True)
@click.option("--timeout", type=Seconds(), metavar="S", help="Seconds for each attempt of a task; 0 = none.")
@click.option(
    "--yolo/--no-yolo",
    "approve",
    default=None,
    help="Let agents use all their tools without asking.  [default: --yolo]",
)
@click.option("--name", metavar="TEXT", help="A name for the session.")
@click.option("--run-name", "name", hidden=True)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label the session; repeatable.")
@click.option("--envelope", is_flag=True, help="Wrap prompts: transaction id before, answer marker after.")
@click.option("--from", "dialect", metavar="DIALECT", help="Input format, if it is not to be guessed.")
@click.option("--worktree", is_flag=True, help="Give each task a git worktree and a branch of its own.")
@click.option("--base", metavar="REF", help="Branch, tag or commit where worktrees begin.  [default: HEAD]")
@click.option(
    "--worktree-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where worktrees go.",
)
@click.option(
    "--keep-worktree",
    type=click.Choice(KEEP_POLICIES),
    help="Which worktrees stay although their work is on a branch.  [default: never]",
)
@click.option("--dry-run", is_flag=True, help="Show what would run; create nothing.")
@click.option("--verbose", is_flag=True, help="Say more on standard error: argv, directories, ids.")
@click.option("-q", "--quiet", is_flag=True, help="Print the session id alone.")
@json_option
@results_dir_option
def command(
    file: str | None,
    sync: bool,
    agent: str | None,
    model: str | None,
    max_parallel: int | None,
    timeout: float | None,
    approve: bool | None,
    name: str | None,
    labels: tuple[str, ...],
    envelope: bool,
    dialect: str | None,
    worktree: bool,
    base: str | None,
    worktree_dir: Path | None,
    keep_worktree: KeepPolicy | None,
    dry_run: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Start a session of the tasks in FILE, or on standard input.

    Prints the session id and returns at once; the tasks run in the background.
    """
    from sessionrun.cli.planning import Asked, AskedGit, plan_session
    from sessionrun.cli.render import escape_line, warn

    asked = Asked(agent, model, max_parallel, timeout, name, labels, approve, envelope, dialect)
    planned = plan_session(file, asked, AskedGit(worktree, base, worktree_dir, keep_worktree))
    how = _Run(results_dir, as_json, quiet, verbose, sync)
    for warning in planned.warnings:
        warn(warning)
    if dry_run:
        from sessionrun.cli.preview import print_preview

        print_preview(planned, as_json=as_json)
        return 0
    if not quiet:
        click.echo(f"agent: {escape_line(planned.choice.name)} ({planned.choice.why})", err=True)
    return _start(planned.spec, how)


def _start(spec: SessionSpec, how: _Run) -> int:
    from sessionrun import index
    from sessionrun.detach import start_detached

    session = SessionDir(resolve_results_dir(how.results_dir) / f"session-{spec.session_id}")
    absolute = SessionDir(session.path.absolute())
    if how.verbose:
        _say_more(spec)
    lock_fd = absolute.create(spec)
    try:
        start_detached(absolute, lock_fd)
        index.remember(absolute.path)
        if how.sync:
            from sessionrun.cli.follow import follow_run
    except KeyboardInterrupt:  # nobody was told its id yet, so it must not run on
        absolute.send_request({"kind": "cancel"})
        raise
    if how.sync:
        return follow_run(absolute, as_json=how.as_json, quiet=how.quiet)
    _tell_start(spec, session, how)
    return 0


def _tell_start(spec: SessionSpec, session: SessionDir, how: _Run) -> None:
    from sessionrun.cli.render import print_json, sign

    if how.quiet:
        click.echo(spec.session_id)
    elif how.as_json:
        print_json(started_record(spec, session))
    else:
        click.echo(f"{sign('rocket')} Started session: {spec.session_id}")
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
    from sessionrun.cli.preview import task_argv
    from sessionrun.cli.render import escape_line

    for task in spec.tasks:
        argv = shlex.join(task_argv(spec, task))
        click.echo(escape_line(f"task {task.id}: {argv} (in {task.cwd or spec.cwd})"), err=True)


def read_input(file: str | None, limit: int) -> tuple[str, bytes]:
    """The input's name and bytes, at most one byte over `limit`.

    Raises:
        InputError: no such file, or nothing to read.
    """
    if file is None and sys.stdin.isatty():
        raise InputError("no input: give a FILE, or pipe prompts to standard input (see: sessionrun --help)")
    try:
        if file is None or file == "-":
            return "stdin", sys.stdin.buffer.read(limit + 1)
        with open(file, "rb") as stream:
            return file, stream.read(limit + 1)
    except FileNotFoundError:
        what = "file" if "." in str(file) or "/" in str(file) else "file or verb"
        raise InputError(f"{file}: no such {what}") from None
    except OSError as error:
        raise InputError(f"{file or 'stdin'}: {error.strerror}") from error
