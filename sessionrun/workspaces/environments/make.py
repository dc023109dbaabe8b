"""Makes the environment of one task, and removes it: the two functions that others call."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.workspaces.environments.building import Builder, read_texts
from sessionrun.workspaces.environments.copying import (
    ENV,
    LEFT,
    MANIFEST,
    Manifest,
    clone,
    copy_checkout,
    find_texts,
    write_manifest,
)
from sessionrun.workspaces.environments.entries import ensure_entry, find_entry, sync_files
from sessionrun.workspaces.environments.inputs import (
    PROJECT_FILES,
    collect_all,
    collect_inputs,
    find_project,
    iterate_names,
    make_digest,
)
from sessionrun.workspaces.environments.interpreter import (
    Interpreter,
    Uv,
    clean_environ,
    find_interpreter,
    find_uv,
)
from sessionrun.workspaces.environments.request import (
    BuildWalls,
    EnvironmentProblem,
    EnvironmentReport,
    EnvironmentRequest,
    StepReport,
    write_report,
)
from sessionrun.workspaces.environments.version import find_version
from sessionrun.workspaces.registration import remove_tree

_COPIES: Final = 3
"""How often an entry may be removed while it is copied."""

_CHECKOUT: Final = "checkout"
_TMP: Final = "tmp"
"""In an entry while it is built: temporary files, with the locks that uv leaves.  Inside of walls it is /tmp."""


def make_environment(
    request: EnvironmentRequest, folder: Path, walls: BuildWalls | None = None
) -> EnvironmentReport:
    """Make the environment and leave a report in `folder`, beside the logs of what ran; done again, do it anew.

    `walls` are those that the request wishes for.  The report says what is wrong if there is no environment: that
    is a failure of the machine, not of the task.
    """
    making = _Making(request, folder, walls)
    try:
        report = making.make()
    except (EnvironmentProblem, OSError) as error:
        report = replace(making.report, steps=tuple(making.steps), problem=str(error))
    write_report(folder, report)
    return report


def find_digest(
    request: EnvironmentRequest,
    folder: Path,
    walls: BuildWalls | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """The digest of what decides about an environment; nothing is made.

    Args:
        request: what would be made.
        folder, walls: as of `make_environment`.
        environ: the variables of the process that would make it; None: those of this one.

    Raises:
        EnvironmentProblem, OSError: an interpreter or uv is missing, or the inputs cannot be read.
    """
    return _Making(request, folder, walls).look(os.environ if environ is None else environ).digest


@frozen
class _Ground:
    """What decides about an environment: checkout, project, programs, variables, and the digest of all of it.

    `circumstances` are what is in the digest beside files.
    """

    top: Path
    project: Path
    interpreter: Interpreter
    uv: Uv
    environ: Mapping[str, str]
    circumstances: Mapping[str, str | None]
    digest: str


@dataclass
class _Making:
    """One environment under way."""

    request: EnvironmentRequest
    folder: Path
    walls: BuildWalls | None
    steps: list[StepReport] = field(default_factory=list)
    report: EnvironmentReport = field(default_factory=EnvironmentReport)

    def __post_init__(self) -> None:
        if self.request.walls is not None and self.walls is None:
            raise ValueError("walls that are only wished for hold nothing")

    def make(self) -> EnvironmentReport:
        """Look, build if that is needed, and copy.

        Raises:
            EnvironmentProblem, OSError: there is no environment.
        """
        ground = self.look(os.environ)
        self.report = EnvironmentReport(digest=ground.digest)
        manifest, built = self._obtain(ground)
        return EnvironmentReport(
            digest=manifest.digest,
            cached=not built,
            path=self.request.target if self.request.copy else None,
            choice=manifest.choice,
            packages=manifest.packages,
            steps=tuple(self.steps),
            built_with=() if built else manifest.steps,
            remarks=manifest.remarks,
        )

    def look(self, variables: Mapping[str, str]) -> _Ground:
        """What decides about the environment, in a process with these variables.

        Raises:
            EnvironmentProblem, OSError: it cannot be found out.
        """
        request = self.request
        top = Path(os.path.realpath(request.top))
        project = find_project(Path(os.path.realpath(request.directory)), top)
        variables = variables if self.walls is None else self.walls.env
        environ = clean_environ(variables, without=str(Path(request.target) / "bin"))
        cwd = None if self.walls is None else "/"  # outside no program may find one of the checkout
        with self._step("interpreter"):
            interpreter = find_interpreter(request.python, environ, cwd)
            uv = find_uv(environ, cwd)
        with self._step("inputs"):
            version = find_version(request, top, read_texts(project, PROJECT_FILES), environ)
            circumstances: dict[str, str | None] = {
                "project": os.path.relpath(project, top),
                "interpreter": repr(interpreter),
                "installer": uv.version,
                "tag": version.decides,
            }
            if self.walls is not None:
                circumstances["walls"] = repr(self.walls.sandbox)
            digest = make_digest(collect_inputs(project), **circumstances)
            environ = {**environ, **version.variables}
            ground = _Ground(top, project, interpreter, uv, environ, circumstances, digest)
            return ground if self._may_make_usual or self._has(digest) else self._set_apart(ground)

    @property
    def _may_make_usual(self) -> bool:
        """Whether others may have what is built now.  What an installer runs inside of walls may be a task's."""
        return self.walls is None or self.request.pristine

    def _set_apart(self, ground: _Ground) -> _Ground:
        """What decides about an entry that is built now: all of the checkout, if it is not for others."""
        if self._may_make_usual:
            return ground
        return replace(ground, digest=make_digest(collect_all(ground.top), **ground.circumstances))

    def _has(self, digest: str) -> bool:
        return find_entry(Path(self.request.cache), digest) is not None

    def _obtain(self, ground: _Ground) -> tuple[Manifest, bool]:
        """Copy the entry if that is asked for; it is made first if there is none.

        Returns its manifest, and whether it was made now.
        """
        cache, built_now = Path(self.request.cache), False
        if not self.request.copy:
            made = self._ensure(ground)
            with suppress(OSError):
                os.utime(cache / ground.digest / MANIFEST)  # its last use, for `clean --cache`
            return made
        manifest = find_entry(cache, ground.digest)
        for _ in range(_COPIES):
            if manifest is None:  # also if that of the usual digest is gone since
                ground = self._set_apart(ground)
                manifest, built = self._ensure(ground)
                built_now = built_now or built
            try:
                with self._step("copy"):
                    clone(cache / ground.digest, manifest, self.request, ground.top)
                return manifest, built_now
            except FileNotFoundError:
                manifest = None
        raise EnvironmentProblem(f"the cached environment {ground.digest} is gone while it is copied")

    def _ensure(self, ground: _Ground) -> tuple[Manifest, bool]:
        """The entry, which another process may be making."""
        if self.request.require_cache:
            raise EnvironmentProblem(f"the cache has no environment {ground.digest}, and nothing may be built")
        begun, number = time.monotonic(), len(self.steps)
        made = ensure_entry(
            Path(self.request.cache),
            ground.digest,
            lambda folder: self._build(folder, ground),
            limit_s=self.request.limit_s,
            say=_say,
        )
        if len(self.steps) == number:
            self.steps.append(StepReport("wait", round(time.monotonic() - begun, 3)))
        return made

    def _build(self, folder: Path, ground: _Ground) -> Manifest:
        """Fill an entry's folder: the install works on a copy of the checkout, so that a task's stays as it is."""
        real = Path(os.path.realpath(folder))
        checkout = real / _CHECKOUT
        with self._step("checkout"):
            copy_checkout(ground.top, checkout)
            before = set(iterate_names(checkout))
            (real / _TMP).mkdir()
        environ = {**ground.environ, "TMPDIR": str(real / _TMP)} if self.walls is None else ground.environ
        builder = Builder(
            env=real / ENV,
            project=checkout / ground.project.relative_to(ground.top),
            folder=self.folder,
            interpreter=ground.interpreter,
            uv=ground.uv,
            environ=environ,
            deadline=time.monotonic() + self.request.limit_s,
            walls=_complete_walls(self.walls, real),
        )
        try:
            choice, packages = builder.build()
        finally:
            self.steps += builder.steps
        with self._step("keep"):
            remove_tree(real / _TMP)
            _keep_left(checkout, real / LEFT, before)
            manifest = _make_manifest(real, checkout, builder, ground.digest, choice, packages)
            sync_files(real)
            write_manifest(real, manifest)
        return manifest

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """A step that is work of ours."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.steps.append(StepReport(name, round(time.monotonic() - begun, 3)))


def _complete_walls(asked: BuildWalls | None, folder: Path) -> BuildWalls | None:
    """The walls of a build: of the entry's folder it writes the environment, the checkout and /tmp."""
    if asked is None:
        return None
    (folder / ENV).mkdir()
    binds = tuple((str(folder / name), str(folder / name)) for name in (ENV, _CHECKOUT))
    return replace(asked, walls=replace(asked.walls, tmp=str(folder / _TMP), binds=binds))


def _make_manifest(
    folder: Path, checkout: Path, builder: Builder, digest: str, choice: str, packages: tuple[str, ...]
) -> Manifest:
    paths = (str(builder.env), str(checkout))
    texts, others = find_texts(folder, paths)
    remarks = [f"{name} is not text and keeps a path of the build" for name in others]
    return Manifest(
        digest=digest,
        root=paths[0],
        checkout=paths[1],
        choice=choice,
        packages=packages,
        steps=tuple(builder.steps),
        remarks=(*builder.remarks, *remarks[:10]),
        texts=tuple(texts),
    )


def _keep_left(checkout: Path, left: Path, before: set[str]) -> None:
    """Move what the install made in the checkout out of it; the copy of the checkout goes."""
    left.mkdir()
    for name in sorted(set(iterate_names(checkout)) - before - {".git"}):
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        os.rename(checkout / name, left / name)
    remove_tree(checkout)


def _say(line: str) -> None:
    print(line, flush=True)
