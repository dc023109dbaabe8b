"""What a PROVE is asked for; see `runtime.jobs.job`.  What it answers is in `model.reports`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.model.spec import Check, Prove
from sessionrun.walls.wish import WallsWish
from sessionrun.workspaces.environments.request import EnvironmentRequest
from sessionrun.workspaces.request import WorkspaceRequest

SOURCE_PATCH: Final = "source.patch"
"""In the folder of a PROVE by hidden tests: what the work changes, without tests and test set-up."""

OBJECTS: Final = "objects"
"""In the folder of a PROVE while it runs: the objects of the trees that it compares."""


@frozen
class ProveRequest:
    """What is to be proved.

    Attributes:
        workspace: the task's; its place has the work, `commit`, above `work_base`.
        directory: where the commands run, from the top of the repository.
        setup: shell commands that prepare a room, in one shell.
        check: the task's; its commands have a shell of their own each.
        prove: what of it is to be proved, or the tests that take its place.
        env: variables that the task's jobs are given; checks with others are not the same.
        setup_timeout_s: how long the setup may take (seconds); None: any time.
        known: the session's directory for results of checks, by what they were done on.
        environment: what each room gets, if the task has one.
        walls: of the task, around the rooms.
    """

    workspace: WorkspaceRequest
    directory: str
    setup: tuple[str, ...]
    check: Check
    prove: Prove
    env: Mapping[str, str]
    setup_timeout_s: float | None
    known: str
    environment: EnvironmentRequest | None = None
    walls: WallsWish | None = None
