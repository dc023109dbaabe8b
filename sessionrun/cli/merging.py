"""Lines for a shell that merge the work of tasks with worktrees; a person reads them first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click

from sessionrun.cli.render import SINGLE_LINE, escape, escape_line, landing_lines, task_word
from sessionrun.cli.status import kept_lines
from sessionrun.client.landing.merging import Inspected, Merged, Merges, Task, plan_merges, read_landing
from sessionrun.client.reading.changes import find_work_base
from sessionrun.model.cluster import is_node_id
from sessionrun.model.places import Repository


def print_merge_instructions(view: dict[str, Any], tasks: Sequence[Task], repository: Repository) -> None:
    """Print how to get the work of tasks that ran in worktrees, as lines for a shell; nothing where there is none.

    Args:
        view: the session.
        tasks: those that are to be shown.
        repository: of these tasks.
    """
    merges = plan_merges(view, tasks, repository)
    if merges.inspected:
        click.echo(f"\nTo look at first, in {escape_line(repository.top)}:\n{SINGLE_LINE}")
    for inspected in merges.inspected:
        _print_to_look_at(inspected)
    mended = [inspected.task["id"] for inspected in merges.inspected if read_landing(inspected.task) == "bounced"]
    if mended:
        words = " ".join(map(_quote, ("sessionrun", "merge", view["session_id"], *mended)))
        click.echo(f"# when the bounced work is mended on its branch:\n{words}")
    if merges.landing:
        _print_to_land(view, tasks, merges, repository)
    if merges.merged:
        _print_to_merge(view, merges, repository)
    if merges.landed:
        click.echo(f"\nNo longer needed, because their work has landed:\n{SINGLE_LINE}")
        click.echo("\n".join(f"git branch -d {_quote(branch)}" for branch in merges.landed))


def _print_to_look_at(inspected: Inspected) -> None:
    task = inspected.task
    click.echo(_describe_work(task))
    if task["worktree"]:
        if is_node_id(task.get("node")):
            click.echo(f"# on node {escape_line(task['node'])}:")
        click.echo(f"git -C {_quote(task['worktree'])} status")
    if task["commit"] is not None or not task["worktree"]:
        for branch in inspected.branches:
            click.echo(f"git diff {(find_work_base(task) or '')[:12]} {_quote(branch)}")


def _print_to_land(view: dict[str, Any], shown: Sequence[Task], merges: Merges, repository: Repository) -> None:
    words = ["sessionrun", "merge", view["session_id"]]
    if len(shown) < len(view["tasks"]):
        words += merges.landing
    branch = escape_line(repository.base_branch)
    click.echo(f"\nTo land what succeeded on {branch}, by one command:\n{SINGLE_LINE}")
    click.echo(" ".join(map(_quote, words)))


def _print_to_merge(view: dict[str, Any], merges: Merges, repository: Repository) -> None:
    branch = escape_line(repository.base_branch)
    where = escape_line(repository.top)
    mirror = repository.top if repository.upstream and repository.top == repository.common_dir else None
    if mirror is not None:
        where = f"a clone of {escape_line(repository.upstream or '')}"
    click.echo(f"\nTo merge what succeeded, in {where} with {branch} checked out:\n{SINGLE_LINE}")
    for merged in merges.merged:
        click.echo(f"{_describe_work(merged.task)}\n{_word_merge(merged, mirror)}")
    click.echo("# when all that is merged:")
    tasks: Sequence[Task] = [merged.task for merged in merges.merged]
    for task in tasks:
        if not task["worktree"]:
            words = "git branch -d" if mirror is None else f"git -C {_quote(mirror)} branch -D"
            click.echo(f"{words} {_quote(task['branch'])}")
    if any(task["worktree"] for task in tasks):
        click.echo(f"sessionrun clean --worktrees {view['session_id']}")


def _word_merge(merged: Merged, mirror: str | None) -> str:
    if merged.inside:
        return f"# {_quote(merged.holder) if merged.holder else 'another branch'} contains it"
    words = "git merge" if mirror is None else f"git pull --no-rebase {_quote(mirror)}"
    return f"{words} {_quote(merged.task['branch'])}"


def _describe_work(task: Task) -> str:
    stat = task["diff_stat"]
    changes = "changes unknown"
    if stat:
        files = "1 file" if stat["files"] == 1 else f"{stat['files']} files"
        changes = f"{files}, +{stat['insertions']} -{stat['deletions']}"
    words = changes if task["outcome"] == "succeeded" else f"{task_word(task)}; {changes}"
    head = f"# Task {task['num']} (ID: {escape(task['id'])}): {words}"
    return "\n".join([head, *landing_lines(task, "# "), *kept_lines(task, "# ")])


def _quote(word: str) -> str:
    """A word for a shell, on one line and safe for a terminal."""
    return escape(shlex.quote(word).replace("\n", "\\n"))
