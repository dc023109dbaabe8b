"""`run`: read the input, settle it into a spec, create the session, detach, say its id; or show what would run.

Other verbs that start a session share the options made of the table of settings, the preview and the start.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from sessionrun.cli.help import RunCommand, print_all
from sessionrun.cli.interrupts import EXIT_INTERRUPTED, ignore, was_pressed
from sessionrun.cli.options import (
    Answer,
    Decorator,
    Moment,
    Parsed,
    add_options,
    flag,
    json_option,
    quiet_option,
    ready_option,
    results_dir_option,
    sync_option,
    valued,
)
from sessionrun.cli.render import escape_line, hint, is_json, local_time, print_json, sign, telling, warn
from sessionrun.client.lookup import resolve_results_dir
from sessionrun.input.rows import SETTINGS
from sessionrun.input.settings import Setting
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.spec import SLOT, SessionSpec
from sessionrun.model.wording import clip
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.client.planning.plan import Planned
    from sessionrun.model.events import TasksAdded


# --- what is said ---


def options_of(rows: Iterable[Setting], *, hidden: bool = False) -> Decorator:
    options = []
    for row in rows:
        if row.option is None:
            continue
        spellings = [f" {word}" if word.startswith("/") else word for word in (*row.shown, *row.also)]
        form: dict[str, Any] = {"is_flag": True, "default": None}
        if row.metavar:
            choices = row.kind.schema.get("enum")
            word = click.Choice(choices) if choices else Parsed(row.name, row.read_word)
            word = Moment() if row.name == "starts_at" else word
            form = {"type": word, "multiple": bool(row.many), "metavar": row.metavar}
        options.append(click.option(*spellings, row.name, hidden=hidden, help=row.help, **form))
    return add_options(*options)


def take_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take what was said of settings out of the parameters of a command: a value for each, as a file has it."""
    given = {}
    for row in SETTINGS:
        if row.option is not None:
            value = options.pop(row.name, None)
            given[row.name] = dict(value or ()) if row.many == "pairs" else value
    return given


# --- the start ---


class Launch(NamedTuple):
    """What a command line says about how to start a session, not of what: each is the option of this name."""

    results_dir: Path | None
    quiet: bool = False
    verbose: bool = False
    sync: bool = False
    ready: bool = True
    """Whether agents that can say so are asked if they are ready."""
    dry_run: bool = False
    """Whether only to show what would run."""
    held: bool = False
    """Whether no task starts until the session is released."""
    leaves_held: bool = False
    """Whether to follow no further where only held tasks are left."""
    beside: Mapping[str, Any] | None = None
    """What `--json` prints; the record of the start is its key `dispatch`.  None: that record alone."""

    def print_started(self, record: Mapping[str, Any]) -> None:
        print_json(record if self.beside is None else {**self.beside, "dispatch": record})


def start_session(spec: SessionSpec, how: Launch) -> int:
    """Create a session, start it, say its id or follow it; the exit code.

    Raises:
        InputError: an agent is not signed in or not ready; nothing was created.
    """
    from sessionrun.client.launch import launch

    results_dir = resolve_results_dir(how.results_dir)
    shown = SessionDir(results_dir / f"session-{spec.session_id}")
    if how.verbose:
        from sessionrun.client.planning.preview import task_argv
        from sessionrun.model.repositories import has_worktree

        for task in spec.tasks:
            place = "its worktree" if has_worktree(task) else task.cwd or spec.cwd
            hint(escape_line(f"task {task.id}: {shlex.join(task_argv(spec, task))} (in {place})"))
    try:
        session = launch(spec, results_dir, ready=how.ready, held=how.held)
        if was_pressed():
            raise KeyboardInterrupt
        if how.sync:
            from sessionrun.cli.wait import follow_run

            return follow_run(session, quiet=how.quiet, leaves_held=how.leaves_held)
        with telling(f"session {spec.session_id} was started and runs"):
            _tell_start(spec, shown, how)
        ignore()  # what was told to run runs on: no exit code may say that it was cancelled
        return 0
    except KeyboardInterrupt:
        from sessionrun.client.ask import cancel

        if not shown.spec_path.exists():
            return EXIT_INTERRUPTED
        with suppress(BrokenPipeError):
            hint("\ncancelling ...")
        with suppress(SessionrunError, OSError):
            cancel(shown, timeout_s=None)
        return EXIT_INTERRUPTED


