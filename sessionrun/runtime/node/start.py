"""Starts the root of a node, detached from its caller: ``start.py DIRECTORY``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sessionrun.model.errors import StoreError
from sessionrun.runtime.launch import LOCK_TIMEOUT_S, start_detached
from sessionrun.runtime.node.directory import CALM, NODE_VARIABLE
from sessionrun.runtime.node.successor import LOOP_VARIABLE
from sessionrun.store import locks
from sessionrun.store.session import SessionDir

LINK = "sessionrun.runtime.node.main"


def main() -> None:
    """Start it, unless it lives; exit code 1 and the reason on standard error if it does not come up."""
    directory = Path(sys.argv[1])
    calm = (name for name, value in CALM.items() if os.environ.get(name) == value)
    for name in (NODE_VARIABLE, LOOP_VARIABLE, *calm):
        os.environ.pop(name, None)  # these are for the worker, not for jobs
    try:
        lock_fd = locks.hold(directory / "root.lock", timeout_s=LOCK_TIMEOUT_S)
        if lock_fd is not None:
            start_detached(SessionDir(directory), lock_fd, new=False, program=LINK)
    except (StoreError, OSError) as error:
        sys.exit(str(error))
