"""A check in a clean room: its files and environment, then the setup, then the commands; what is known of it.

A result counts for all tasks of a session whose check is the same, on the same files, with the same environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

import orjson

from sessionrun.model.checks import Counts
from sessionrun.model.errors import JobFileError
from sessionrun.model.frozen import frozen
from sessionrun.runtime.jobs.check.junit import read_junit
from sessionrun.runtime.jobs.check.running import add_junit, find_report
from sessionrun.runtime.jobs.prove.request import ProveRequest, Ran
from sessionrun.runtime.jobs.prove.room import begin, make_variables
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.jobfiles import load_record_if_any, read_tail
from sessionrun.workspaces.bringing import bring_files
from sessionrun.workspaces.environments.make import find_digest
from sessionrun.workspaces.environments.removal import clear
from sessionrun.workspaces.environments.request import EnvironmentRequest
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.ignoring import ignore_words
from sessionrun.workspaces.registration import hold_lock
from sessionrun.workspaces.room import open_room

TOLD_BYTES: Final = 4096
"""How much of the output of each check is printed."""

LONGEST_CHECK_S: Final = 7 * 86400.0
"""How long another task that does the same check on the same files is waited for."""


@frozen
class Trials:
    """Where the checks of one proof are done.

    Attributes:
        fence: of the repository.
        request: what is to be proved.
        folder: the job's.
        objects: a directory of objects that holds the commits.
        umask: the user's.
    """

    fence: Fence
    request: ProveRequest
    folder: Path
    objects: Path
    umask: int

    def find(self, state: str, commit: str, time: int) -> Ran:
        """How the check ends on a commit: what is known of it, or what it comes to now.

        Args:
            state: what the files are called.
            commit: whose files the room has.
            time: which repetition it is, from 1.

        Raises:
            EnvironmentProblem: the environment cannot be made.
            SessionrunError, OSError: the room cannot be made.
        """
        request = self.request
        folder, stem = Path(request.known), _digest(request, commit, time)
        make_directories(folder, 0o700)
        with ExitStack() as stack:
            stack.enter_context(hold_lock(folder / f"{stem}.lock", 0o600, LONGEST_CHECK_S))
            room, known = None, folder / f"{stem}.json"
            if request.environment is not None:  # what it is made of is known from the files alone
                room = stack.enter_context(self._open(commit))
                digest = find_digest(request.environment, self.folder)
                known = folder / f"{stem}-{digest}.json"
            ran = _load_known(known)
            if ran is None:
                ran = self._try(
                    f"{state}{'' if time == 1 else f'-{time}'}", room or stack.enter_context(self._open(commit))
                )
                replace_file(known, orjson.dumps(ran), durable=False)
        return ran

    @contextmanager
    def _open(self, commit: str) -> Iterator[Path]:
        """The room, with what the task's worktree was given beside its commit."""
        request, workspace = self.request, self.request.workspace
        ignore = ignore_words(workspace.repository, self.folder)
        with ExitStack() as stack:
            if request.environment is not None:
                stack.callback(clear, Path(request.environment.target))
            with self._as_user():
                room = stack.enter_context(open_room(self.fence, workspace.owner, commit, self.objects))
                bring_files(self.fence.main(), workspace, room, ignore, in_room=True)
            yield room

    @contextmanager
    def _as_user(self) -> Iterator[None]:
        """What lies in the session is for its user alone; a room is as the user would have it."""
        mine = os.umask(self.umask)
        try:
            yield
        finally:
            os.umask(mine)

    def _try(self, name: str, room: Path) -> Ran:
        request = self.request
        own = {} if request.environment is None else self._make_environment(name, request.environment)
        output = self.folder / f"{name}.txt"
        with output.open("wb") as stream, self._as_user():
            ran = _run_all(request, room, own, stream, self.folder.absolute() / f"{name}-junit")
        if not ran.passed:
            print(read_tail(output)[-TOLD_BYTES:].decode("utf-8", "replace"), flush=True)
        return ran

    def _make_environment(self, name: str, wish: EnvironmentRequest) -> dict[str, str]:
        folder = self.folder / f"{name}-environment"
        make_directories(folder, 0o700)
        return make_variables(wish, folder)


def _digest(request: ProveRequest, commit: str, time: int) -> str:
    """What a result depends on, beside its environment: files, commands and where they run."""
    parts = (commit, time, request.directory, request.setup, request.commands, sorted(request.env.items()))
    limits = (request.setup_timeout_s, request.check_timeout_s)
    walled = None if request.walls is None else request.walls.argv
    return sha256(orjson.dumps((parts, limits, request.workspace.links, walled))).hexdigest()


def _load_known(path: Path) -> Ran | None:
    try:
        return load_record_if_any(path, Ran)
    except JobFileError:
        return None  # it is done again


def _run_all(request: ProveRequest, room: Path, own: Mapping[str, str], stream: IO[bytes], junit: Path) -> Ran:
    shell, why = begin(request, room, own, stream)
    if shell is None:
        return Ran(False, why)
    counts: Counts | None = None
    for number, command in enumerate(request.commands, 1):
        place = find_report(junit.parent, f"{junit.name}-{number}.xml", shell.walls)
        added = add_junit(shell.environ, place, walls=shell.walls)
        why = shell.run(command, stream, request.check_timeout_s, added)
        tests = read_junit(place)
        if tests is not None:
            counts = tests.counts if counts is None else counts.plus(tests.counts)
            why = why or (None if tests.counts.total else "no test was found")
        if why is not None:
            return Ran(False, f"{why} of: {' '.join(command.split())}"[:200], counts)
    return Ran(True, None, counts)
