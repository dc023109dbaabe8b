"""`status`: where a session and its tasks stand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import choose_tasks, json_option, open_session, results_dir_option, session_argument
from sessionrun.cli.render import (
    WIDTH,
    escape,
    escape_line,
    local_time,
    print_json,
    reason_lines,
    task_sign,
    task_word,
    write_bytes,
)
from sessionrun.cli.view import load_view, read_view

_INDENT: Final = " " * 5


@click.command("status")
@session_argument
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@json_option
@results_dir_option
def command(session_id: str, tasks: tuple[str, ...], as_json: bool, results_dir: Path | None) -> None:
    """Show where session ID stands: the newest if no ID is given.

    ID is a session's id, an unambiguous beginning of it, or `last`; TASK a task's id or number.
    """
    session = open_session(results_dir, session_id)
    unparsed = read_view(session) if as_json and not tasks else None
    if unparsed is not None:
        for part in unparsed:
            write_bytes(part)
        return
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
    if as_json:
        print_json({**view, "tasks": chosen})
    else:
        click.echo(format_status(view, chosen))


def format_status(view: dict[str, Any], tasks: list[dict[str, Any]]) -> str:
    """The status block."""
    lines = [
        f"Session: {view['session_id']}",
        f"Status: {view['status']}",
        f"Started: {local_time(view['started_at'])}",
        f"Tasks: {view['completed']}/{view['total']}",
        "",
        "Tasks:",
    ]
    for task in tasks:
        lines.append(f"  {task_sign(task)} Task {task['num']} (ID: {escape(task['id'])}): {task_word(task)}")
        lines += reason_lines(task, _INDENT) or _held_lines(task)
        lines += kept_lines(task, _INDENT)
        if task.get("worktree") and task["status"] == "completed":
            lines.append(_INDENT + escape_line(f"worktree: {task['worktree']}"))
        if task.get("rescue_branch"):
            lines.append(_INDENT + escape_line(f"its work is on: {task['rescue_branch']}"))
    return "\n".join(lines)


def kept_lines(task: Mapping[str, Any], indent: str) -> list[str]:
    """Why a task's worktree was not removed, as lines of their own; none when it was, or while it is in use."""
    why = task.get("worktree_kept")
    return _wrap(f"worktree kept: {why}", indent) if why else []


def _held_lines(task: Mapping[str, Any]) -> list[str]:
    """Why a task that waits until a given time has to."""
    held = task["status"] == "pending" and task.get("held_until") and task["reason"]
    return _wrap(str(task["reason"]), _INDENT) if held else []


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
