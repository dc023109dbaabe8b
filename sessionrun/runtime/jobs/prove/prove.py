"""The steps of a PROVE: make the trees, do the check on each that matters, in a room of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

import orjson

from sessionrun.model.errors import JobFileError
from sessionrun.runtime.jobs.prove.request import ProveReport, ProveRequest, Ran
from sessionrun.runtime.jobs.prove.room import open_shell
from sessionrun.runtime.jobs.prove.verdict import State, find_verdict
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.jobfiles import load_record_if_any, read_tail
from sessionrun.workspaces.crossing import NotApplicable, Trees, cross
from sessionrun.workspaces.fence import Fence, open_fence
from sessionrun.workspaces.registration import hold_lock
from sessionrun.workspaces.room import open_room

TITLES: Final[dict[State, str]] = {
    "result": "on the base and the work",
    "old_tests": "on the work, with the tests and test set-up of the base",
    "kept_tests": "the same, with the test files that the task added",
    "base": "on the base, without the work",
    "new_tests": "on the base, with the tests and test set-up of the work",
}
TOLD_BYTES: Final = 4096
"""How much of the output of each check is printed."""

LONGEST_CHECK_S: Final = 7 * 86400.0
"""How long another task that does the same check on the same files is waited for."""


def prove(request: ProveRequest, folder: Path) -> ProveReport:
    """Find the verdict; done again after a crash, begin again with what is known.

    Raises:
        SessionrunError, OSError: no tree or room can be made.
    """
    if request.hidden is not None:
        from sessionrun.runtime.jobs.prove.hidden import judge_by_hidden_tests

        return judge_by_hidden_tests(request, request.hidden, folder)
    umask = os.umask(0o077)  # what lies in the session is for its user alone; a room is as the user would have it
    objects = folder / "objects"
    with open_fence(request.repository, folder, limit_s=request.limit_s) as fence:
        (objects / "info").mkdir(parents=True, exist_ok=True)
        real = Path(request.repository.common_dir, "objects")
        (objects / "info" / "alternates").write_bytes(os.fsencode(real) + b"\n")
        main = replace(fence.main(), trial=objects)
        try:
            trees = cross(main, request.place, request.test_files, folder)
        except NotApplicable as error:
            return ProveReport("unproved", str(error))
        work = _Work(fence, request, folder, objects, trees, umask)
        report = find_verdict(work.check, red=request.red, repeat=request.repeat)
    print(f"verdict: {report.verdict}", flush=True)
    return report


class _Work:
    """The checks of one proof."""

    def __init__(
        self, fence: Fence, request: ProveRequest, folder: Path, objects: Path, trees: Trees, umask: int
    ) -> None:
        self._fence = fence
        self._request = request
        self._folder = folder
        self._objects = objects
        self._trees = trees
        self._umask = umask

    def check(self, state: State, time: int) -> Ran:
        """The check on a state: what is known of it, or what it comes to now."""
        commit = str(getattr(self._trees, state))
        known = Path(self._request.known, f"{_digest(self._request, commit, time)}.json")
        make_directories(known.parent, 0o700)
        with hold_lock(known.with_suffix(".lock"), 0o600, LONGEST_CHECK_S):
            ran = _load_known(known)
            if ran is None:
                ran = self._check_now(state, time, commit)
                replace_file(known, orjson.dumps(ran), durable=False)
            print(f"{TITLES[state]}: {'passes' if ran.passed else f'fails: {ran.why}'}", flush=True)
        return ran

    def _check_now(self, state: State, time: int, commit: str) -> Ran:
        request = self._request
        output = self._folder / f"{state}{'' if time == 1 else f'-{time}'}.txt"
        with output.open("wb") as stream:
            os.umask(self._umask)
            try:
                with open_room(self._fence, request.owner, commit, self._objects) as room:
                    ran = _run_all(request, room, self._folder, stream)
            finally:
                os.umask(0o077)
        if not ran.passed:
            print(read_tail(output)[-TOLD_BYTES:].decode("utf-8", "replace"), flush=True)
        return ran


def _digest(request: ProveRequest, commit: str, time: int) -> str:
    """What a result depends on: the files, the commands and where they run; `time` counts repetitions."""
    parts = (commit, time, request.directory, request.setup, request.commands, sorted(request.env.items()))
    limits = (request.setup_timeout_s, request.check_timeout_s)
    python = None if request.environment is None else (request.environment.python,)
    return sha256(orjson.dumps((parts, limits, python))).hexdigest()


def _load_known(path: Path) -> Ran | None:
    try:
        return load_record_if_any(path, Ran)
    except JobFileError:
        return None  # it is done again


def _run_all(request: ProveRequest, room: Path, folder: Path, stream: IO[bytes]) -> Ran:
    with open_shell(request, room, folder, stream) as (shell, why):
        if shell is None:
            return Ran(False, why)
        for command in request.commands:
            why = shell.run(command, stream, request.check_timeout_s)
            if why is not None:
                return Ran(False, f"{why} of: {' '.join(command.split())}"[:200])
        return Ran(True)
