"""`status`: where a session and its tasks stand."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.contact import contact_lines
from sessionrun.cli.feeding import feed_lines
from sessionrun.cli.options import Count, Fields, json_option, place_lines, results_dir_option
from sessionrun.cli.render import (
    WIDTH,
    escape,
    escape_line,
    is_seed_block,
    landing_lines,
    left_lines,
    local_time,
    print_json,
    print_stored,
    proof_lines,
    reason_lines,
    session_word,
    task_sign,
    task_word,
    terminal_width,
)
from sessionrun.cli.selecting import each_session, words_argument
from sessionrun.client.lookup import choose_tasks
from sessionrun.client.reading.comparison import AXES
from sessionrun.client.reading.view import describe_shortage, load_view, read_view
from sessionrun.model.cluster import is_node_id
from sessionrun.model.errors import InputError
from sessionrun.model.words import tell_counts
from sessionrun.store.session import SessionDir

_INDENT: Final = " " * 5


@click.command("status")
@words_argument
@click.option("--by", type=click.Choice(AXES), help="Compare the tasks of a matrix by model, task or agent.")
@click.option("--tasks", "show_all", is_flag=True, help="Show all tasks on a terminal, also more than 20.")
@click.option("--since", type=Count(), metavar="CURSOR", help="Only tasks that changed since this cursor.")
@click.option("--brief", is_flag=True, help="Only counts and tasks that need attention; in JSON no nulls.")
@click.option("--fields", type=Fields(), metavar="NAME,...", help="Only these keys of the session and its tasks.")
@json_option
@results_dir_option
@each_session("since")
def command(
    session: SessionDir,
    tasks: tuple[str, ...],
    *,
    by: str | None,
    show_all: bool,
    since: int | None,
    brief: bool,
    fields: tuple[str, ...] | None,
    as_json: bool,
) -> None:
    """Show where session ID stands: the newest if no ID is given.

    ID is a session's id, an unambiguous beginning of it, its name, or `last`; TASK a task's id or number.

    --brief and --since print a cursor: the next call with --since CURSOR shows what changed since then.
    """
    if by is not None and (brief or fields or since is not None):
        raise InputError("status: --by cannot be had with --since, --brief or --fields")
    if brief and fields:
        raise InputError("status: choose one of --brief and --fields")
    as_it_is = as_json and not (tasks or by or brief or fields) and since is None
    unparsed = read_view(session) if as_it_is else None
    if unparsed is not None:
        print_stored(*unparsed)
        return
    view, changed = (load_view(session), None) if since is None else _load_since(session, since)
    chosen = choose_tasks(view, tasks)
    chosen = [task for task in chosen if changed is None or task["id"] in changed]
    if brief or fields:
        from sessionrun.cli import terse

        if brief:
            from sessionrun.client.reading.telling import BRIEF_BYTES, add_tellings

            chosen = add_tellings(session, chosen, BRIEF_BYTES)
            terse.print_brief(view, chosen, lambda task: _task_lines(task, terminal_width()), as_json=as_json)
        else:
            terse.print_fields(view, chosen, fields or (), as_json=as_json)
    elif by is not None:
        from sessionrun.cli.comparison import print_comparison

        print_comparison(view, chosen, by, as_json=as_json)
    elif as_json:
        cursor = {} if since is None else {"cursor": view["seq"]}
        print_json({**view, **cursor, "tasks": chosen})
    else:
        width = terminal_width() if sys.stdout.isatty() else None
        block = format_status(view, chosen, width=width, show_all=show_all or bool(tasks) or since is not None)
        head, rest = block.split("\n", 1)
        cursor_line = [] if since is None else [f"Cursor: {view['seq']}"]
        click.echo("\n".join([head, *place_lines(view), rest, *cursor_line]))


def _load_since(session: SessionDir, since: int) -> tuple[dict[str, Any], set[str]]:
    """The view, and the ids of the tasks that changed."""
    from sessionrun.client.reading.since import load_since

    view, changed = load_since(session, since)
    return view, {task["id"] for task in changed}


def format_status(
    view: dict[str, Any], tasks: list[dict[str, Any]], *, width: int | None = None, show_all: bool = True
) -> str:
    """The status block; with the `width` of a terminal also names, durations, an account and the end."""
    # on a terminal the head line tells the counts
    counts = (
        "" if width is not None or is_seed_block() or not view["total"] else f": {tell_counts(view['counts'])}"
    )
    lines = [
        f"Session: {view['session_id']}",
        f"Status: {session_word(view)}",
        f"Started: {local_time(view['started_at'])}",
        f"Tasks: {view['completed']}/{view['total']}{counts}",
        "",
        "Tasks:",
    ]
    if view["usage"]:
        from sessionrun.cli.money import describe_usage, read_usage

        lines.insert(4, f"Usage: {describe_usage(read_usage(view['usage']))}")
    if view["budget"]:
        from sessionrun.cli.money import describe_budget

        lines.insert(4, f"Budget: {describe_budget(view['budget'])}")
    lines[3:3] = feed_lines(view)
    rest = None
    if width is not None:
        from sessionrun.cli.standing import choose_shown, head_line
        from sessionrun.client.planning.forecast import load_past

        past = partial(load_past, view["dialect"], Path(view["results_dir"]).parent)
        lines[2:2] = [head_line(view, view["tasks"], load_past=past)]
        lines[4:4] = [f"Ended: {local_time(view['ended_at'])}"] if view["ended_at"] else []
        lines[1:1] = [escape_line(f"Name: {view['name']}")] if view.get("name") else []
        if not show_all:
            tasks, rest = choose_shown(tasks)
    parent = view.get("parent")
    if parent:
        lines.insert(1, escape_line(f"Parent: session {parent['session_id']}, task {parent['task']}"))
    lines[2:2] = contact_lines(view)
    shortage = describe_shortage(view)
    if shortage is not None:
        lines.insert(2, escape_line(f"Disk full: {shortage}: nothing new starts until there is room"))
    for problem in view.get("view_problems") or ():
        lines.insert(-2, escape_line(f"Warning: {problem}"))
    for task in tasks:
        lines += _task_lines(task, width)
    return "\n".join([*lines, *([rest] if rest else [])])


def _task_lines(task: dict[str, Any], width: int | None) -> list[str]:
    """A task: how it stands, and below that why, and where its work is."""
    line = f"  {task_sign(task)} Task {task['num']} (ID: {escape(task['id'])}): {task_word(task)}"
    lines = [line]
    if width is not None:
        from sessionrun.cli.standing import add_details

        lines = add_details(line, task, width, _INDENT)
    if task.get("node") and task["status"] == "running":
        lines.append(_INDENT + escape_line(f"on node {task['node']}"))
    lines += reason_lines(task, _INDENT) or _held_lines(task)
    if task.get("earlier_agents"):
        from sessionrun.cli.attempts import agent_lines

        lines += agent_lines(task, _INDENT)
    lines += proof_lines(task, _INDENT)
    lines += landing_lines(task, _INDENT)
    return lines + whereabouts_lines(task, _INDENT)


def whereabouts_lines(task: Mapping[str, Any], indent: str) -> list[str]:
    """Where a task's work is, if that is not its branch alone, and why."""
    lines = [*left_lines(task, indent), *kept_lines(task, indent)]
    if task.get("worktree") and task["status"] == "completed":
        where = f" on node {task['node']}" if is_node_id(task.get("node")) else ""
        lines.append(indent + escape_line(f"worktree{where}: {task['worktree']}"))
    if task.get("rescue_branch"):
        lines.append(indent + escape_line(f"its work is on: {task['rescue_branch']}"))
    return lines


def kept_lines(task: Mapping[str, Any], indent: str) -> list[str]:
    """Why a task's worktree was not removed, or what became of its work, as lines of their own."""
    why, remark = task.get("worktree_kept"), task.get("worktree_remark")
    lines = [f"worktree kept: {why}"] if why else []
    lines += [str(remark)] if remark else []
    return [wrapped for line in lines for wrapped in _wrap(line, indent)]


def _held_lines(task: Mapping[str, Any]) -> list[str]:
    """Why a task has to wait for a hold to end, or until a given time."""
    waits = task["word"] == "held" or task["reason_class"] == "paced" or task["held_until"]
    return _wrap(str(task["reason"]), _INDENT) if waits and task["reason"] else []


def _wrap(text: str, indent: str) -> list[str]:
    import textwrap

    line = escape_line(text)
    return textwrap.wrap(
        line,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
