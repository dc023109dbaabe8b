"""Runs commands of a proof in its clean room: the set-up of the task first, then what is checked."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sessionrun.runtime.jobs.commands import AND_THEN
from sessionrun.runtime.jobs.prove.request import ProveRequest
from sessionrun.runtime.jobs.shared import SHELL


class Shell:
    """Shells in one room, one after the other; `code` is how the last script ended, None if its time was up."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self.directory = directory
        self.code: int | None = None
        self._environ = environ

    def run(
        self,
        script: str,
        stream: IO[bytes],
        timeout_s: float | None,
        environ: Mapping[str, str] | None = None,
    ) -> str | None:
        """Run a script and end all that it leaves in its group; in words why it did not pass, else None."""
        process = subprocess.Popen(
            [SHELL, "-ec", script],
            cwd=self.directory,
            env={**self._environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.code = None
        try:
            self.code = code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"not done after {timeout_s:g} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass  # nothing of it is left
            process.wait()
        return None if code == 0 else f"exit code {code}" if code > 0 else f"signal {-code}"


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
    directory = room / request.directory
    if not directory.is_dir():
        yield None, f"there is no directory {request.directory}"
        return
    environ = {**os.environ, "SESSIONRUN_WORKTREE": str(room), "SESSIONRUN_BRANCH": ""}
    if request.environment is None:
        yield _set_up(request, Shell(directory, environ), stream)
        return
    from sessionrun.workspaces.environments.make import make_environment
    from sessionrun.workspaces.environments.removal import clear
    from sessionrun.workspaces.environments.request import name_variables

    target = Path(request.environment.target)
    clear(target)
    try:
        report = make_environment(request.environment, folder)
        if report.problem is not None:
            yield None, f"its environment: {report.problem}"
            return
        own = name_variables(str(target), environ.get("PATH") or os.defpath, os.environ)
        yield _set_up(request, Shell(directory, {**environ, **own}), stream)
    finally:
        clear(target)


def _set_up(request: ProveRequest, shell: Shell, stream: IO[bytes]) -> tuple[Shell | None, str | None]:
    if request.setup:
        why = shell.run(AND_THEN.join(request.setup), stream, request.setup_timeout_s)
        if why is not None:
            return None, f"its setup: {why}"
    return shell, None
