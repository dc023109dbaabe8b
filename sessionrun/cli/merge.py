"""`merge`: land the work of tasks on a branch, after gates if any are named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import (
    EXIT_FAILED,
    EXIT_HELD,
    Answer,
    Count,
    Duration,
    ShellCommand,
    flag,
    session_verb,
    valued,
)
from sessionrun.cli.render import escape, escape_line
from sessionrun.cli.standing import section_lines
from sessionrun.client.reading.telling import read_section
from sessionrun.input.config import load_setting
from sessionrun.landing.merge import AskedLanding, merge
from sessionrun.model.asked import POLICIES
from sessionrun.store.session import SessionDir

_WORDS: Final = {"ready": "would land", "none": "no work"}
"""What people read for a status."""

_NOT_MERGED: Final = frozenset({"not_succeeded", "no_worktree", "rescued", "other_repository"})
"""Why a task cannot land: a failure where the command names the task."""


@session_verb(
    "merge",
    reads=False,
    headed=False,
    words=click.argument("words", nargs=-1, required=True, metavar="ID [TASK]..."),
)
@valued("--into", "BRANCH", "Where to.  [default: the branch the session began at]")
@valued("--gate gates", ShellCommand(), "Must exit 0 before it lands.", multiple=True)
@valued("--gate-timeout", Duration(), "For each gate.  [default: 1h]", default="1h")
@valued("--batch", Count(1), "At most N tasks at a time.  [default: 8, without gates all]")
@valued(
    "--choose",
    "WHICH",
    "Of several attempts at a task land one: the best.  [default: each of them]",
    click.Choice(["best"]),
)
@valued(
    "--sandbox",
    "POLICY",
    "Walls around the gates: none, project, strict.  [default: the session's]",
    click.Choice(POLICIES),
)
@click.option(
    "--take-branches",
    "take",
    flag_value="branches",
    help="Land branches as they are now, amended or reset ones too; not what was deleted.",
)
@click.option(
    "--take-recorded",
    "take",
    flag_value="recorded",
    help="Land what the tasks left, whatever became of the branches.",
)
@flag("--no-trailers", "Do not say in the merges whose work they are.")
@flag("--dry-run", "Forecast what would land and what conflicts; change nothing.")
def command(
    session: SessionDir,
    tasks: tuple[str, ...],
    *,
    gate_timeout: float,
    no_trailers: bool,
    **asked: Any,
) -> Answer:
    """Land the work of session ID's tasks on a branch, each task as a merge.

    Only tasks that succeeded land, and a task only after those that it needs.  A task whose work conflicts, or
    that makes a gate fail, is bounced; the others land.  The branch moves once for all that passed together,
    never to a commit that no gate has seen.  Ends with 1 if a task was bounced or waits, or
    if a TASK that is named cannot land (it failed, for example); with 75 if the branch cannot move now.
    """
    trailers = not no_trailers and load_setting("merge_trailers", Path.cwd(), os.environ) is not False
    wanted = AskedLanding(gate_timeout_s=gate_timeout or None, trailers=trailers, **asked)
    record = merge(session, tasks, wanted, lambda line: click.echo(escape_line(line), err=True))
    aside = [escape_line(remark) for remark in record["remarks"]]
    if record["hold"] is not None:
        aside += [escape_line(f"held: {record['hold']['reason']}")]
        aside += [escape(f"mend: {record['hold']['mend']}")] if record["hold"]["mend"] else []
    return Answer(record, _tell(record), _choose_code(record, named=bool(tasks)), aside)


def _choose_code(record: dict[str, Any], *, named: bool) -> int:
    if record["dry_run"]:
        return 0
    there = {task["group"] for task in record["tasks"] if task["status"] == "landed"} - {None}
    left = [task for task in record["tasks"] if task["group"] not in there]
    ends = {task["status"] for task in left}
    if "held" in ends:
        return EXIT_HELD
    missed = named and any(task["reason_class"] in _NOT_MERGED for task in left)
    return EXIT_FAILED if missed or ends & {"bounced", "waiting"} else 0


def _tell(record: dict[str, Any]) -> Iterator[str]:
    for task in record["tasks"]:
        word = "not chosen" if task["reason_class"] == "not_chosen" else _WORDS.get(task["status"], task["status"])
        word = "not merged" if task["reason_class"] in _NOT_MERGED else word
        line = f"{task['id']}: {word}"
        line += f" {task['commit'][:12]}" if task["commit"] else ""
        line += f": {task['reason']}" if task["reason"] else ""
        yield escape_line(line)
        if task["output"]:
            section = read_section("gate", [Path(task["output"])])
            yield from section_lines(*section, "    ") if section else ()
            yield f"    see {escape_line(task['output'])}"
    moved = "" if record["old"] == record["new"] else f"{record['old'][:12]} -> "
    gates = f", gates ran {record['gate_runs']} times" if record["gate_runs"] else ""
    yield f"{escape_line(record['target'])}: {moved}{record['new'][:12]}{gates}"
