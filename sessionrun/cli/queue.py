"""`queue`: the tasks that wait in a repository to be worked on, in `task_queue.json` or in Beads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import (
    Answer,
    Count,
    Decorator,
    flag,
    json_option,
    results_dir_option,
    valued,
    verb,
)
from sessionrun.cli.render import WIDTH, escape, escape_line, table_lines, terminal_width
from sessionrun.model.errors import InputError
from sessionrun.model.wording import clip, tell_span
from sessionrun.queue.open import (
    BACKENDS,
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
)

Record = dict[str, Any]
Open = Callable[[], Feed]


def _depends_option(text: str) -> Decorator:
    return valued("--depends depends", "ID", text, multiple=True)


def _into_option(what: str) -> Decorator:
    return valued("--group", "GROUP", f"Put {what} into this group, which is made if there is none.")


backend_option = click.option(
    "--backend",
    type=click.Choice([*BACKENDS]),
    help="Where the queue is kept.  [default: the first of these that the repository has, else file]",
)
_body_option = valued("--body", "FILE", "What to do in full: a file, or - for standard input.")
_priority_option = valued("--priority", "N", "Bigger goes first; below 0 goes last.  [default: 0]", int)

_STARTING: Final = {"work": "command", "split": "split_goal"}
"""The verbs that start sessions, in a module of their own, imported when it is used: the others begin fast."""


class _Verbs(click.Group):
    """Lists its verbs in the order in which they are defined; the default verb is `show`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [name for name in self.commands if name not in _STARTING]
        return [*names[:-1], *_STARTING, names[-1]]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _STARTING and cmd_name not in self.commands:
            self.add_command(getattr(import_module("sessionrun.cli.dispatch"), _STARTING[cmd_name]))
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_show = not args or (args[0].startswith("-") and args[0] not in self.get_help_option_names(ctx))
        return super().parse_args(ctx, ["show", *args] if is_show else args)


@click.group("queue", cls=_Verbs)
def command() -> None:
    """Keep the tasks that wait to be worked on, in this repository.

    They are in task_queue.json in the top of the main checkout, or in Beads if it is in use there.  `queue` alone
    is `queue show`: what is at work.
    """


def _queue_verb(
    name: str, *ends: Decorator, reads: bool = False
) -> Callable[[Callable[..., Answer]], click.Command]:
    """A verb that is given what opens the queue in the place of `--backend`."""

    def make(function: Callable[..., Answer]) -> click.Command:
        @wraps(function)
        def run(backend: str | None, **options: Any) -> Answer:
            return function(partial(open_queue, backend=backend, reads=reads), **options)

        return verb(name, json_option, backend_option, *ends, parent=command)(run)

    return make


def _answer(task: QueueTask | None, word: str) -> Answer:
    """What was done with a task; None is what only a worker gets."""
    assert task is not None
    return Answer(describe_task(task), [escape_line(f"{task.id}: {word}")])


def _read_body(file: str | None) -> str | None:
    from sessionrun.input.given import read_text  # which knows all settings: dear for verbs that only look

    return None if file is None else read_text(file, typed=True)


@_queue_verb("add")
@click.argument("title")
@_body_option
@_depends_option("A task that has to be closed first; repeatable.")
@_priority_option
@_into_option("it")
def add(
    queue: Open, title: str, body: str | None, depends: tuple[str, ...], priority: int | None, group: str | None
) -> Answer:
    """Append a task and print its id.

    The id alone goes to standard output.  A group is a task, too: no worker gets it, and it closes when all tasks
    in it are closed.
    """
    draft = Draft(title, _read_body(body) or "", priority or 0, depends, group or None)
    (task,) = queue().create([draft])
    assert task is not None
    return Answer(describe_task(task), [task.id])


