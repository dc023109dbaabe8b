"""`queue`: the tasks that wait in a repository to be worked on, in `task_queue.json` or in Beads."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sessionrun.cli import render
from sessionrun.cli.backend import backend_option, queue_options
from sessionrun.cli.options import Count, json_option, results_dir_option
from sessionrun.cli.render import WIDTH, escape, escape_line, print_json, print_table, terminal_width
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.wording import clip, tell_span
from sessionrun.queue.open import (
    MAX_SUBTASKS,
    MAX_TASKS,
    Changes,
    Draft,
    Feed,
    QueueTask,
    describe_task,
    import_list,
    ingest,
    load_tasks,
    open_queue,
    read_text,
    take_back,
)

Record = dict[str, Any]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_TITLE: Final = 26
"""Columns for a title at least."""


def depends_option(text: str) -> Callable[[_Command], _Command]:
    """`--depends`, repeatable."""
    return click.option("--depends", "depends", multiple=True, metavar="ID", help=text)


def into_option(what: str) -> Callable[[_Command], _Command]:
    """`--group` of verbs that put something into a group."""
    return click.option(
        "--group", metavar="GROUP", help=f"Put {what} into this group, which is made if there is none."
    )


body_option = click.option("--body", metavar="FILE", help="What to do in full: a file, or - for standard input.")
priority_option = click.option(
    "--priority", type=int, metavar="N", help="Bigger goes first; below 0 goes last.  [default: 0]"
)


WORK: Final = "work"
"""The verb in a module of its own, which is imported when it is used: the others have to begin fast."""


class Verbs(click.Group):
    """Lists its verbs in the order in which they are defined; the default verb is `show`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group.list_commands`."""
        names = [name for name in self.commands if name != WORK]
        names.insert(names.index("split"), WORK)
        return names

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group.get_command`."""
        if cmd_name == WORK and WORK not in self.commands:
            self.add_command(import_module("sessionrun.cli.dispatch").command)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`."""
        is_show = not args or (args[0].startswith("-") and args[0] not in self.get_help_option_names(ctx))
        return super().parse_args(ctx, ["show", *args] if is_show else args)


@click.group("queue", cls=Verbs)
def command() -> None:
    """Keep the tasks that wait to be worked on, in this repository.

    They are in task_queue.json in the top of the main checkout, or in Beads if it is in use there.  `queue` alone
    is `queue show`: what is at work.
    """


@command.command("add")
@click.argument("title")
@body_option
@depends_option("A task that has to be closed first; repeatable.")
@priority_option
@into_option("it")
@queue_options
def add(
    title: str,
    body: str | None,
    depends: tuple[str, ...],
    priority: int | None,
    group: str | None,
    backend: str | None,
    as_json: bool,
) -> None:
    """Append a task and print its id.

    The id alone goes to standard output.  A group is a task, too: no worker gets it, and it closes when all tasks
    in it are closed.
    """
    draft = Draft(title, "" if body is None else read_text(body), priority or 0, depends, group or None)
    (task,) = open_queue(backend=backend).create([draft])
    assert task is not None
    render.show(describe_task(task), [task.id], as_json=as_json)


@command.command("list")
@click.option("--ready", is_flag=True, help="Only tasks that can be worked on now, in the order they are taken.")
@click.option("--all", "everything", is_flag=True, help="Closed tasks, too.")
@click.option("--group", metavar="GROUP", help="Only what is in this group.")
@queue_options
def list_tasks(ready: bool, everything: bool, group: str | None, backend: str | None, as_json: bool) -> None:
    """List the tasks that are not closed."""
    if ready and everything:
        raise InputError("queue list: --ready and --all exclude each other")
    feed = open_queue(backend=backend, reads=True)
    tasks = load_tasks(feed, ready=ready, closed=everything, group=group)
    records = [describe_task(task) for task in tasks]
    if as_json:
        print_json(_describe_queue(feed, records))
    elif records:
        _print_tasks(records)
    else:
        click.echo("No task is ready." if ready else "No task is open.")


