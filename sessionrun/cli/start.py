"""What verbs that start a session share: options made of the table of settings, the preview, the start itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from sessionrun.cli.options import Decorator, Moment, add_options
from sessionrun.cli.render import escape_line, local_time, print_json, sign, telling
from sessionrun.client.lookup import resolve_results_dir
from sessionrun.input.kinds import Misfit
from sessionrun.input.rows import BY_NAME
from sessionrun.input.settings import Setting
from sessionrun.model.spec import SLOT, SessionSpec
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.client.planning.plan import Planned

# --- what is said ---


class _Word(click.ParamType[Any]):
    """A word of the command line, as the value that a file would have; it has to fit its setting."""

    def __init__(self, row: Setting) -> None:
        self.name = row.name
        self._row = row

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._row.read_word(str(value))
        except Misfit as misfit:
            problem = ": ".join(str(part) for part in (*misfit.path, misfit.problem))
            raise click.BadParameter(problem, ctx, param, f"'{self._row.spell()}'") from None


def options_of(rows: Iterable[Setting], *, hidden: bool = False) -> Decorator:
    """The options of some settings, in their order, for a command of Click."""
    return add_options(*(_make_option(row, hidden=hidden) for row in rows if row.option is not None))


def _make_option(row: Setting, *, hidden: bool) -> Decorator:
    spellings = [f" {word}" if word.startswith("/") else word for word in (*row.shown, *row.also)]
    if not row.metavar:
        return click.option(*spellings, row.name, is_flag=True, default=None, hidden=hidden, help=row.help)
    choices = row.kind.schema.get("enum")
    kind = Moment() if row.name == "starts_at" else click.Choice(choices) if choices else _Word(row)
    return click.option(
        *spellings,
        row.name,
        type=kind,
        multiple=bool(row.many),
        metavar=row.metavar,
        hidden=hidden,
        help=row.help,
    )


def take_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take what was said of settings out of the parameters of a command: a value for each, as a file has it."""
    given = {name: options.pop(name) for name in BY_NAME if name in options}
    return {name: _gather(BY_NAME[name], value) for name, value in given.items() if value not in (None, ())}


def _gather(row: Setting, value: Any) -> Any:
    return dict(value) if row.many == "pairs" else list(value) if row.many else value


# --- the start ---


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


def start_session(spec: SessionSpec, how: Launch) -> int:
    """Create a session, start it, say its id or follow it; the exit code.

    Raises:
        InputError: an agent is not signed in or not ready; nothing was created.
    """
    from sessionrun.cli.interrupts import ignore, was_pressed
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
    from sessionrun.client.planning.preview import task_argv
    from sessionrun.model.repositories import has_worktree

    for task in spec.tasks:
        argv = shlex.join(task_argv(spec, task))
        place = "its worktree" if has_worktree(task) else task.cwd or spec.cwd
        click.echo(escape_line(f"task {task.id}: {argv} (in {place})"), err=True)


PROMPT_LINES: Final = 3
PROMPT_WIDTH: Final = 70
"""How much of a prompt is shown without --verbose."""


def print_preview(planned: Planned, *, as_json: bool, verbose: bool = False, held: bool = False) -> None:
    """Print the tasks in the order in which they become ready, with all of their prompts if `verbose`.

    `held` is whether all of them are to wait until they are released.
    """
    from sessionrun.client.planning.preview import describe_plan

    record = {**describe_plan(planned), "held": held}
    if as_json:
        print_json(record)
        return
    click.echo(f"Format: {record['dialect']} ({record['dialect_reason']})")
    click.echo(f"Agent: {record['agent']} ({record['agent_reason']})")
    parallel = record["max_parallel"]
    click.echo(f"Tasks: {record['total']}, {f'at most {parallel}' if parallel else 'all'} at once")
    if record["starts_at"]:
        click.echo(f"Starts: not before {local_time(record['starts_at'])}")
    if held:
        click.echo("Held: until `sessionrun release`")
    if record["worktree_dir"]:
        click.echo(f"Worktrees: in {escape_line(record['worktree_dir'])}")
        click.echo(f"Base: {escape_line(record['base_branch'])} at {record['base_commit'][:12]}")
    if record["land"]:
        gates = [f"`{escape_line(gate)}`" for gate in record["land"]["gates"]]
        after = f", if they pass {' and '.join(gates)}" if gates else ""
        click.echo(f"Lands: on {escape_line(record['land']['target'])}{after}")
    for task in record["tasks"]:
        click.echo(f"\n  Task {task['num']} (ID: {task['id']}): {escape_line(task['title'])}")
        _print_prompts(task["prompts"], verbose=verbose)
        click.echo(f"    argv: {escape_line(shlex.join(task['argv']))}")
        click.echo(f"    cwd: {escape_line(task['cwd'])}")
        if task["branch"]:
            click.echo(f"    branch: {escape_line(task['branch'])}")
        if task["sandbox"]:
            click.echo(f"    sandbox: {task['sandbox']}, network {task['network']}")
        if task["needs"]:
            click.echo(f"    needs: {', '.join(task['needs'])}")
        if task["needs"] and task["begins_at"] is not None:
            click.echo(f"    begins: {_describe_beginning(task['begins_at'])}")
    if len(record["waves"]) > 1:
        _print_graph(record)


def _print_prompts(prompts: Sequence[str], *, verbose: bool) -> None:
    """What the agent is asked, unless it is one line, which the title shows; without `verbose` its first lines."""
    for prompt in prompts:
        lines = [line for line in prompt.splitlines() if line.strip() or verbose]
        whole = verbose or len(lines) <= PROMPT_LINES
        if verbose or len(prompts) > 1 or len(lines) > 1 or len(prompt) > PROMPT_WIDTH:
            click.echo("    prompt:")
            for line in lines if whole else lines[:PROMPT_LINES]:
                cut = line if verbose or len(line) <= PROMPT_WIDTH else line[: PROMPT_WIDTH - 3] + "..."
                click.echo(f"      {escape_line(cut)}")
            if not whole:
                click.echo(f"      ... {len(lines) - PROMPT_LINES} lines more (--verbose shows all)")


def _describe_beginning(needs: Sequence[str]) -> str:
    """Where the worktree of a task with needs begins, in words."""
    if not needs:
        return "at the session's base, without the work of its needs"
    if len(needs) == 1:
        return f"with the work of {needs[0]}"
    return f"with the work of {', '.join(needs[:-1])} and {needs[-1]}, merged"


def _print_graph(record: dict[str, Any]) -> None:
    click.echo("\n  Waves (a task starts when its own needs are met, not when a wave is over):")
    for number, wave in enumerate(record["waves"], 1):
        click.echo(f"    {number}: {', '.join(wave)}")
    path = record["critical_path"]
    click.echo(f"  Critical path: {len(path)} tasks: {' -> '.join(path)}")