def _tell_start(spec: SessionSpec, session: SessionDir, how: Launch) -> None:
    if is_json() and how.quiet:
        print_json({"session_id": spec.session_id})
    elif how.quiet:
        click.echo(spec.session_id)
    elif is_json():
        how.print_started(
            {
                "session_id": spec.session_id,
                "results_dir": str(session.path.absolute()),
                "agent": spec.agent,
                "dialect": spec.dialect,
                "name": spec.name,
                "labels": dict(spec.labels),
                "total": len(spec.tasks),
                "max_parallel": spec.resources.get(SLOT),
            }
        )
    else:
        name = f" ({escape_line(spec.name)})" if spec.name else ""
        click.echo(f"{sign('rocket')} Started session: {spec.session_id}{name}")
        click.echo(f"{sign('folder')} Results directory: {session.path}")
        click.echo("\nUse these commands to monitor progress:")
        click.echo(f"  sessionrun --status {spec.session_id}")
        click.echo(f"  sessionrun --results {spec.session_id}")


PROMPT_LINES: Final = 3
PROMPT_WIDTH: Final = 70
"""How much of a prompt is shown without --verbose."""


def show_preview(planned: Planned, how: Launch) -> int:
    """Show the tasks in the order in which they become ready, with all of their prompts if `verbose`."""
    from sessionrun.client.planning.preview import describe_plan

    record = {**describe_plan(planned), "held": how.held}
    return Answer(record, _tell_plan(record, verbose=how.verbose)).print()


def _tell_plan(record: Mapping[str, Any], *, verbose: bool) -> Iterator[str]:
    parallel, land, base = record["max_parallel"], record["land"], record["base_branch"]
    gates = " and ".join(f"`{gate}`" for gate in land["gates"]) if land else ""
    facts = {
        "Format": f"{record['dialect']} ({record['dialect_reason']})",
        "Agent": f"{record['agent']} ({record['agent_reason']})",
        "Tasks": f"{record['total']}, {f'at most {parallel}' if parallel else 'all'} at once",
        "Starts": record["starts_at"] and f"not before {local_time(record['starts_at'])}",
        "Held": record["held"] and "until `sessionrun release`",
        "Worktrees": record["worktree_dir"] and f"in {record['worktree_dir']}",
        "Base": record["worktree_dir"] and f"{base} at {record['base_commit'][:12]}",
        "Lands": land and f"on {land['target']}{f', if they pass {gates}' if gates else ''}",
    }
    yield from _tell_facts("", facts)
    for task in record["tasks"]:
        yield f"\n  Task {task['num']} (ID: {task['id']}): {escape_line(task['title'])}"
        yield from _tell_prompts(task["prompts"], verbose=verbose)
        begins = None
        if task["needs"] and task["begins_at"] is not None:
            needs = " and ".join(task["begins_at"])
            begins = f"with the work of {needs}" if needs else "at the session's base, without that of its needs"
        facts = {
            "argv": shlex.join(task["argv"]),
            "cwd": task["cwd"],
            "branch": task["branch"],
            "sandbox": task["sandbox"] and f"{task['sandbox']}, network {task['network']}",
            "needs": ", ".join(task["needs"]),
            "begins": begins,
        }
        yield from _tell_facts("    ", facts)
    if len(record["waves"]) > 1:
        yield "\n  Waves (a task starts when its own needs are met, not when a wave is over):"
        yield from (f"    {number}: {', '.join(wave)}" for number, wave in enumerate(record["waves"], 1))
        path = record["critical_path"]
        yield f"  Critical path: {len(path)} tasks: {' -> '.join(path)}"


def _tell_facts(indent: str, facts: Mapping[str, Any]) -> Iterator[str]:
    return (f"{indent}{name}: {escape_line(text)}" for name, text in facts.items() if text)


def _tell_prompts(prompts: Sequence[str], *, verbose: bool) -> Iterator[str]:
    """What the agent is asked, unless it is one line, which the title shows; without `verbose` its first lines."""
    for prompt in prompts:
        lines = [line for line in prompt.splitlines() if line.strip() or verbose]
        shown = lines if verbose else [clip(line, PROMPT_WIDTH) for line in lines[:PROMPT_LINES]]
        if verbose or len(prompts) > 1 or len(lines) > 1 or len(prompt) > PROMPT_WIDTH:
            yield "    prompt:"
            yield from (f"      {escape_line(line)}" for line in shown)
            if len(lines) > len(shown):
                yield f"      ... {len(lines) - PROMPT_LINES} lines more (--verbose shows all)"


