"""Follow-ups: what a user asks of a task after its end, and what its further attempts go on with.

Pure.  A further attempt goes on in the task's conversation and on its branch, where the attempt before it ended.
So do the attempts that `retries` gives, and those that a user asks for.  What PREPARE makes of that place, and
what the agent is told, is not known here.
"""

from __future__ import annotations

from typing import Final

from sessionrun.engine.landing import is_being_landed
from sessionrun.engine.state import State
from sessionrun.engine.task import NO_THREAD, TaskState, Thread
from sessionrun.model.events import RequestReceived
from sessionrun.model.places import Place
from sessionrun.model.reasons import CONTEXT_FULL, NO_CONVERSATION

ENDS_CONVERSATION: Final = frozenset((CONTEXT_FULL, NO_CONVERSATION))
"""Reasons of an attempt after which its conversation cannot go on."""


def find_follow_up_fault(state: State, request: RequestReceived) -> str | None:
    """Why the task of a request cannot be continued; None: it can."""
    if len(request.tasks) != 1 or not (request.text or "").strip():
        return "it has to name one task and a text"
    task = state.tasks[request.tasks[0]]
    name = f"task {task.spec.id!r:.140}"
    if state.ended is None and state.cancelled:
        return "the session is being cancelled"
    if task.spec.mend is not None:
        return f"{name} mends the work of {task.spec.mend.task!r:.140}: continue that one"
    if task.outcome is None:
        return f"{name} has not ended"
    if task.spec.upstream is not None:
        return f"{name} worked in a repository of its own, which may be gone"
    if task.started_at is None:
        return f"{name} has not begun: there is nothing to go on with"
    return f"the work of {name} is landing" if is_being_landed(state, task) else None


def ask_more(task: TaskState, text: str) -> None:
    """Note a follow-up of a task that has ended; its next attempt works on that."""
    task.follow_ups, task.follow_up_attempt = (*task.follow_ups, text), task.attempt + 1
    if task.outcome == "succeeded":
        task.handed_place = task.place


def take_up(task: TaskState) -> None:
    """An attempt begins: after a follow-up it goes on in the conversation of the attempt before it."""
    if task.follow_ups:
        last = NO_THREAD if task.reason_class in ENDS_CONVERSATION else task.last_thread
        task.thread = Thread(last.conversation, last.usage, turn=len(task.spec.prompts))


def keep_place(task: TaskState) -> None:
    """A PREPARE is claimed: after a follow-up it is asked to go on where the work lies now."""
    if task.follow_ups and task.place is not None and task.place.base_commit is not None:
        task.earlier_place = task.place


def find_earlier(task: TaskState) -> Place | None:
    """Where an attempt goes on with earlier work; None: there is none, and it begins as a first attempt does."""
    place = task.earlier_place
    return None if place is None or is_empty(place) else place


def is_empty(place: Place) -> bool:
    """Whether nothing is left of an attempt's workspace: neither work nor a branch."""
    has_work = place.commit is not None and not place.holds_no_work
    return place.branch is None and place.worktree is None and not has_work