@_queue_verb("list", reads=True)
@flag("--ready", "Only tasks that can be worked on now, in the order they are taken.")
@flag("--all everything", "Closed tasks, too.")
@valued("--group", "GROUP", "Only what is in this group.")
def list_tasks(queue: Open, ready: bool, everything: bool, group: str | None) -> Answer:
    """List the tasks that are not closed."""
    if ready and everything:
        raise InputError("queue list: --ready and --all exclude each other")
    feed = queue()
    records = [describe_task(task) for task in load_tasks(feed, ready=ready, closed=everything, group=group)]
    lines: Iterable[str] = ["No task is ready." if ready else "No task is open."]
    if records:
        heads = ("TASK", "STATUS", "PRIORITY", "GROUP", "TITLE")
        rows = [(r["id"], _status_word(r), r["priority"], r["group"] or "-", r["title"]) for r in records]
        *widths, _ = (
            max(len(escape_line(str(cell))) for cell in column) for column in zip(heads, *rows, strict=True)
        )
        left = max(26, WIDTH - sum(widths) - 2 * len(widths))  # columns for a title
        lines = table_lines(heads, [(*row[:-1], clip(escape_line(row[-1]), left)) for row in rows])
    return Answer(_describe_queue(feed, records), lines)


@_queue_verb("show", results_dir_option, reads=True)
@click.argument("task_id", metavar="[ID]", required=False)
def show(queue: Open, task_id: str | None, results_dir: Path | None) -> Answer:
    """Show task ID with its text; without ID what is at work, and what needs you."""
    feed = queue()
    if task_id is None:
        tasks = load_tasks(feed, closed=True)
        shown = [describe_task(task) for task in tasks if task.status != "closed"]
        return Answer(_describe_queue(feed, shown), _work_lines(feed, tasks, results_dir))
    record = describe_task(feed.show(task_id))
    claimed = f"{record['worker']} of session {record['session_id']}" if record["worker"] else ""
    facts = {
        record["id"]: record["title"],
        "Status": _status_word(record),
        "Priority": str(record["priority"]),
        "Group": record["group"],
        "Depends on": ", ".join(record["depends"]),
        "Waits for": ", ".join(record["blocked_by"]),
        "Claimed by": claimed,
        "Claimed at": record["claimed_at"],
        "Reason": record["reason"],
    }
    body = ["\n" + escape(record["body"].rstrip("\n"))] if record["body"] else []
    return Answer(record, [*(escape_line(f"{name}: {text}") for name, text in facts.items() if text), *body])


def _describe_queue(feed: Feed, records: list[Record]) -> Record:
    return {"backend": feed.name, "place": str(feed.place), "tasks": records}


def _work_lines(feed: Feed, tasks: Sequence[QueueTask], results_dir: Path | None) -> Iterator[str]:
    from sessionrun.cli.standing import task_lines
    from sessionrun.model.usage import amount
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


@_queue_verb("edit")
@click.argument("task_id", metavar="ID")
@valued("--title", "TEXT", "Another title.")
@_body_option
@_depends_option("What has to be closed first, in place of what it was; repeatable.")
@flag("--no-depends", "Let it wait for no other task.")
@_priority_option
@_into_option("it")
@flag("--no-group", "Take it out of its group.")
def edit(
    queue: Open,
    task_id: str,
    title: str | None,
    body: str | None,
    depends: tuple[str, ...],
    no_depends: bool,
    priority: int | None,
    group: str | None,
    no_group: bool,
) -> Answer:
    """Change task ID."""
    if (depends and no_depends) or (group and no_group):
        raise InputError("queue edit: an option and its --no- form exclude each other")
    changes = Changes(
        title,
        _read_body(body),
        priority,
        depends if depends or no_depends else None,
        "" if no_group else group or None,
    )
    if changes == Changes():
        raise InputError("queue edit: say what to change (sessionrun queue edit --help)")
    return _answer(queue().edit(task_id, changes), "changed")


@_queue_verb("remove")
@click.argument("task_id", metavar="ID")
def remove(queue: Open, task_id: str) -> Answer:
    """Take task ID out of the queue.

    What other tasks depend on, what is a group of tasks, and what a worker has cannot be removed.
    """
    return _answer(queue().remove(task_id), "removed")


