"""`diff`: what the tasks of a session changed, against the commit they began at."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from sessionrun.cli.options import Answer, flag, session_verb
from sessionrun.cli.render import escape, escape_line, is_json, write_bytes
from sessionrun.client.reading.outputs import decode
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.diff import describe_changes, find_changed, read_changes


@session_verb("diff", headed=False)
@flag("--stat", "Only which files changed, and how much.")
def command(session: SessionDir, tasks: tuple[str, ...], *, stat: bool) -> Answer:
    """Show what session ID's tasks changed in their worktrees.

    Of a task whose work is on a branch, the patch that `git apply` takes; of one that runs, its worktree as it
    is now.  On a terminal, through a pager.
    """
    chosen = find_changed(session, tasks)
    if is_json():
        changes = [describe_changes(session, task) for task in chosen]
        return Answer({"session_id": session.session_id, "tasks": changes})
    if sys.stdout.isatty():
        click.echo_via_pager(escape(text) for text in decode(_chunks(session, chosen, stat=stat)))
    else:
        for chunk in _chunks(session, chosen, stat=stat):
            write_bytes(chunk)
    return Answer(None)


def _chunks(session: SessionDir, tasks: list[dict[str, Any]], *, stat: bool) -> Iterator[bytes]:
    for task, pieces in read_changes(session, tasks, stat=stat):
        if len(tasks) > 1:
            where = escape_line(task["rescue_branch"] or task["branch"] or _say_nothing(task))
            yield f"# Task {task['num']} (ID: {task['id']}): {where}\n".encode()
        changed = False
        for piece in pieces:
            changed = changed or bool(piece)
            yield piece
        if not changed and len(tasks) == 1:  # of several the line above says it
            click.echo(f"Task {task['num']} (ID: {escape(task['id'])}): {_say_nothing(task)}", err=True)


def _say_nothing(task: Mapping[str, Any]) -> str:
    """Of a task without a change on a branch; what could not be committed may lie in its worktree."""
    kept = task.get("worktree_kept")
    return f"nothing committed; worktree kept: {escape_line(kept)}" if kept else "nothing changed"
