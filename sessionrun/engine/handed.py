"""Finds what a task goes on with: what its needs hand on to it, and after a follow-up its own earlier work.

Must not know how that becomes the commit at which the task begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sessionrun.engine.task import TaskState
from sessionrun.model.places import Handed, Place
from sessionrun.model.repositories import has_worktree


def find_handed(task: TaskState, tasks: Mapping[str, TaskState]) -> tuple[Handed, ...]:
    """Where the needs of a task ended, each once, in their order; nothing where it begins with the session.

    A need that changed nothing, or has no worktree, has nothing of its own; in its place stand its own needs.  An
    attempt that a user asked for follows the branches.
    """
    asked_for = task.attempt - task.retried > 1
    ends = {end.task: end for end in _walk(task, tasks)}
    return tuple(replace(end, follow=end.follow or asked_for) for end in ends.values())


def find_end(task: TaskState) -> Place | None:
    """Where the work of a task ended; until its follow-up has succeeded, this is where it ended before."""
    before = task.handed_place
    return task.place if before is None or task.outcome == "succeeded" else before


def _walk(task: TaskState, tasks: Mapping[str, TaskState]) -> Iterator[Handed]:
    stack = [task]
    seen = {task.spec.id}
    while stack:
        at = stack.pop()
        place = find_end(at)
        holds_no_work = place is not None and place.holds_no_work
        if at is not task and has_worktree(at.spec) and not holds_no_work:
            end = place or Place()
            if end.commit is not None:
                yield Handed(at.spec.id, end.commit, end.rescue or end.branch)
            else:
                why = end.remark or end.kept or "nothing says where its work is"
                yield Handed(at.spec.id, None, end.branch, why)
        elif at.spec.base != "session":
            needs = [need for need in at.spec.needs if need in tasks and need not in seen]
            seen.update(needs)
            stack += [tasks[need] for need in reversed(needs)]


def find_earlier(task: TaskState) -> Place | None:
    """Where an attempt goes on with earlier work; None: there is none, and it begins as a first attempt does."""
    place = task.earlier_place
    return None if place is None or is_empty(place) else place


def is_empty(place: Place) -> bool:
    """Whether nothing is left of an attempt's workspace: neither work nor a branch."""
    has_work = place.commit is not None and not place.holds_no_work
    return place.branch is None and place.worktree is None and not has_work
