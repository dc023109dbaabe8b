"""Makes the environment of one task: looks what decides about it, builds an entry if there is none, copies it.

With walls each program runs inside: an installer runs code of the checkout, and then every program of the
environment does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import EnvironmentStep, MadeEnvironment
from sessionrun.store.files import read_end, replace_file
from sessionrun.store.jobfiles import load_record
from sessionrun.store.trees import (
    discard_entry,
    hold_entry,
    make_entry,
    remove_tree,
    share_entry,
    sweep_entry,
    sync_files,
)
from sessionrun.walls.argv import Walls, clear_ways
from sessionrun.walls.build import raise_if_any
from sessionrun.walls.shell import END_S, run_alone, word_end
from sessionrun.worktrees.environments.copies import (
    CHECKOUT,
    ENV,
    LEFT,
    Manifest,
    copy_entry,
    find_texts,
    load_manifest,
)
from sessionrun.worktrees.environments.inputs import (
    PROJECT_FILES,
    PYTEST,
    Programs,
    Way,
    clean_environ,
    collect_all,
    collect_inputs,
    find_programs,
    find_project,
    find_requirements,
    find_tag,
    iterate_names,
    make_build_repository,
    make_digest,
    order_ways,
    read_texts,
)
from sessionrun.worktrees.environments.request import (
    LOG,
    MANIFEST,
    REPORT,
    WISH,
    EnvironmentProblem,
    EnvironmentReport,
    EnvironmentRequest,
    name_variables,
)

LIMIT_S: Final = 1800.0
"""How long a build may take, and a wait for another process that builds."""

_TAIL_BYTES: Final = 4096
_TELLS: Final = re.compile(r"\s*(error|cause|fatal|\w*Error)\b", re.IGNORECASE)


class Builder:
    """One build of an entry in a folder; another request with the same inputs gets the same."""

    def __init__(self, making: Making, folder: Path) -> None:
        self.making, self.folder = making, folder
        self._walls, self._failure, self._log = making.walls, "", making.folder / LOG
        self._env, self._checkout, self._tmp = (folder / name for name in (ENV, CHECKOUT, "tmp"))
        self._project = self._checkout / making.project.relative_to(making.top)
        self._deadline = time.monotonic() + LIMIT_S
        # in `tmp` are temporary files, with the locks that uv leaves; inside of walls it is /tmp
        own = {"TMPDIR": str(self._tmp)} if making.walls is None else {}
        path = os.pathsep.join((str(self._env / "bin"), making.environ.get("PATH", os.defpath)))
        own |= {"UV_PROJECT_ENVIRONMENT": str(self._env), "VIRTUAL_ENV": str(self._env), "PATH": path}
        self._environ = {**making.environ, **own}

    def build(self) -> None:
        """Fill the folder; the install works on a copy of the checkout, so that a task's stays as it is.

        Raises:
            EnvironmentProblem: no way works, or the time is up.
        """
        top = self.making.top
        with self.making.time("checkout"):
            ignore = shutil.ignore_patterns("__pycache__", ".git")
            shutil.copytree(top, self._checkout, symlinks=True, ignore=ignore)
            make_build_repository(self.making.request, top, self._checkout)
            before = set(iterate_names(self._checkout))
            self._tmp.mkdir()
        if self._walls is not None:  # of the entry's folder it writes these three
            self._env.mkdir()
            binds = tuple((str(path), str(path)) for path in (self._env, self._checkout))
            self._walls = replace(self._walls, tmp=str(self._tmp), binds=binds)
        # relocatable: no program in it begins with the place where it was made, so a copy of it works
        make = ("venv", "--quiet", "--no-project", "--relocatable", "--python", self.making.programs.python)
        is_made = self._run("venv", *make, "--seed", str(self._env))
        if not is_made and not self._run("venv without pip", *make, "--allow-existing", str(self._env)):
            raise self._fail()
        choice = self._install_all()
        with self.making.time("keep"):
            remove_tree(self._tmp)
            left = self.folder / LEFT
            left.mkdir()
            for name in set(iterate_names(self._checkout)).difference(before):  # what the install made there
                (left / name).parent.mkdir(parents=True, exist_ok=True)
                os.rename(self._checkout / name, left / name)
            remove_tree(self._checkout)
            made_at = str(self.folder)
            texts = find_texts(self.folder, made_at)
            manifest = Manifest(made_at, choice, self._list(), texts)
            replace_file(self.folder / MANIFEST, orjson.dumps(manifest), durable=False)

    def _install_all(self) -> str:
        """Install the project, and pytest; the name of the way that was taken."""
        project = self.making.project
        texts = read_texts(project, (*PROJECT_FILES, "uv.lock"))
        way = next(filter(self._install, order_ways(texts, find_requirements(project))), None)
        if way is None:
            raise self._fail()
        has_pytest = any(package.startswith(f"{PYTEST}==") for package in self._list())
        if not has_pytest and not self._install(Way(PYTEST, (PYTEST,))):
            print("environment: the project does not ask for pytest, and it cannot be had", flush=True)
        return way.name

    def _install(self, way: Way) -> bool:
        sync, pip = ("sync", "--frozen", "--inexact"), ("pip", "install", "--python", f"{self._env}/bin/python")
        return self._run(way.name, *(sync if way.sync else pip), *way.words)

    def _list(self) -> tuple[str, ...]:
        found = (path.stem.rpartition("-") for path in self._env.glob("lib*/python*/site-packages/*.dist-info"))
        return tuple(sorted({f"{name.replace('_', '-').lower()}=={version}" for name, _, version in found}))

    def _run(self, name: str, *words: str) -> bool:
        """Run uv to its end or to the deadline, with all that it starts; whether it passed."""
        argv = start = (self.making.programs.uv, *words)
        if self._walls is not None:
            clear_ways(self._walls)
            start = self._walls.wrap(str(self._project), *argv)
        print(f"environment: {name} ...", flush=True)
        with self.making.time(name), open(self._log, "ab") as stream:
            stream.write(os.fsencode(f"$ {shlex.join(argv)}\n"))
            stream.flush()
            left_s = max(0.0, self._deadline - time.monotonic())
            code, is_gone = run_alone(start, self._project, self._environ, stream, left_s)
        if not is_gone:
            raise EnvironmentProblem(f"what a build started goes on after {END_S:g} s")
        if code is None or time.monotonic() > self._deadline:
            raise EnvironmentProblem(f"{name}: not done in time, see {LOG}")
        how = word_end(code)
        took_s = self.making.steps[-1].duration_s
        print(f"environment: {name}: {how if code else 'done'} in {took_s:.1f} s", flush=True)
        if code != 0:
            self._failure = f"{name}: {how}: {self._find_cause()} (see {LOG})"
        return code == 0

    def _find_cause(self) -> str:
        """The last line of the output that tells why."""
        lines = read_end(self._log, _TAIL_BYTES).decode("utf-8", "replace").strip().split("\n")
        return ([line for line in lines if _TELLS.match(line)] or lines)[-1].strip()[:300]

    def _fail(self) -> EnvironmentProblem:
        closed = self._walls is not None and self._walls.sandbox.network != "allow"
        hint = "; its walls let through no hosts but those in sandbox.network" if closed else ""
        return EnvironmentProblem(self._failure + hint)


def make_first(folder: Path) -> EnvironmentReport:
    """Make the environment that the SETUP of this folder begins with."""
    request = load_record(folder / WISH, EnvironmentRequest)
    report = make_environment(request, folder, raise_if_any(request.walls, builds=True))
    if report.problem is not None:
        print(f"environment: {report.problem}", file=sys.stderr)
    return report


def make_environment(request: EnvironmentRequest, folder: Path, walls: Walls | None = None) -> EnvironmentReport:
    """Make the environment and leave a report in `folder`, beside the logs of what ran; done again, do it anew.

    `walls` are those that the request wishes for.  The report says what is wrong if there is no environment: that
    is a failure of the machine, not of the task.
    """
    making = Making(request, walls, folder)
    try:
        report = making.make()
    except (SessionrunError, OSError) as error:
        report = EnvironmentReport(
            MadeEnvironment(making.digest, False, steps=tuple(making.steps)), problem=str(error)
        )
    replace_file(folder / REPORT, orjson.dumps(report, option=orjson.OPT_INDENT_2), durable=False)
    return report


def provide_environment(request: EnvironmentRequest, folder: Path, walls: Walls | None = None) -> dict[str, str]:
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
    walls: Walls | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """The digest of what decides about an environment; nothing is made.

    `environ` are the variables of the process that would make it; None: those of this one.

    Raises:
        EnvironmentProblem: an interpreter or uv is missing.
    """
    making = Making(request, walls, folder)
    making.look(os.environ if environ is None else environ)
    return making.digest


class Making:
    """One environment under way: `look` finds what decides about it, `make` builds what is lacking, and copies."""

    top: Path
    project: Path
    programs: Programs
    environ: Mapping[str, str]
    _circumstances: Mapping[str, object]
    """What is in the digest beside files."""

    def __init__(self, request: EnvironmentRequest, walls: Walls | None, folder: Path) -> None:
        if request.walls is not None and walls is None:
            raise ValueError("walls that are only wished for hold nothing")
        self.request, self.walls, self.folder, self.digest = request, walls, folder, ""
        self.steps: list[EnvironmentStep] = []

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Note how long a step takes."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.steps.append(EnvironmentStep(name, round(time.monotonic() - begun, 3)))

    @property
    def entry(self) -> Path:
        """The place in the cache."""
        return Path(self.request.cache, self.digest)

    def make(self) -> EnvironmentReport:
        """Look, build if that is needed, and copy."""
        self.look(os.environ)
        with ExitStack() as held:  # meanwhile the entry is not removed
            manifest, built = self._use(held), False
            if manifest is None:
                self._set_apart()  # the usual entry may be gone since
                manifest, built = self._ensure(held)
            with suppress(OSError):  # of a cache that may only be read
                os.utime(self.entry / MANIFEST)  # its last use, for `clean --cache`
            if self.request.copy:
                with self.time("copy"):
                    copy_entry(self.entry, manifest, Path(self.request.target), self.top)
        path = self.request.target if self.request.copy else None
        made = MadeEnvironment(self.digest, not built, path, manifest.choice, tuple(self.steps))
        return EnvironmentReport(made, manifest.packages)

    def look(self, variables: Mapping[str, str]) -> None:
        """Find out what decides about the environment, in a process with these variables."""
        request = self.request
        self.top = Path(os.path.realpath(request.top))
        self.project = find_project(Path(os.path.realpath(request.directory)), self.top)
        variables = variables if self.walls is None else self.walls.env
        self.environ = clean_environ(variables, without=f"{request.target}/bin")
        with self.time("interpreter"):
            cwd = None if self.walls is None else "/"  # outside no program may find one of the checkout
            self.programs = find_programs(request.python, self.environ, cwd)
        with self.time("inputs"):
            self._circumstances = {
                "project": os.path.relpath(self.project, self.top),
                "programs": self.programs.about,
                "tag": find_tag(request, self.top, read_texts(self.project, PROJECT_FILES)),
                **({} if self.walls is None else {"walls": repr(self.walls.sandbox)}),
            }
            self.digest = make_digest(collect_inputs(self.project), **self._circumstances)
            if load_manifest(self.entry) is None:
                self._set_apart()

    def _set_apart(self) -> None:
        """What is built now is for others only if no task has a hand in it: else all of the checkout decides.

        Inside of walls an installer runs what a task may have written.
        """
        if self.walls is not None and not self.request.pristine:
            self.digest = make_digest(collect_all(self.top), **self._circumstances)

    def _use(self, held: ExitStack) -> Manifest | None:
        """The manifest of the entry, which is not removed as long as it is held."""
        fd = share_entry(self.entry)
        if fd is None:
            return None
        held.callback(os.close, fd)
        return load_manifest(self.entry)

    def _ensure(self, held: ExitStack) -> tuple[Manifest, bool]:
        """The manifest of the entry, which is made unless another process did so; whether it was made now."""
        if self.request.require_cache:
            raise EnvironmentProblem(f"the cache has no environment {self.digest}, and nothing may be built")
        with hold_entry(self.entry, LIMIT_S, _say_waiting):
            sweep_entry(self.entry)
            manifest = self._use(held)
            if manifest is not None:
                return manifest, False
            if os.path.lexists(self.entry):
                discard_entry(self.entry)  # it is damaged
            with make_entry(self.entry, sync_files) as draft:
                Builder(self, Path(os.path.realpath(draft))).build()
            manifest = self._use(held)
            assert manifest is not None
        return manifest, True


def _say_waiting(waited_s: float) -> None:
    print(f"environment: another process builds it, {waited_s:.0f} s so far ...", flush=True)
