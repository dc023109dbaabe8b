"""The beginning of WORK in a round whose worktree is set back first: then this process becomes the agent."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

from sessionrun.model.errors import SessionrunError
from sessionrun.store.files import replace_file
from sessionrun.workspaces.between import take_back
from sessionrun.workspaces.request import NOT_BEGUN, WorkRequest


def begin_work(request: WorkRequest, folder: Path) -> NoReturn:
    """Set the worktree back, and execute the agent.

    Raises:
        SessionrunError, OSError: the worktree cannot be set back, or the agent not be started.
    """
    try:
        take_back(request, folder)
    except (SessionrunError, OSError) as error:
        replace_file(folder / NOT_BEGUN, str(error).encode("utf-8", "replace"), durable=False)
        raise
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an agent would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.execvp(request.argv[0], request.argv)
