"""Runs commands of a proof in its clean room: the set-up of the task first, then what is checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sessionrun.runtime.jobs.commands import AND_THEN
from sessionrun.runtime.jobs.prove.request import ProveRequest
from sessionrun.walls.argv import Enclosure
from sessionrun.workspaces.environments.make import make_environment
from sessionrun.workspaces.environments.removal import clear
from sessionrun.workspaces.environments.request import EnvironmentProblem, EnvironmentRequest, name_variables
from sessionrun.workspaces.shell import run_script


class Shell:
    """Shells in one room, one after the other, with the variables `environ`.

    `code` is how the last script ended, None if its time was up.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str], walls: Enclosure | None = None) -> None:
        self.directory = directory
        self.walls = walls
        self.code: int | None = None
        self.environ = environ

    def run(
        self,
        script: str,
        stream: IO[bytes],
        timeout_s: float | None,
        environ: Mapping[str, str] | None = None,
    ) -> str | None:
        """Run a script and end all that it leaves in its group; in words why it did not pass, else None."""
        self.code = None
        variables = {**self.environ, **(environ or {})}
        self.code, why = run_script(script, self.directory, variables, stream, timeout_s, walls=self.walls)
        return why


@contextmanager
def open_shell(
    request: ProveRequest, room: Path, folder: Path, stream: IO[bytes]
) -> Iterator[tuple[Shell | None, str | None]]:
    """The shell of a room whose set-up is done; or None, and in one line why there is none.

    Its environment is made for it, and goes with it: never the task's own, which the agent may have changed.

    Args:
        request: what is proved.
        room: where.
        folder: the job's.
        stream: gets what the set-up prints.

    Raises:
        SessionrunError, OSError: the environment cannot be removed.
    """
    wish = request.environment
    if wish is None:
        yield begin(request, room, {}, stream)
        return
    target = Path(wish.target)
    clear(target)
    try:
        yield _begin_in(wish, request, room, folder, stream)
    finally:
        clear(target)


def _begin_in(
    wish: EnvironmentRequest, request: ProveRequest, room: Path, folder: Path, stream: IO[bytes]
) -> tuple[Shell | None, str | None]:
    try:
        return begin(request, room, make_variables(wish, folder), stream)
    except EnvironmentProblem as error:
        return None, f"its environment: {error}"


def begin(
    request: ProveRequest, room: Path, own: Mapping[str, str], stream: IO[bytes]
) -> tuple[Shell | None, str | None]:
    """The shell of a room whose set-up is done, or in one line why there is none; `own` are its variables."""
    directory = room / request.directory
    if not directory.is_dir():
        return None, f"there is no directory {request.directory}"
    outer = os.environ if request.walls is None else request.walls.env
    environ = {**outer, "SESSIONRUN_WORKTREE": str(room), "SESSIONRUN_BRANCH": "", **own}
    shell = Shell(directory, environ, request.walls)
    if request.setup:
        why = shell.run(AND_THEN.join(request.setup), stream, request.setup_timeout_s)
        if why is not None:
            return None, f"its setup: {why}"
    return shell, None


def make_variables(wish: EnvironmentRequest, folder: Path) -> dict[str, str]:
    """Make the environment of a room; the variables by which programs find it.

    Raises:
        EnvironmentProblem: it cannot be made.
    """
    report = make_environment(wish, folder)
    if report.problem is not None:
        raise EnvironmentProblem(report.problem)
    return name_variables(wish.target, os.environ.get("PATH") or os.defpath, os.environ)