@_queue_verb("close")
@click.argument("task_id", metavar="ID")
@valued("--reason", "TEXT", "Kept with the task.")
def close(queue: Open, task_id: str, reason: str | None) -> Answer:
    """Mark task ID as done.

    Its group closes with the last open task in it, and so on.
    """
    return _answer(queue().close(task_id, reason=reason), "closed")


@_queue_verb("reopen", results_dir_option)
@click.argument("task_id", metavar="[ID]", required=False)
@flag("--gone", "All tasks whose worker's session has no process left.")
@valued("--reason", "TEXT", "Kept with the task.")
def reopen(queue: Open, task_id: str | None, gone: bool, reason: str | None, results_dir: Path | None) -> Answer:
    """Make task ID open again.

    It was closed, or a worker has it: that worker's claim ends.
    """
    if (task_id is None) != gone or (gone and reason):
        raise InputError("queue reopen: give an ID, or --gone alone")
    if not gone:
        return _answer(queue().reopen(str(task_id), reason=reason), "open again")
    from sessionrun.queue.claims import reclaim

    tasks = reclaim(queue(), results_dir)
    words = {"closed": "closed: its work has landed"}
    lines = [escape_line(f"{task.id}: {words.get(task.status, 'open again')}") for task in tasks]
    return Answer({"tasks": [describe_task(task) for task in tasks]}, lines or ["No worker is gone."])


@_queue_verb("import")
@click.argument("file", metavar="FILE")
@_into_option("the tasks")
def import_tasks(queue: Open, file: str, group: str | None) -> Answer:
    """Append the tasks of a Markdown list; - is standard input.

    Lines `bd create "TITLE"` in code blocks are the tasks, if there are any; else the entries of the list, without
    those that are ticked.  A title that the queue has already is left out.
    """
    added, known = import_list(queue(), file, group=group or None)
    return Answer(
        {"added": [describe_task(task) for task in added], "known": known},
        [escape_line(f"{task.id}: {task.title}") for task in added],
        aside=[f"{len(added)} added, {len(known)} in the queue already"],
    )


@verb("take", backend_option, json_option, parent=command)
@click.argument("files", metavar="[FILE...]", nargs=-1, type=click.Path(path_type=Path))
@valued(
    "--max maximum",
    Count(),
    f"Add no more than N tasks; what is above waits for the next call.  [default: {MAX_TASKS}]",
    default=MAX_TASKS,
)
@_into_option("them")
@flag("--dry-run", "Show what would be added; change nothing.")
def take(group: str | None, maximum: int, dry_run: bool, **options: Any) -> Answer:
    """Take follow-ups into the queue, and empty their files.

    Each line of suggested_tasks.txt is a task.  Taken are the file of the main checkout, and those of tasks of
    the queue that have ended.  A line that an open task says already is left out.
    """
    found = ingest(group=group or None, maximum=maximum, dry_run=dry_run, **options)
    lines = [escape_line(f"{'would add' if dry_run else task['id']}: {task['title']}") for task in found.added]
    aside = [
        escape_line(f"kept {one['lines']} line{'s' * (one['lines'] != 1)} of {one['source']}: --max is {maximum}")
        for one in found.kept
    ]
    done = "would be added" if dry_run else "added"
    aside.append(f"{len(found.added)} {done}, {len(found.known)} in the queue already")
    return Answer({"dry_run": dry_run, **found._asdict()}, lines, aside=aside)


def _status_word(record: Record) -> str:
    if record["status"] == "claimed":
        session = f" of {record['session_id'][:8]}" if record["session_id"] else ""
        return f"claimed ({record['worker'] or 'not by sessionrun'}{session})"
    if record["status"] == "deferred":
        return f"deferred ({record['backend_status']})"
    if record["status"] == "closed":
        return "closed"
    return "group" if record["is_group"] else "blocked" if record["blocked_by"] else "ready"
