"""The end of a SETUP in a worktree, and the tests of an instance that should pass before the work.

Such a test that does not pass shows what the environment of this machine lacks, so no round fails because of it.
They are run once, behind the user's commands, before what these left is committed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from sessionrun.model.checks import HiddenTests
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Place
from sessionrun.model.spec import TaskSpec
from sessionrun.walls.wish import WallsWish
from sessionrun.workspaces.request import WorkspaceRequest


@frozen
class SetupRequest:
    """What follows the commands of a SETUP: `known` tests run, perhaps inside of `walls`; then it is committed."""

    workspace: WorkspaceRequest
    known: HiddenTests | None = None
    walls: WallsWish | None = None


def name_known(task: TaskSpec) -> HiddenTests | None:
    """The tests that passed before the work, if the task has hidden ones; without the patch that brings others."""
    hidden = task.prove.hidden if task.prove is not None else None
    return None if hidden is None or task.check is None else replace(hidden, patch="", fail_to_pass=())


def finish_setup(request: SetupRequest, folder: Path) -> Place:
    """Do what the request asks.  If the hidden tests cannot be run, a line says so, and the setup goes on.

    Raises:
        SessionrunError, OSError: what the setup left could not be committed.
    """
    if request.known is not None:
        from sessionrun.runtime.jobs.check.running import run_baseline  # few tasks have hidden tests

        try:
            run_baseline(request.known, request.walls, folder)
        except (SessionrunError, OSError) as error:
            print(error, file=sys.stderr)
    from sessionrun.workspaces.settling import settle  # the supervisor needs none of it

    return settle(request.workspace, folder)
