"""What runs before the user's programs in one job: what sets a worktree back, and what makes an environment."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import NOT_BEGUN, load_request
from sessionrun.worktrees.request import WorkRequest

if TYPE_CHECKING:
    from sessionrun.worktrees.env_request import EnvironmentReport


def begin_work(folder: Path) -> NoReturn:
    """Set the worktree back, and become the agent.

    Raises:
        SessionrunError, OSError: the worktree cannot be set back, or the agent not be started.
    """
    from sessionrun.worktrees.rounds import take_back  # what the other of these jobs does not need

    request = load_request(folder, WorkRequest)
    try:
        take_back(request, folder)
    except (SessionrunError, OSError) as error:
        replace_file(folder / NOT_BEGUN, str(error).encode("utf-8", "replace"), durable=False)
        raise
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an agent would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.execvp(request.argv[0], request.argv)


def make_environment(folder: Path) -> EnvironmentReport:
    """Make the environment that a SETUP begins with, and leave a report.

    Raises:
        SessionrunError, OSError: the request cannot be used, or its walls not be built.
    """
    from sessionrun.walls.build import raise_if_any  # what the other of these jobs does not need
    from sessionrun.worktrees.env_make import make_environment as make
    from sessionrun.worktrees.env_request import load_wish

    request = load_wish(folder)
    report = make(request, folder, raise_if_any(request.walls, builds=True))
    if report.problem is not None:
        print(f"environment: {report.problem}", file=sys.stderr)
    return report
