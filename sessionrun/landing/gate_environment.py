"""The environment in which gates run: made for each candidate from its own inputs, and removed after its gates.

It is a copy of an entry of the cache, like the environment of a task, and never one in which an agent worked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sessionrun.landing.records import GateEnvironment
from sessionrun.workspaces.environments.make import make_environment
from sessionrun.workspaces.environments.removal import clear
from sessionrun.workspaces.environments.request import (
    EnvironmentProblem,
    EnvironmentRequest,
    Tenant,
    find_target,
    name_variables,
)


def locate_environment(wish: GateEnvironment, session_id: str, room: Path) -> str:
    """Where the environment of a room is, while its gates run; no task has the name of a room."""
    return find_target(wish.cache, session_id, room.name, 1, in_room=True)


@contextmanager
def open_environment(
    wish: GateEnvironment, session_id: str, room: Path, commit: str, folder: Path
) -> Iterator[Mapping[str, str]]:
    """The variables by which programs find the environment of a room.

    Args:
        wish: what is asked for.
        session_id: of the session that lands.
        room: where the candidate is checked out.
        commit: the candidate.
        folder: for the report and the logs of a build.

    Raises:
        EnvironmentProblem: it cannot be made.
        OSError: it cannot be removed.
    """
    task, target = room.name, locate_environment(wish, session_id, room)
    request = EnvironmentRequest(
        top=str(room),
        directory=str(room),
        cache=wish.cache,
        target=target,
        owner=f"{session_id}/{task}",
        python=wish.python,
        require_cache=wish.require_cache,
        tenant=Tenant(wish.session, session_id, task, 1, in_room=True),
        commit=commit,
        walls=wish.walls,
    )
    clear(Path(target))
    try:
        report = make_environment(request, folder)
        if report.problem is not None:
            raise EnvironmentProblem(report.problem)
        yield name_variables(target, os.environ.get("PATH") or os.defpath, os.environ)
    finally:
        clear(Path(target))
