"""Where the work of tasks with worktrees is, and the commands that come next for a person who reads results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.cli.render import escape_line
from sessionrun.cli.status import whereabouts_lines
from sessionrun.client.landing.unlanded import find_unlanded
from sessionrun.client.reading.changes import is_unchanged
from sessionrun.store.session import SessionDir

Task = Mapping[str, Any]

MAX_NAMED: Final = 8


def work_lines(task: Task, place: str | None) -> list[str]:
    """What a task that ended left: its branch, in which other repository that is, and what still lies around."""
    lines = whereabouts_lines(task, "")
    if task["status"] != "completed" or not task["branch"] or task["rescue_branch"] or is_unchanged(task):
        return lines
    stat, where = task["diff_stat"], f" in {place}" if place else ""
    files = stat and ("1 file" if stat["files"] == 1 else f"{stat['files']} files")
    changes = f"{files}, +{stat['insertions']} -{stat['deletions']}" if stat else "changes unknown"
    return [escape_line(f"branch {task['branch']}{where}: {changes}"), *lines]


def next_lines(session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task]) -> list[str]:
    """The commands that land the work of these tasks, show it, and clear up, each with what it does."""
    name = view["session_id"][:8]
    found = find_unlanded(session, view, tasks)
    lines = []
    if found.others:
        lines.append(_word(("diff", name, *_name_few(found.others)), "what is not to land unseen"))
    if found.bounced:
        lines.append(_word(("merge", name, *_name_few(found.bounced)), "once it is mended on its branch"))
    if found.ready:
        chosen = () if len(tasks) == len(view["tasks"]) else found.ready
        lines.append(_word(("merge", name, *chosen), f"land what succeeded on {found.target}"))
    if found.merged or any(task["worktree"] and task["status"] == "completed" for task in tasks):
        lines.append(_word(("clean", "--worktrees", name), "remove worktrees and branches of work that is merged"))
    return ["\nNext:", *lines] if lines else []


def _name_few(names: Sequence[str]) -> Sequence[str]:
    """The tasks by name or, if they are many, all of the session."""
    return names if len(names) <= MAX_NAMED else ()


def _word(words: Sequence[str], what: str) -> str:
    return f"  sessionrun {' '.join(words)}  # {escape_line(what)}"
