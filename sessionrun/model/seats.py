"""Frozen record of the worktrees that stay after their task: the next task of a session works in the same one.

A part of `model`.  This module must not know git, files or processes.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from sessionrun.model.frozen import frozen

Placement = Literal["inside", "sibling"]
PLACEMENTS: Final[tuple[Placement, ...]] = get_args(Placement)

INSIDE: Final = "worktrees"
"""The directory in the user's checkout for seats that lie inside."""

TASK_FILE: Final = ".current_task.txt"
"""In a seat while a task has it: the task's prompt."""

PREFIX: Final = "w"
"""What the names of seats begin with, of those that lie inside."""


@frozen
class Seats:
    """Where the worktrees that stay lie: `prefix` and a number, from 1, in `directory` (absolute)."""

    directory: str
    prefix: str = PREFIX
    placement: Placement = "inside"

    def path_of(self, number: int) -> str:
        """The worktree of this number."""
        return f"{self.directory}/{self.prefix}{number}"
