"""Which of the worktrees that stay a task works in: the lowest number that no other task of the session holds.

The number is chosen when PREPARE is claimed.  PREPARE may find that seat taken, by another session or by work that
is not ours, and take the next: then its answer says which.  The task holds the seat until its RELEASE is over.
"""

from __future__ import annotations

from itertools import count

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState


def take_seat(state: State, task: TaskState) -> None:
    """PREPARE is claimed; a second one of the attempt goes to the same seat."""
    if state.spec.seats is None or task.spec.workspace.kind != "worktree" or task.seat is not None:
        return
    task.seat = next(number for number in count(1) if number not in state.seats)
    state.seats[task.seat] = task.spec.id


def keep_seat(state: State, task: TaskState) -> None:
    """The seat is that which the job found, also if another one was chosen."""
    found = task.place.seat if task.place is not None else None
    if found is None or found == task.seat or task.seat is None:
        return
    leave_seat(state, task)
    task.seat = found
    state.seats[found] = task.spec.id


def leave_seat(state: State, task: TaskState) -> None:
    """The attempt is over: the next task may have its seat."""
    if task.seat is not None and state.seats.get(task.seat) == task.spec.id:
        del state.seats[task.seat]
    task.seat = None
