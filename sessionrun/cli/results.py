"""`results`: what the tasks of a session answered."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import (
    Count,
    choose_tasks,
    json_option,
    open_session,
    place_lines,
    results_dir_option,
    session_argument,
)
from sessionrun.cli.outputs import find_tail, iterate_chunks, iterate_tail
from sessionrun.cli.render import (
    DOUBLE_LINE,
    SINGLE_LINE,
    WAITING,
    escape,
    escape_line,
    reason_lines,
    task_word,
    write_bytes,
)
from sessionrun.cli.status import kept_lines
from sessionrun.cli.view import load_view
from sessionrun.errors import InputError
from sessionrun.store import SessionDir

STDERR_TAIL: Final = 20
"""Lines of standard error that are shown of a task that failed."""


@click.command("results")
@session_argument
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--tail", type=Count(), metavar="N", help="Only the last N lines of each task.")
@click.option(
    "--raw", is_flag=True, help="What the agents printed, structured output as it came, and nothing else."
)
@json_option
@results_dir_option
def command(
    session_id: str, tasks: tuple[str, ...], tail: int | None, raw: bool, as_json: bool, results_dir: Path | None
) -> None:
    """Print the answers of session ID's tasks: the newest session if no ID is given.

    Where standard output is no terminal, outputs are printed byte for byte.
    """
    if raw and as_json:
        raise InputError("--raw prints what the agents printed and cannot be had as --json")
    session = open_session(results_dir, session_id)
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
    if raw:
        for task in chosen:
            _print_file(session.path / (task["raw"] or task["output"]), tail, whole_line=False)
    elif as_json:
        print_results_json(session, view, chosen, tail=tail)
    else:
        print_results(session, view, chosen, tail=tail)


def print_results(
    session: SessionDir, view: dict[str, Any], tasks: list[dict[str, Any]], *, tail: int | None
) -> None:
    """Print the results block, output by output, without holding any of them whole."""
    click.echo("\n".join([f"Session: {view['session_id']}", *place_lines(view), DOUBLE_LINE]))
    for task in tasks:
        failed = task["status"] == "completed" and task["outcome"] != "succeeded"
        word = f" {task_word(task)}" if failed else ""
        click.echo(f"\nTask {task['num']} (ID: {escape(task['id'])}):{word}")
        click.echo("\n".join([*reason_lines(task, ""), SINGLE_LINE]))
        if task["status"] == "completed":
            _print_file(session.path / task["output"], tail)
        else:
            click.echo(_describe_waiting(task))
        errors = session.path / task["stderr"]
        if failed and find_tail(errors, 0):
            click.echo("[standard error]")
            _print_file(errors, STDERR_TAIL if tail is None else tail)
    if any(task["usage"] is not None for task in tasks):
        from sessionrun.cli.money import print_usage

        print_usage(tasks)
    if view["base_branch"] is not None:
        repository = session.load_spec().repository
        assert repository is not None
        print_merge_instructions(view, tasks, repository.top)


def print_merge_instructions(view: dict[str, Any], tasks: list[dict[str, Any]], top: str) -> None:
    """How to get the work of tasks that ran in worktrees, as lines for a shell; nothing where there is none.

    Args:
        view: the session.
        tasks: those that are to be shown.
        top: the checkout from which the session was started.
    """
    branches = _list_branches(top)
    ended = [task for task in tasks if task["status"] == "completed" and task["base_commit"]]
    holders = {task["id"]: _find_holders(task, branches) for task in ended}
    sound = [task for task in ended if task["outcome"] == "succeeded" and task["commit"] is not None]
    good = [task for task in sound if holders[task["id"]] == [task["branch"]]]
    others = [task for task in ended if holders[task["id"]] or task["worktree"] or task.get("worktree_remark")]
    others = [task for task in others if task not in good]
    if others:
        click.echo(f"\nTo look at first, in {escape_line(top)}:\n{SINGLE_LINE}")
    for task in others:
        _print_to_look_at(task, holders[task["id"]])
    if good:
        _print_to_merge(view, good, top)


def _list_branches(top: str) -> list[str]:
    """The branches there are; those that were merged are often deleted, and `clean` may have made others."""
    from sessionrun.git import Git, GitError

    try:
        return Git(Path(top)).line("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split("\n")
    except GitError:
        return []


def _find_holders(task: dict[str, Any], branches: list[str]) -> list[str]:
    """The branches that hold what a task did; where nobody said what was committed, all that may."""
    branch, rescue = task["branch"], task["rescue_branch"]
    if task["commit"] == task["base_commit"]:
        return []
    if task["commit"] is not None:
        return [name for name in (rescue or branch,) if name in branches]
    rescues = re.compile(re.escape(f"{branch}-rescue") + "(-[0-9]+)?")
    return [name for name in branches if name == branch or rescues.fullmatch(name)]


def _print_to_look_at(task: dict[str, Any], holders: list[str]) -> None:
    click.echo(_describe_work(task))
    if task["worktree"]:
        click.echo(f"git -C {_quote(task['worktree'])} status")
    if task["commit"] is not None or not task["worktree"]:
        for branch in holders:
            click.echo(f"git diff {task['base_commit'][:12]} {_quote(branch)}")


def _print_to_merge(view: dict[str, Any], tasks: list[dict[str, Any]], top: str) -> None:
    branch = escape_line(view["base_branch"])
    click.echo(f"\nTo merge what succeeded, in {escape_line(top)} with {branch} checked out:\n{SINGLE_LINE}")
    for task in tasks:
        click.echo(_describe_work(task))
        click.echo(f"git merge {_quote(task['branch'])}")
    click.echo("# when all that is merged:")
    for task in tasks:
        if not task["worktree"]:
            click.echo(f"git branch -d {_quote(task['branch'])}")
    if any(task["worktree"] for task in tasks):
        click.echo(f"sessionrun clean --worktrees {view['session_id']}")


def _describe_work(task: dict[str, Any]) -> str:
    stat = task["diff_stat"]
    changes = "changes unknown"
    if stat:
        files = "1 file" if stat["files"] == 1 else f"{stat['files']} files"
        changes = f"{files}, +{stat['insertions']} -{stat['deletions']}"
    words = changes if task["outcome"] == "succeeded" else f"{task_word(task)}; {changes}"
    head = f"# Task {task['num']} (ID: {escape(task['id'])}): {words}"
    return "\n".join([head, *kept_lines(task, "# ")])


def _quote(word: str) -> str:
    """A word for a shell, on one line and safe for a terminal."""
    return escape(shlex.quote(word).replace("\n", "\\n"))


def print_results_json(
    session: SessionDir, view: dict[str, Any], tasks: list[dict[str, Any]], *, tail: int | None
) -> None:
    """Print one JSON object whose `tasks` are status.json's with the text of `output`, streamed."""
    import orjson

    head = {key: view[key] for key in ("session_id", "status", "outcome", "results_dir")}
    write_bytes(orjson.dumps(head)[:-1] + b',"tasks":[')
    for place, task in enumerate(tasks):
        record = {**task, "output_file": task["output"], "stderr_file": task["stderr"]}
        del record["output"], record["stderr"]
        write_bytes((b"," if place else b"") + orjson.dumps(record)[:-1])
        for key in ("output", "stderr"):
            write_bytes(b',"%b":"' % key.encode())
            for text in _decode(_iterate(session.path / task[key], tail)):
                write_bytes(orjson.dumps(text)[1:-1])
            write_bytes(b'"')
        write_bytes(b"}")
    write_bytes(b"]}\n")


def _describe_waiting(task: dict[str, Any]) -> str:
    if task["status"] == "running":
        return WAITING
    return "[Task not started yet]" if task["started_at"] is None else "[Task waits to go on]"


def _print_file(path: Path, tail: int | None, *, whole_line: bool = True) -> None:
    """Print a file, escaped on a terminal; with `whole_line` a last line without an end gets one."""
    last = b"\n"
    terminal = sys.stdout.isatty()
    if terminal:
        for text in _decode(_iterate(path, tail)):
            click.echo(escape(text), nl=False)
            last = text[-1:].encode() or last
    else:
        for chunk in _iterate(path, tail):
            write_bytes(chunk)
            last = chunk[-1:]
    if whole_line and last != b"\n":
        click.echo()


def _iterate(path: Path, tail: int | None) -> Iterator[bytes]:
    return iterate_chunks(path) if tail is None else iterate_tail(path, tail)


def _decode(chunks: Iterator[bytes]) -> Iterator[str]:
    """Decode piece by piece; bytes that are no UTF-8 become visible escapes."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)
