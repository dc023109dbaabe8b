"""What runs beside the user's programs in one job: before WORK that sets its worktree back, and behind a SETUP."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import replace_file
from sessionrun.workspaces.request import NOT_BEGUN, WorkRequest

if TYPE_CHECKING:
    from sessionrun.model.places import Place
    from sessionrun.runtime.jobs.check.request import SetupRequest


def finish_setup(request: SetupRequest, folder: Path) -> Place:
    """Run the tests of an instance that should pass before the work, and commit what a SETUP left.

    If these tests cannot be run, a line says so, and the setup goes on.

    Raises:
        SessionrunError, OSError: what the setup left could not be committed.
    """
    if request.known is not None:
        from sessionrun.runtime.jobs.check.running import run_baseline  # few tasks have hidden tests

        try:
            run_baseline(request.known, request.walls, folder)
        except (SessionrunError, OSError) as error:
            print(error, file=sys.stderr)
    from sessionrun.workspaces.release import settle  # what the other of these jobs does not need

    return settle(request.workspace, folder)


def begin_work(request: WorkRequest, folder: Path) -> NoReturn:
    """Set the worktree back, and become the agent.

    Raises:
        SessionrunError, OSError: the worktree cannot be set back, or the agent not be started.
    """
    from sessionrun.workspaces.rounds import take_back  # what the other of these jobs does not need

    try:
        take_back(request, folder)
    except (SessionrunError, OSError) as error:
        replace_file(folder / NOT_BEGUN, str(error).encode("utf-8", "replace"), durable=False)
        raise
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an agent would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.execvp(request.argv[0], request.argv)
