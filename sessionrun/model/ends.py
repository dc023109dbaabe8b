"""Records of where a task ended, for the tasks that need it: a part of `model`."""

from __future__ import annotations

from typing import Final

from sessionrun.model.frozen import frozen


@frozen
class Handed:
    """Where a task ended that another one needs: `commit` holds its work, on `branch` while that is there.

    Without a commit nothing holds it, and `why` says so.  `earlier`: it ended in an earlier session, which may
    have begun elsewhere.  `follow`: if the branch goes on from the commit, its tip counts; for a user has looked
    at it since, and perhaps mended it.
    """

    task: str
    commit: str | None
    branch: str | None = None
    why: str | None = None
    earlier: bool = False
    follow: bool = False


@frozen
class Leftover:
    """A process that a job left behind: its command, and how it ended."""

    command: str
    how: str


STOPPED_BY_US: Final = "stopped by us"
KILLED_BY_AGENT: Final = "killed by the agent"
