"""`status`: where a session and its tasks stand."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import click

from sessionrun.cli.options import Answer, Count, Fields, flag, valued
from sessionrun.cli.render import (
    escape,
    escape_line,
    is_seed_block,
    local_time,
    sign,
    table_lines,
    tell_value,
    terminal_width,
)
from sessionrun.cli.selecting import session_verb
from sessionrun.client.reading.view import choose_tasks, load_unparsed, load_view
from sessionrun.model.errors import InputError
from sessionrun.model.wording import BRIEF_BYTES
from sessionrun.model.words import AXES, BAD, is_matrix
from sessionrun.store.session import SessionDir

View = Mapping[str, Any]


@session_verb("status", "since")
@click.option("--by", type=click.Choice(AXES), help="Compare the tasks of a matrix by model, task or agent.")
@flag("--all show_all", "A row for each task, also of more than 20.")
@flag("--failed", "Only tasks that failed, with a row for each.")
@valued("--since", "CURSOR", "Only tasks that changed since this cursor.", Count())
@flag("--brief", "Only counts and tasks that need attention; in JSON no nulls.")
@valued("--fields", Fields(), "Only these keys of the session and its tasks.")
def command(
    session: SessionDir,
    tasks: tuple[str, ...],
    *,
    by: str | None,
    show_all: bool,
    failed: bool,
    since: int | None,
    brief: bool,
    fields: tuple[str, ...] | None,
    as_json: bool,
) -> Answer:
    """Show where session ID stands: the newest if no ID is given.

    ID is a session's id, an unambiguous beginning of it, its name, or `last`; TASK a task's id or number.

    --brief and --since print a cursor: the next call with --since CURSOR shows what changed since then.
    """
    if by is not None and (brief or fields or since is not None):
        raise InputError("status: --by cannot be had with --since, --brief or --fields")
    if brief and fields:
        raise InputError("status: choose one of --brief and --fields")
    as_it_is = as_json and not (tasks or by or brief or fields or failed) and since is None
    if as_it_is and (unparsed := load_unparsed(session)) is not None:
        return Answer(unparsed)
    view, chosen = _load(session, tasks, since)
    chosen = [task for task in chosen if task["word"] in BAD or not failed]
    if fields:
        return _choose_fields(view, chosen, fields)
    if as_json:
        return Answer(_describe(session, view, chosen, by=by, brief=brief, since=since))
    if brief:
        from sessionrun.cli.standing import brief_lines

        return Answer(None, brief_lines(view, chosen, time.time()))
    if is_seed_block():
        return Answer(None, _seed_lines(view, chosen))
    if tasks and since is None and by is None:
        from sessionrun.cli.explain import story_lines
        from sessionrun.client.explain import explain

        return Answer(None, story_lines(session, *explain(session, tasks)))
    every = show_all or failed or bool(tasks) or since is not None
    cursor_line = [] if since is None else [f"Cursor: {view['seq']}"]
    by = by or ("model" if not every and is_matrix(chosen) else None)
    return Answer(None, [*status_lines(session, view, chosen, every=every, by=by), *cursor_line])


def _load(
    session: SessionDir, names: Sequence[str], since: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The view, and the tasks of these names, all without any, that have changed since the cursor."""
    if since is None:
        view = load_view(session)
        return view, choose_tasks(view, names)
    from sessionrun.client.reading.digest import load_since

    view, changed = load_since(session, since)
    ids = {task["id"] for task in changed}
    return view, [task for task in choose_tasks(view, names) if task["id"] in ids]


def _describe(
    session: SessionDir,
    view: View,
    tasks: Sequence[dict[str, Any]],
    *,
    by: str | None,
    brief: bool,
    since: int | None,
) -> Mapping[str, Any]:
    if brief:
        from sessionrun.client.reading.digest import make_brief
        from sessionrun.client.reading.telling import add_tellings

        return make_brief(view, add_tellings(session, tasks, BRIEF_BYTES))
    if by is not None:
        from sessionrun.client.reading.comparison import compare_tasks

        return compare_tasks(view, tasks, by)
    return {**view, **({} if since is None else {"cursor": view["seq"]}), "tasks": tasks}


def status_lines(
    session: SessionDir, view: View, tasks: Sequence[View], *, every: bool = False, by: str | None = None
) -> list[str]:
    """What `status` shows of tasks of a session: rows, groups of many, or a grid; and what to do next."""
    from sessionrun.cli.standing import head_lines, next_lines, task_lines, tell_left

    now, width = time.time(), terminal_width()
    head = head_lines(view, now, left=tell_left(view, now) if sys.stdout.isatty() else "")
    if by is None:
        shown = task_lines(view, tasks, now, width, every=every)
    else:
        from sessionrun.cli.comparison import comparison_lines
        from sessionrun.client.reading.comparison import compare_tasks

        shown = comparison_lines(compare_tasks(view, tasks, by), width, show_all=every)
    return [*head, *shown, *next_lines(session, view, tasks, verb="status")]


def _choose_fields(view: View, tasks: Sequence[View], fields: Sequence[str]) -> Answer:
    from sessionrun.client.reading.digest import choose_fields

    record = choose_fields(view, tasks, fields)
    lines = [escape_line(f"{key}: {tell_value(value)}") for key, value in record.items() if key in fields]
    columns = [key for key in fields if any(key in task for task in view["tasks"])]
    rows = [[tell_value(task.get(key)) for key in columns] for task in tasks]
    table = table_lines([key.upper() for key in columns], rows) if columns and rows else ()
    return Answer(record, chain(lines, table))


_SEED_WORDS: Final = {"succeeded": "completed", "landed": "completed", "waiting": "pending"}
_SEED_SIGNS: Final = {
    **dict.fromkeys(("completed", "changed_nothing"), "done"),
    **dict.fromkeys(("running", "pending", "held"), "open"),
}


def _seed_lines(view: View, tasks: Sequence[View]) -> list[str]:
    """The block of ``--status``, for programs that read it: with the words and signs of an older tool."""
    lines = [
        f"Session: {view['session_id']}",
        f"Status: {view['status']}",
        f"Started: {local_time(view['started_at'])}",
        f"Tasks: {view['completed']}/{view['total']}",
        "",
        "Tasks:",
    ]
    for task in tasks:
        word = str(_SEED_WORDS.get(task["word"], task["word"]))
        shown = f"Task {task['num']} (ID: {escape(task['id'])}): {word.replace('_', ' ')}"
        lines.append(f"  {sign(_SEED_SIGNS.get(word, 'wrong'))} {shown}")
    return lines