@command.command("show")
@click.argument("task_id", metavar="[ID]", required=False)
@queue_options
@results_dir_option
def show(task_id: str | None, backend: str | None, as_json: bool, results_dir: Path | None) -> None:
    """Show task ID with its text; without ID what is at work, and what needs you."""
    feed = open_queue(backend=backend, reads=True)
    if task_id is None:
        tasks = load_tasks(feed, closed=True)
        shown = [describe_task(task) for task in tasks if task.status != "closed"]
        render.show(_describe_queue(feed, shown), _work_lines(feed, tasks, results_dir), as_json=as_json)
        return
    record = describe_task(feed.show(task_id))
    lines = [f"{name}: {text}" for name, text in _iterate_lines(record)]
    body = ["\n" + escape(record["body"].rstrip("\n"))] if record["body"] else []
    render.show(record, [*map(escape_line, lines), *body], as_json=as_json)


def _describe_queue(feed: Feed, records: list[Record]) -> Record:
    return {"backend": feed.name, "place": str(feed.place), "tasks": records}


def _work_lines(feed: Feed, tasks: Sequence[QueueTask], results_dir: Path | None) -> Iterator[str]:
    """How many tasks stand how, what was done today, and each attempt that runs or needs a person."""
    from sessionrun.cli.standing import task_lines
    from sessionrun.client.reading.money import amount
    from sessionrun.queue.open import find_work

    now = time.time()
    found = find_work(feed, tasks, results_dir, datetime.now().replace(hour=0, minute=0, second=0).timestamp())
    counts = {
        "at work": sum(task.status == "claimed" for task in tasks),
        "ready": sum(task.is_ready for task in tasks),
        "waiting for others": sum(task.status == "open" and bool(task.blocked_by) for task in tasks),
        "deferred": sum(task.status == "deferred" for task in tasks),
        "needing you": len(found.needing),
    }
    shown = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    yield escape_line(f"queue of {feed.place.parent.name}: {shown or 'no task is open'}")
    today = []
    if found.landed_at:
        today.append(f"{len(found.landed_at)} landed, the last {tell_span(now - max(found.landed_at))} ago")
    if found.cost_usd is not None:
        today.append(f"{amount(found.cost_usd)} spent")
    yield from [f"today: {', '.join(today)}"] if today else []
    attempts = [*found.working, *found.needing]
    yield from task_lines({"tasks": attempts}, attempts, now, terminal_width(), every=True)


@command.command("edit")
@click.argument("task_id", metavar="ID")
@click.option("--title", metavar="TEXT", help="Another title.")
@body_option
@depends_option("What has to be closed first, in place of what it was; repeatable.")
@click.option("--no-depends", is_flag=True, help="Let it wait for no other task.")
@priority_option
@into_option("it")
@click.option("--no-group", is_flag=True, help="Take it out of its group.")
@queue_options
def edit(
    task_id: str,
    title: str | None,
    body: str | None,
    depends: tuple[str, ...],
    no_depends: bool,
    priority: int | None,
    group: str | None,
    no_group: bool,
    backend: str | None,
    as_json: bool,
) -> None:
    """Change task ID."""
    if (depends and no_depends) or (group and no_group):
        raise InputError("queue edit: an option and its --no- form exclude each other")
    changes = Changes(
        title,
        None if body is None else read_text(body),
        priority,
        depends if depends or no_depends else None,
        "" if no_group else group or None,
    )
    if changes == Changes():
        raise InputError("queue edit: say what to change (sessionrun queue edit --help)")
    _tell(open_queue(backend=backend).edit(task_id, changes), "changed", as_json=as_json)


@command.command("remove")
@click.argument("task_id", metavar="ID")
@queue_options
def remove(task_id: str, backend: str | None, as_json: bool) -> None:
    """Take task ID out of the queue.

    What other tasks depend on, what is a group of tasks, and what a worker has cannot be removed.
    """
    _tell(open_queue(backend=backend).remove(task_id), "removed", as_json=as_json)


@command.command("close")
@click.argument("task_id", metavar="ID")
@click.option("--reason", metavar="TEXT", help="Kept with the task.")
@queue_options
def close(task_id: str, reason: str | None, backend: str | None, as_json: bool) -> None:
    """Mark task ID as done.

    Its group closes with the last open task in it, and so on.
    """
    _tell(open_queue(backend=backend).close(task_id, reason=reason), "closed", as_json=as_json)