@click.command("run", cls=RunCommand)
@click.argument("file", required=False, metavar="[FILE]")
@options_of(SETTINGS)
@valued("--into", "ID", "Add the tasks to session ID, which runs, instead.")
@flag("--hold held", "Start no task until `release`.")
@ready_option
@sync_option
@flag("--dry-run", "Show what would run; create nothing.")
@flag("--verbose", "Print each task's arguments and directory; with --dry-run all of its prompt.")
@quiet_option
@json_option
@results_dir_option
@flag("--help-all", "Show all options, by topic.", is_eager=True, expose_value=False, callback=print_all)
def command(file: str | None, into: str | None, **options: Any) -> int:
    """Start a session of the tasks in FILE, or on standard input.

    Prints the session id and returns at once; the tasks run in the background.
    """
    from sessionrun.client.planning.plan import Nothing, plan

    given = take_options(options)
    how = Launch(**options)
    session, spec = (None, None) if into is None else _open_joined(into, how)
    planned = plan(file, given, preview=how.dry_run, into=spec)
    for warning in planned.warnings:
        warn(warning)
    if isinstance(planned, Nothing):
        from sessionrun.client.reading.job_summary import count_jobs

        return tell_nothing({"summary": count_jobs([])}, "No jobs to process", how, err=False)
    if planned.skipped:
        click.echo(
            f"skipped: {planned.skipped} that {planned.skipped_for} before (--rerun runs them again)", err=True
        )
    if planned.spec.feed is not None:
        return start_fed(planned, how)
    if not planned.spec.tasks:
        words = f"nothing to do: all runs {planned.skipped_for} before"
        return tell_nothing({"total": 0, "skipped": planned.skipped}, words, how)
    if how.dry_run:
        from sessionrun.client.launch import tell_signed_out

        for warning in tell_signed_out(planned.spec) if how.ready else ():
            warn(warning)
        return show_preview(planned, how)
    if not how.quiet:
        from sessionrun.walls.steps import may_have_walls

        hint(f"agent: {escape_line(planned.spec.agent)} ({planned.agent_reason})")
        if may_have_walls(planned.spec):
            hint("walls: none (--sandbox project builds them: bubblewrap is installed)")
    if session is not None and planned.addition is not None:
        return _add(session, planned.spec, planned.addition, how)
    return start_session(planned.spec, how)


def _open_joined(session_id: str, how: Launch) -> tuple[SessionDir, SessionSpec]:
    """Find the session to which tasks are to be added, with its spec as it is now.

    Raises:
        InputError: it has ended, or is to be held.
    """
    from sessionrun.client.ask import load_open
    from sessionrun.client.lookup import open_session
    from sessionrun.client.planning.additions import describe_whole

    session = open_session(how.results_dir, session_id)
    spec = load_open(session)
    if how.held:
        raise InputError(describe_whole("--hold"))
    return session, spec


def _add(session: SessionDir, planned: SessionSpec, addition: TasksAdded, how: Launch) -> int:
    from sessionrun.cli.control import ask_each
    from sessionrun.client.ask import add
    from sessionrun.client.launch import check_start
    from sessionrun.client.lookup import Chosen

    check_start(planned, ready=how.ready)
    chosen = Chosen([session], (), False)
    return ask_each(chosen, "add", lambda *_: add(session, addition), waits=True, quiet=how.quiet, sync=how.sync)


def tell_nothing(record: Mapping[str, Any], words: str, how: Launch, *, err: bool = True) -> int:
    """Say that no session was started, and why; the exit code."""
    if is_json():
        how.print_started({"session_id": None, **record})
    else:
        click.echo(words, err=err)
    return 0


# --- tasks of a queue ---


def start_fed(planned: Planned, how: Launch, listed: Path | None = None, file: Path | None = None) -> int:
    """Start a session that takes its tasks from a queue, if that has any; see `dispatch.work`."""
    from sessionrun.queue.dispatch import foresee, prepare

    spec = planned.spec
    assert spec.feed is not None
    prepared = prepare(spec, listed, results_dir=how.results_dir, preview=how.dry_run, ready=how.ready)
    starts = spec.feed.watch or prepared.ready or how.dry_run
    if starts and file is not None and not how.quiet:
        click.echo(f"configuration: {escape_line(str(file))}", err=True)
    for line in () if how.quiet else prepared.findings:
        click.echo(escape_line(line), err=True)
    if not starts:
        left, are = prepared.left, "is" if prepared.left == 1 else "are"
        rest = f"ready; {left} {are} open (sessionrun queue list)" if left else "open (sessionrun queue add TITLE)"
        return tell_nothing({"total": 0, "open": left}, f"nothing to do: no task is {rest}", how)
    if how.dry_run:
        return show_preview(foresee(planned, prepared), how)
    return start_session(spec, how._replace(ready=False))  # which were asked when it was prepared
