"""Runs commands of a proof in its clean room: the set-up of the task first, then what is checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

from sessionrun.runtime.jobs.check.junit import Tests
from sessionrun.runtime.jobs.check.running import run_counted
from sessionrun.runtime.jobs.commands import AND_THEN
from sessionrun.runtime.jobs.prove.request import ProveRequest
from sessionrun.walls.argv import Enclosure
from sessionrun.workspaces.environments.make import make_environment
from sessionrun.workspaces.environments.request import (
    BuildWalls,
    EnvironmentProblem,
    EnvironmentRequest,
    name_variables,
)
from sessionrun.workspaces.shell import Ended, run_script


class Shell(NamedTuple):
    """Where scripts run in one room, one after the other, and their variables."""

    directory: Path
    environ: Mapping[str, str]
    walls: Enclosure | None = None

    def run(self, script: str, stream: IO[bytes], limit_s: float | None) -> Ended:
        """Run a script and end all that it leaves."""
        return run_script(script, self.directory, self.environ, stream, limit_s, walls=self.walls)

    def run_counted(
        self, script: str, stream: IO[bytes], limit_s: float | None, report: Path, *words: str
    ) -> tuple[Ended, Tests | None]:
        """The same, and what pytest reported; see `running.run_counted`."""
        where = self.directory, self.environ
        return run_counted(script, *where, stream, limit_s, report, *words, walls=self.walls)


def begin(
    request: ProveRequest, room: Path, own: Mapping[str, str], stream: IO[bytes], walls: Enclosure | None
) -> tuple[Shell | None, str | None]:
    """The shell of a room whose set-up is done, or in one line why there is none; `own` are its variables."""
    directory = room / request.directory
    if not directory.is_dir():
        return None, f"there is no directory {request.directory}"
    outer = os.environ if walls is None else walls.env
    environ = {**outer, "SESSIONRUN_WORKTREE": str(room), "SESSIONRUN_BRANCH": "", **own}
    shell = Shell(directory, environ, walls)
    if request.setup:
        ended = shell.run(AND_THEN.join(request.setup), stream, request.setup_timeout_s)
        if ended.why is not None:
            return None, f"its setup: {ended.why}"
    return shell, None


def make_variables(wish: EnvironmentRequest, folder: Path, walls: BuildWalls | None) -> dict[str, str]:
    """Make the environment of a room; the variables by which programs find it.

    Raises:
        EnvironmentProblem: it cannot be made.
    """
    report = make_environment(wish, folder, walls)
    if report.problem is not None:
        raise EnvironmentProblem(report.problem)
    outer = os.environ if walls is None else walls.env
    return name_variables(wish.target, outer.get("PATH") or os.defpath, outer)
