"""What the jobs of a round in a worktree are asked; `between` does it, in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.workspaces.request import WorkspaceRequest

NOT_BEGUN: Final = "not-begun"
"""In the folder of a WORK job whose agent was not started, because the worktree could not be set back: why."""


@frozen
class Loop:
    """A round of a task with a worktree: `workspace` as RELEASE is asked, and which round of which attempt."""

    workspace: WorkspaceRequest
    attempt: int
    round: int

    @property
    def name(self) -> str:
        """The name of its ref."""
        return f"a{self.attempt}-round-{self.round}"


@frozen
class WorkRequest:
    """A WORK job before which the worktree is set back.

    Attributes:
        loop: the round that is taken back.
        argv: the agent.
        first: the folder of the round's first WORK job, which says whether it was done.
        before: the folder of the last round's WORK job, for its patch if no CHECK kept it.
        env: all variables of the agent; None: those of the job.
    """

    loop: Loop
    argv: tuple[str, ...]
    first: str
    before: str
    env: Mapping[str, str] | None = None