@command.command("reopen")
@click.argument("task_id", metavar="[ID]", required=False)
@click.option("--gone", is_flag=True, help="All tasks whose worker's session has no process left.")
@click.option("--reason", metavar="TEXT", help="Kept with the task.")
@queue_options
@results_dir_option
def reopen(
    task_id: str | None,
    gone: bool,
    reason: str | None,
    backend: str | None,
    as_json: bool,
    results_dir: Path | None,
) -> None:
    """Make task ID open again.

    It was closed, or a worker has it: that worker's claim ends.
    """
    if (task_id is None) != gone or (gone and reason):
        raise InputError("queue reopen: give an ID, or --gone alone")
    feed = open_queue(backend=backend)
    if not gone:
        _tell(feed.reopen(str(task_id), reason=reason), "open again", as_json=as_json)
        return
    tasks = take_back(feed, results_dir)
    words = {"closed": "closed: its work has landed"}
    lines = [escape_line(f"{task.id}: {words.get(task.status, 'open again')}") for task in tasks]
    record = {"tasks": [describe_task(task) for task in tasks]}
    render.show(record, lines or ["No worker is gone."], as_json=as_json)


@command.command("import")
@click.argument("file", metavar="FILE")
@into_option("the tasks")
@queue_options
def import_tasks(file: str, group: str | None, backend: str | None, as_json: bool) -> None:
    """Append the tasks of a Markdown list; - is standard input.

    Lines `bd create "TITLE"` in code blocks are the tasks, if there are any; else the entries of the list, without
    those that are ticked.  A title that the queue has already is left out.
    """
    added, known = import_list(open_queue(backend=backend), file, group=group or None)
    record = {"added": [describe_task(task) for task in added], "known": known}
    render.show(record, [escape_line(f"{task.id}: {task.title}") for task in added], as_json=as_json)
    if not as_json:
        click.echo(f"{len(added)} added, {len(known)} in the queue already", err=True)


@command.command("split")
@click.argument("goal", metavar="[GOAL]", required=False)
@click.option("--id", "task_id", metavar="ID", help="Split this task of the queue: it becomes the group.")
@click.option("--bead", "task_id", metavar="ID", hidden=True, help="The same as --id.")
@click.option(
    "--max-subtasks",
    "maximum",
    type=Count(2),
    default=MAX_SUBTASKS,
    metavar="N",
    help=f"Make no more than N tasks.  [default: {MAX_SUBTASKS}]",
)
@click.option("--agent", metavar="NAME", help="Which agent is asked.  [default: as for run]")
@click.option("--model", metavar="NAME", help="Which model is asked.")
@click.option("--no-llm", "by_rule", is_flag=True, help="Ask no agent: split by rule.")
@click.option("--dry-run", is_flag=True, help="Show the tasks; leave the queue as it is.")
@click.option("--dispatch", "dispatch", is_flag=True, help="Then start `queue work --group` with the new group.")
@backend_option
@json_option
@results_dir_option
def split_goal(dispatch: bool, as_json: bool, **options: Any) -> int:
    """Split GOAL into small tasks that agents can do side by side.

    An agent is asked for them, in a session; a second time if the answer is bad.  Without an agent the goal is
    split by rule.  The tasks come into the queue as a group, which closes when they are closed.
    """
    from sessionrun.queue.split import split

    if options["by_rule"] and (options["agent"] or options["model"]):
        raise InputError("queue split: --no-llm excludes --agent and --model")
    found = split(**options, on_start=lambda session: click.echo(f"session: {session.session_id}", err=True))
    group = None if found.group is None else describe_task(found.group)
    record = {**found._asdict(), "group": group, "tasks": [describe_task(task) for task in found.tasks]}
    if not as_json:
        if found.group is not None:
            click.echo(escape_line(f"{found.group.id}: {found.group.title}"))
        for task in found.tasks:
            click.echo("  " + escape_line(f"{task.id}: {task.title}"))
        for title in found.titles if found.group is None else ():
            click.echo(escape_line(f"would add: {title}"))
    if dispatch and found.group is not None:
        return _start_work(found.group.id, options["backend"], options["results_dir"], record if as_json else None)
    if as_json:
        print_json(record)
    return 0


