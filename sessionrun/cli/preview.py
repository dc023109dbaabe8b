"""`run --dry-run`: what would run, in which order, and why it was read that way."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

import click

from sessionrun.cli.render import escape_line, local_time, print_json
from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.preview import describe_plan

PROMPT_LINES: Final = 3
PROMPT_WIDTH: Final = 70
"""How much of a prompt is shown without --verbose."""


def print_preview(planned: Planned, *, as_json: bool, verbose: bool = False, held: bool = False) -> None:
    """Print the tasks in the order in which they become ready, with all of their prompts if `verbose`.

    `held` is whether all of them are to wait until they are released.
    """
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
