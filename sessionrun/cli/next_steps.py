"""Where the work of tasks with worktrees is, and the commands that a person may want next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.cli.facts import whereabouts_lines
from sessionrun.cli.render import escape_line
from sessionrun.client.landing.unlanded import find_unlanded
from sessionrun.client.lookup import name_for_command
from sessionrun.client.reading.changes import is_unchanged
from sessionrun.model.words import BAD
from sessionrun.store.session import SessionDir

Task = Mapping[str, Any]

MAX_NAMED: Final = 8
MOST_STEPS: Final = 3


def work_lines(task: Task, place: str | None) -> list[str]:
    """What a task that ended left: its branch, in which other repository that is, and what still lies around."""
    lines = whereabouts_lines(task, "")
    if task["status"] != "completed" or not task["branch"] or task["rescue_branch"] or is_unchanged(task):
        return lines
    stat, where = task["diff_stat"], f" in {place}" if place else ""
    files = stat and ("1 file" if stat["files"] == 1 else f"{stat['files']} files")
    changes = f"{files}, +{stat['insertions']} -{stat['deletions']}" if stat else "changes unknown"
    return [escape_line(f"branch {task['branch']}{where}: {changes}"), *lines]


def next_lines(session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task], *, verb: str) -> list[str]:
    """What a person does next about these tasks, at most three commands; not the `verb` that shows them."""
    name = name_for_command(view)
    steps = [step for step in _find_steps(session, view, tasks) if step[0] != verb]
    lines = [
        "  " + " ".join(["sessionrun", command, name, *words]) + (f"    # {escape_line(why)}" if why else "")
        for command, words, why in steps[:MOST_STEPS]
    ]
    return ["", "Next:", *lines] if lines else []


def _find_steps(
    session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task]
) -> list[tuple[str, Sequence[str], str]]:
    """Commands in the order of their weight: the verb, what comes behind the session, and what it does."""
    words = {task["word"] for task in tasks}
    is_open = view["ended_at"] is None
    found = find_unlanded(session, view, tasks)
    retried = ["--failed"] if words & {"failed", "timed_out"} else []
    asks = any(
        task["word"] == "held" and task["status"] != "completed" and not task["held_until"] for task in tasks
    )
    left = [task for task in tasks if task["worktree"] and task["status"] == "completed"]
    kept = [task["id"] for task in tasks if task["word"] == "held" and task["status"] == "completed"]
    ready = () if len(tasks) == len(view["tasks"]) else found.ready
    steps: list[tuple[object, str, Sequence[str], str]] = [
        (view["state"] == "stopped", "resume", (), "let it go on"),
        (is_open and asks, "release", (), "let the held ones start"),
        (found.bounced, "merge", _name_few(found.bounced), "after the work is mended on its branch"),
        (kept, "merge", _name_few(kept), "once nothing keeps the work from landing"),
        (words.intersection(BAD), "results", ("--failed",), "why"),
        (words.intersection(BAD), "retry", retried, ""),
        (found.others, "diff", _name_few(found.others), "what is not to land unseen"),
        (found.ready, "merge", ready, f"land what succeeded on {found.target}"),
        (found.merged or left, "clean", ("--worktrees",), "remove worktrees and branches of work that is merged"),
    ]
    return [(verb, words, why) for is_due, verb, words, why in steps if is_due]


def _name_few(names: Sequence[str]) -> Sequence[str]:
    """The tasks by name or, if they are many, all of the session."""
    return names if len(names) <= MAX_NAMED else ()