def _start_work(group: str, backend: str | None, results_dir: Path | None, beside: Record | None) -> int:
    """Do what `queue work` does for the new group; its exit code."""
    from sessionrun.cli.dispatch import work
    from sessionrun.cli.start import Launch

    words = ["sessionrun", "queue", "work", "--group", group, *(["--backend", backend] if backend else [])]
    options = {"feed": {"group": group} | ({"backend": backend} if backend else {})}
    how = Launch(
        results_dir, beside is not None, quiet=False, verbose=False, sync=False, ready=False, beside=beside
    )
    try:
        return work(options, how)
    except SessionrunError:
        click.echo(escape_line(f"the tasks are in the queue; to start them: {shlex.join(words)}"), err=True)
        raise


@command.command("take")
@click.argument("files", metavar="[FILE...]", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--max",
    "maximum",
    type=Count(),
    default=MAX_TASKS,
    metavar="N",
    help=f"Add no more than N tasks; what is above waits for the next call.  [default: {MAX_TASKS}]",
)
@into_option("them")
@click.option("--dry-run", is_flag=True, help="Show what would be added; change nothing.")
@backend_option
@json_option
def take(
    files: tuple[Path, ...], maximum: int, group: str | None, dry_run: bool, backend: str | None, as_json: bool
) -> None:
    """Take follow-ups into the queue, and empty their files.

    Each line of suggested_tasks.txt is a task.  Taken are the file of the main checkout, and those of tasks of
    the queue that have ended.  A line that an open task says already is left out.
    """
    found = ingest(files, maximum=maximum, group=group or None, backend=backend, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, **found._asdict()})
        return
    for task in found.added:
        head = "would add" if dry_run else task["id"]
        click.echo(escape_line(f"{head}: {task['title']}"))
    for one in found.kept:
        lines = f"{one['lines']} line{'s' * (one['lines'] != 1)}"
        click.echo(escape_line(f"kept {lines} of {one['source']}: --max is {maximum}"), err=True)
    verb = "would be added" if dry_run else "added"
    click.echo(f"{len(found.added)} {verb}, {len(found.known)} in the queue already", err=True)


# --- how a task is shown ---


def _print_tasks(records: list[Record]) -> None:
    heads = ("TASK", "STATUS", "PRIORITY", "GROUP", "TITLE")
    rows = [(r["id"], _status_word(r), r["priority"], r["group"] or "-", r["title"]) for r in records]
    widths = [max(len(escape_line(str(row[place]))) for row in [heads, *rows]) for place in range(len(heads) - 1)]
    left = max(_TITLE, WIDTH - sum(widths) - 2 * len(widths))
    print_table(heads, [(*row[:-1], clip(escape_line(row[-1]), left)) for row in rows])


def _status_word(record: Record) -> str:
    """How a task stands, for people."""
    if record["status"] == "claimed":
        session = f" of {record['session_id'][:8]}" if record["session_id"] else ""
        return f"claimed ({record['worker'] or 'not by sessionrun'}{session})"
    if record["status"] == "deferred":
        return f"deferred ({record['backend_status']})"
    if record["status"] == "closed":
        return "closed"
    return "group" if record["is_group"] else "blocked" if record["blocked_by"] else "ready"


def _iterate_lines(record: Record) -> list[tuple[str, str]]:
    claimed = f"{record['worker']} of session {record['session_id']}" if record["worker"] else ""
    lines = [
        (record["id"], record["title"]),
        ("Status", _status_word(record)),
        ("Priority", str(record["priority"])),
        ("Group", record["group"] or ""),
        ("Depends on", ", ".join(record["depends"])),
        ("Waits for", ", ".join(record["blocked_by"])),
        ("Claimed by", claimed),
        ("Claimed at", record["claimed_at"] or ""),
        ("Reason", record["reason"] or ""),
    ]
    return [(name, text) for name, text in lines if text]


def _tell(task: QueueTask | None, word: str, *, as_json: bool) -> None:
    """Say what was done with a task; None is what only a worker gets."""
    assert task is not None
    render.show(describe_task(task), [escape_line(f"{task.id}: {word}")], as_json=as_json)
