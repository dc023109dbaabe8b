"""Makes the environment of one task: looks what decides about it, builds an entry if there is none, copies it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import EnvironmentStep
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import load_record
from sessionrun.store.trees import discard_entry, hold_entry, make_entry, share_entry, sweep_entry, sync_files
from sessionrun.walls.argv import Enclosure
from sessionrun.walls.build import raise_if_any
from sessionrun.worktrees.env_building import Builder, Steps
from sessionrun.worktrees.env_copying import Manifest, copy_entry, load_manifest
from sessionrun.worktrees.env_inputs import (
    PROJECT_FILES,
    collect_all,
    collect_inputs,
    find_project,
    make_digest,
    read_texts,
)
from sessionrun.worktrees.env_interpreter import Programs, clean_environ, find_programs
from sessionrun.worktrees.env_request import (
    MANIFEST,
    REPORT,
    WISH,
    EnvironmentProblem,
    EnvironmentReport,
    EnvironmentRequest,
    name_variables,
)
from sessionrun.worktrees.env_version import find_tag


def make_first(folder: Path) -> EnvironmentReport:
    """Make the environment that the SETUP of this folder begins with.

    Raises:
        SessionrunError, OSError: the request cannot be used, or its walls not be built.
    """
    request = load_record(folder / WISH, EnvironmentRequest)
    report = make_environment(request, folder, raise_if_any(request.walls, builds=True))
    if report.problem is not None:
        print(f"environment: {report.problem}", file=sys.stderr)
    return report


def make_environment(
    request: EnvironmentRequest, folder: Path, walls: Enclosure | None = None
) -> EnvironmentReport:
    """Make the environment and leave a report in `folder`, beside the logs of what ran; done again, do it anew.

    `walls` are those that the request wishes for.  The report says what is wrong if there is no environment: that
    is a failure of the machine, not of the task.
    """
    making = _Making(request, walls, Steps(folder))
    try:
        report = making.make()
    except (SessionrunError, OSError) as error:
        report = EnvironmentReport(digest=making.digest, steps=tuple(making.steps.done), problem=str(error))
    replace_file(folder / REPORT, orjson.dumps(report, option=orjson.OPT_INDENT_2), durable=False)
    return report


def provide_environment(
    request: EnvironmentRequest, folder: Path, walls: Enclosure | None = None
) -> dict[str, str]:
    """Make the environment of a room, as `make_environment` does; the variables by which programs find it.

    Raises:
        EnvironmentProblem: it cannot be made.
    """
    report = make_environment(request, folder, walls)
    if report.problem is not None:
        raise EnvironmentProblem(report.problem)
    outer = os.environ if walls is None else walls.env
    return name_variables(request.target, outer.get("PATH") or os.defpath, outer)


def find_digest(
    request: EnvironmentRequest,
    folder: Path,
    walls: Enclosure | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """The digest of what decides about an environment; nothing is made.

    Args:
        folder, walls: as of `make_environment`.
        environ: the variables of the process that would make it; None: those of this one.

    Raises:
        EnvironmentProblem, OSError: an interpreter or uv is missing, or the inputs cannot be read.
    """
    making = _Making(request, walls, Steps(folder))
    making.look(os.environ if environ is None else environ)
    return making.digest


@dataclass
class _Making:
    """One environment under way.  The fields from `digest` on are what decides about it: `look` finds that.

    Attributes:
        request, walls: as of `make_environment`.
        steps: what was done.
        digest: of all that decides; "" while it is not known.
        project: a directory in `top`, the checkout.
        environ: the variables of a build.
        circumstances: what is in the digest beside files.
    """

    request: EnvironmentRequest
    walls: Enclosure | None
    steps: Steps
    digest: str = field(default="", init=False)
    top: Path = field(init=False)
    project: Path = field(init=False)
    programs: Programs = field(init=False)
    environ: Mapping[str, str] = field(init=False)
    circumstances: Mapping[str, object] = field(init=False)

    def __post_init__(self) -> None:
        if self.request.walls is not None and self.walls is None:
            raise ValueError("walls that are only wished for hold nothing")

    @property
    def entry(self) -> Path:
        """Where the entry of the cache is."""
        return self.request.cache / self.digest

    def make(self) -> EnvironmentReport:
        """Look, build if that is needed, and copy.

        Raises:
            SessionrunError, OSError: there is no environment.
        """
        self.look(os.environ)
        with ExitStack() as held:  # meanwhile the entry is not removed
            manifest, built = self._use(held), False
            if manifest is None:
                self._set_apart()  # the usual entry may be gone since
                built = self._ensure(held)
                manifest = load_manifest(self.entry)
                assert manifest is not None
            with suppress(OSError):  # of a cache that may only be read
                os.utime(self.entry / MANIFEST)  # its last use, for `clean --cache`
            if self.request.copy:
                with self.steps.time("copy"):
                    copy_entry(self.entry, manifest, Path(self.request.target), self.top)
        return EnvironmentReport(
            digest=self.digest,
            cached=not built,
            path=self.request.target if self.request.copy else None,
            choice=manifest.choice,
            packages=manifest.packages,
            steps=tuple(self.steps.done),
            remarks=manifest.remarks,
        )

    def look(self, variables: Mapping[str, str]) -> None:
        """Find out what decides about the environment, in a process with these variables.

        Raises:
            EnvironmentProblem, OSError: it cannot be found out.
        """
        request = self.request
        self.top = Path(os.path.realpath(request.top))
        self.project = find_project(Path(os.path.realpath(request.directory)), self.top)
        variables = variables if self.walls is None else self.walls.env
        self.environ = clean_environ(variables, without=str(Path(request.target) / "bin"))
        with self.steps.time("interpreter"):
            cwd = None if self.walls is None else "/"  # outside no program may find one of the checkout
            self.programs = find_programs(request.python, self.environ, cwd)
        with self.steps.time("inputs"):
            self.circumstances = {
                "project": os.path.relpath(self.project, self.top),
                "programs": self.programs.about,
                "tag": find_tag(request, self.top, read_texts(self.project, PROJECT_FILES)),
                **({} if self.walls is None else {"walls": repr(self.walls.sandbox)}),
            }
            self.digest = make_digest(collect_inputs(self.project), **self.circumstances)
            if load_manifest(self.entry) is None:
                self._set_apart()

    def _set_apart(self) -> None:
        """What is built now is for others only if no task has a hand in it: else all of the checkout decides.

        Inside of walls an installer runs what a task may have written.
        """
        if self.walls is not None and not self.request.pristine:
            self.digest = make_digest(collect_all(self.top), **self.circumstances)

    def _use(self, held: ExitStack) -> Manifest | None:
        """The manifest of the entry, which is not removed as long as it is held."""
        fd = share_entry(self.entry)
        if fd is None:
            return None
        held.callback(os.close, fd)
        return load_manifest(self.entry)

    def _ensure(self, held: ExitStack) -> bool:
        """Make the entry, unless another process has done so meanwhile; whether it was made now."""
        if self.request.require_cache:
            raise EnvironmentProblem(f"the cache has no environment {self.digest}, and nothing may be built")
        begun = time.monotonic()
        with hold_entry(self.entry, self.request.limit_s, _say_waiting):
            sweep_entry(self.entry)
            if self._use(held) is not None:
                self.steps.done.append(EnvironmentStep("wait", round(time.monotonic() - begun, 3)))
                return False
            if os.path.lexists(self.entry):
                discard_entry(self.entry)  # it is damaged
            with make_entry(self.entry, sync_files) as draft:
                folder, asked = Path(os.path.realpath(draft)), (self.request, self.top, self.project)
                Builder(*asked, self.programs, self.walls, self.steps, folder, self.environ).build()
            self._use(held)
        return True


def _say_waiting(waited_s: float) -> None:
    print(f"environment: another process builds it, {waited_s:.0f} s so far ...", flush=True)
