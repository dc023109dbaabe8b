"""What a person does next about a session: commands in the order of their weight.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sessionrun.model.wording import Task, View, short_id
from sessionrun.model.words import BAD

MOST_NAMED = 8
"""More tasks than this are not named in a command."""


class Unlanded(NamedTuple):
    """The ids of tasks with work on a branch of their own, by what a person does with it.

    Attributes:
        target: the branch from which the session's worktrees began.
        ready: whose work `merge` lands; with the tasks on whose work theirs is built.
        bounced: whose work did not fit, and fits perhaps once it is mended.
        others: what is to be looked at first, because the task did not succeed or its work is not whole.
        merged: whose branch is no longer needed.
    """

    target: str = ""
    ready: tuple[str, ...] = ()
    bounced: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()


class Step(NamedTuple):
    """A command: the verb, what stands behind the session, and what it does; whether a person is needed for it."""

    verb: str
    words: Sequence[str]
    why: str
    needed: bool = True


def list_steps(view: View, tasks: Sequence[Task], found: Unlanded | None = None) -> list[Step]:
    """What is next for these tasks; None: of branches only what the tasks themselves say is known."""
    by_word: dict[str, list[Task]] = {}
    for task in tasks:
        by_word.setdefault(task["word"], []).append(task)
    held = by_word.get("held", [])
    asks = [task for task in held if task["status"] != "completed" and not (found and task["held_until"])]
    kept = [task["id"] for task in held if task["status"] == "completed"]
    nothing = [short_id(task) for task in by_word.get("changed_nothing", [])]
    bad = [task for word in BAD for task in by_word.get(word, [])]
    left = [task for task in tasks if task["worktree"] and task["status"] == "completed"] if found else []
    found = found or Unlanded(bounced=tuple(short_id(task) for task in by_word.get("bounced", [])))
    retried = ["--failed"] if bad and "lost" not in by_word else []
    ready = () if len(tasks) == len(view["tasks"]) else found.ready
    steps: list[tuple[object, Step]] = [
        (view["state"] == "stopped", Step("resume", (), "let it go on")),
        (view["ended_at"] is None and asks, Step("release", (), "let the held ones start")),
        (found.bounced, Step("merge", _name_few(found.bounced), "after the work is mended on its branch")),
        (kept, Step("merge", _name_few(kept), "once nothing keeps the work from landing")),
        (bad, Step("results", ("--failed",), "why", needed=False)),
        (bad, Step("retry", retried, "")),
        (found.others, Step("diff", _name_few(found.others), "what is not to land unseen", needed=False)),
        (found.ready, Step("merge", ready, f"land what succeeded on {found.target}", needed=False)),
        (
            found.merged or left,
            Step("clean", ("--worktrees",), "remove worktrees and branches of work that is merged", needed=False),
        ),
        (nothing, Step("results", _name_few(nothing), "nothing changed; is there nothing to do?")),
    ]
    return [step for is_due, step in steps if is_due]


def _name_few(names: Sequence[str]) -> Sequence[str]:
    """The tasks by name or, if they are many, all of the session."""
    return names if len(names) <= MOST_NAMED else ()
