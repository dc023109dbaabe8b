"""`diff`: what the tasks of a session changed, against the commit they began at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from sessionrun.cli.options import choose_tasks, json_option, open_session, results_dir_option, session_argument
from sessionrun.cli.outputs import iterate_chunks
from sessionrun.cli.render import escape, print_json, write_bytes
from sessionrun.cli.view import load_view
from sessionrun.errors import InputError
from sessionrun.store import SessionDir


@click.command("diff")
@session_argument
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--stat", is_flag=True, help="Only which files, and how much.")
@json_option
@results_dir_option
def command(session_id: str, tasks: tuple[str, ...], stat: bool, as_json: bool, results_dir: Path | None) -> None:
    """Show what session ID's tasks changed in their worktrees.

    Of a task that has ended, its diff.patch, which `git apply` takes; of one that runs, the tracked files of
    its worktree as they are now.  On a terminal, through a pager.
    """
    session = open_session(results_dir, session_id)
    view = load_view(session)
    chosen = [task for task in choose_tasks(view, tasks) if task["branch"]]
    if not chosen:
        raise InputError(f"no task of session {view['session_id']} has a worktree; start it with --worktree")
    if as_json:
        print_json([_record(session, task) for task in chosen])
    elif sys.stdout.isatty():
        click.echo_via_pager(escape(text) for text in _texts(session, chosen, stat=stat))
    else:
        for chunk in _chunks(session, chosen, stat=stat):
            write_bytes(chunk)


def patch_path(session: SessionDir, task: dict[str, Any]) -> Path:
    """The patch of the task's last attempt."""
    return session.path / "jobs" / str(task["id"]) / f"a{task['attempt']}-diff.patch"


def _record(session: SessionDir, task: dict[str, Any]) -> dict[str, Any]:
    patch = patch_path(session, task)
    keys = ("id", "num", "branch", "rescue_branch", "worktree", "base_commit", "commit", "diff_stat")
    return {**{key: task[key] for key in keys}, "patch": str(patch) if patch.exists() else None}


def _chunks(session: SessionDir, tasks: list[dict[str, Any]], *, stat: bool) -> Iterator[bytes]:
    for task in tasks:
        if len(tasks) > 1:
            yield f"# Task {task['num']} (ID: {task['id']}): {task['branch']}\n".encode()
        patch = patch_path(session, task)
        if stat:
            yield _stat(patch) if patch.exists() else _live(task, "--stat")
        elif patch.exists():
            yield from iterate_chunks(patch)
        else:
            yield _live(task)


def _texts(session: SessionDir, tasks: list[dict[str, Any]], *, stat: bool) -> Iterator[str]:
    for chunk in _chunks(session, tasks, stat=stat):
        yield chunk.decode("utf-8", "backslashreplace")


def _stat(patch: Path) -> bytes:
    done = subprocess.run(["git", "apply", "--stat", str(patch)], capture_output=True, check=False)
    return done.stdout


def _live(task: dict[str, Any], *words: str) -> bytes:
    from sessionrun.git import Git

    if task["worktree"] is None or task["base_commit"] is None:
        return b""
    git = Git(Path(task["worktree"]))
    return git("diff", "--binary", "--full-index", "--no-ext-diff", *words, task["base_commit"])
