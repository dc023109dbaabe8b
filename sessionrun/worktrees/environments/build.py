"""Makes the environment of one task: looks what decides about it, builds an entry if there is none, copies it.

With walls each program runs inside: an installer runs code of the checkout, and then every program of the
environment does.

What uv made at one place works at another, but for paths in a few texts.  What makes the project importable names
the checkout: ``*.pth``, ``__editable__*.py``, ``direct_url.json``, and what a build left there.  So the files that
name a place of the build are found once, and written anew in each copy.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import orjson

from sessionrun.git.git import git_environ
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import EnvironmentStep, MadeEnvironment
from sessionrun.store import programs, trees
from sessionrun.store.files import read_end, replace_file
from sessionrun.store.jobfiles import load_record, load_usable
from sessionrun.store.locks import is_held
from sessionrun.walls.argv import Walls, clear_ways
from sessionrun.walls.build import raise_if_any
from sessionrun.walls.shell import END_S, run_alone, word_end
from sessionrun.worktrees.environments import inputs
from sessionrun.worktrees.request import (
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

ENV: Final = "env"
LEFT: Final = "left"
"""What an entry holds: the environment, and what the editable install left in the checkout."""

CHECKOUT: Final = "checkout"
"""In an entry while it is built: the copy of the checkout in which uv works."""

_REFUSED: Final = re.compile(r"""['"\\\n\r$`%:]|[^\x20-\x7e\u00a0-\U0010ffff]""")

# blocks are shared where the file system can, inodes never: a task that writes to a file of its environment in
# place would change the cache and the environments of all others
_COPY: Final = ("cp", "-a", *(("--reflink=auto",) if sys.platform == "linux" else ()))

_TAIL_BYTES: Final = 4096
_TELLS: Final = re.compile(r"\s*(error|cause|fatal|\w*Error)\b", re.IGNORECASE)


@frozen
class Manifest:
    """An entry that was made in whole: `texts` are the files in which the place stands where it was `made_at`."""

    made_at: str
    choice: str
    packages: tuple[str, ...]
    texts: tuple[str, ...]


def load_manifest(entry: Path) -> Manifest | None:
    return load_usable(entry / MANIFEST, Manifest)


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
            inputs.make_build_repository(self.making.request, top, self._checkout)
            before = set(inputs.iterate_names(self._checkout))
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
            trees.remove_tree(self._tmp)
            left = self.folder / LEFT
            left.mkdir()
            # what the install made there
            for name in set(inputs.iterate_names(self._checkout)).difference(before):
                (left / name).parent.mkdir(parents=True, exist_ok=True)
                os.rename(self._checkout / name, left / name)
            trees.remove_tree(self._checkout)
            made_at = str(self.folder)
            manifest = Manifest(made_at, choice, self._list(), find_texts(self.folder, made_at))
            replace_file(self.folder / MANIFEST, orjson.dumps(manifest), durable=False)

    def _install_all(self) -> str:
        """Install the project, and pytest; the name of the way that was taken."""
        project = self.making.project
        texts = inputs.read_texts(project, (*inputs.PROJECT_FILES, "uv.lock"))
        way = next(filter(self._install, inputs.order_ways(texts, inputs.find_requirements(project))), None)
        if way is None:
            raise self._fail()
        has_pytest = any(package.startswith(f"{inputs.PYTEST}==") for package in self._list())
        if not has_pytest and not self._install(inputs.Way(inputs.PYTEST, (inputs.PYTEST,))):
            print("environment: the project does not ask for pytest, and it cannot be had", flush=True)
        return way.name

    def _install(self, way: inputs.Way) -> bool:
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
            lines = read_end(self._log, _TAIL_BYTES).decode("utf-8", "replace").strip().split("\n")
            cause = ([line for line in lines if _TELLS.match(line)] or lines)[-1].strip()[:300]
            self._failure = f"{name}: {how}: {cause} (see {LOG})"
        return code == 0

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
    request: EnvironmentRequest, folder: Path, walls: Walls | None = None, environ: Mapping[str, str] | None = None
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
    programs: inputs.Programs
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
        begun = time.monotonic()
        try:
            yield
        finally:
            self.steps.append(EnvironmentStep(name, round(time.monotonic() - begun, 3)))

    @property
    def entry(self) -> Path:
        return Path(self.request.cache, self.digest)

    def make(self) -> EnvironmentReport:
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
        self.project = inputs.find_project(Path(os.path.realpath(request.directory)), self.top)
        variables = variables if self.walls is None else self.walls.env
        self.environ = inputs.clean_environ(variables, without=f"{request.target}/bin")
        with self.time("interpreter"):
            cwd = None if self.walls is None else "/"  # outside no program may find one of the checkout
            self.programs = inputs.find_programs(request.python, self.environ, cwd)
        with self.time("inputs"):
            self._circumstances = {
                "project": os.path.relpath(self.project, self.top),
                "programs": self.programs.about,
                "tag": inputs.find_tag(request, self.top, inputs.read_texts(self.project, inputs.PROJECT_FILES)),
                **({} if self.walls is None else {"walls": repr(self.walls.sandbox)}),
            }
            self.digest = inputs.make_digest(inputs.collect_inputs(self.project), **self._circumstances)
            if load_manifest(self.entry) is None:
                self._set_apart()

    def _set_apart(self) -> None:
        """What is built now is for others only if no task has a hand in it: else all of the checkout decides.

        Inside of walls an installer runs what a task may have written.
        """
        if self.walls is not None and not self.request.pristine:
            names = inputs.iterate_names(self.top, ())
            files = {name: inputs.digest_file(self.top / name, whole=True) for name in names}
            self.digest = inputs.make_digest(files, **self._circumstances)

    def _use(self, held: ExitStack) -> Manifest | None:
        """The manifest of the entry, which is not removed as long as it is held."""
        fd = trees.share_entry(self.entry)
        if fd is None:
            return None
        held.callback(os.close, fd)
        return load_manifest(self.entry)

    def _ensure(self, held: ExitStack) -> tuple[Manifest, bool]:
        """The manifest of the entry, which is made unless another process did so; whether it was made now."""
        if self.request.require_cache:
            raise EnvironmentProblem(f"the cache has no environment {self.digest}, and nothing may be built")
        if is_held(trees.lock_path(self.entry)):
            print(
                f"environment: another process builds it: it is waited for, up to {LIMIT_S / 60:.0f} minutes",
                flush=True,
            )
        with trees.hold_entry(self.entry, LIMIT_S):
            trees.sweep_entry(self.entry)
            manifest = self._use(held)
            if manifest is not None:
                return manifest, False
            if os.path.lexists(self.entry):
                trees.discard_entry(self.entry)  # it is damaged
            with trees.make_entry(self.entry, trees.sync_files) as draft:
                Builder(self, Path(os.path.realpath(draft))).build()
            manifest = self._use(held)
            assert manifest is not None
        return manifest, True


# --- copies ---


def find_texts(entry: Path, made_at: str) -> tuple[str, ...]:
    """The texts of an entry in which this path stands, as it is or as a part of a URL.

    Code of a checkout may have made anything there: grep follows no link, and reads only files.
    """
    words = ("-rlIF", "--null", "-D", "skip", "--exclude=*.py[co]", "-e", made_at, "-e", quote(made_at))
    found = _run("grep", *words, "--", ENV, LEFT, cwd=entry, codes=(0, 1))
    return tuple(sorted(os.fsdecode(found).split("\0")[:-1]))


def _run(*argv: str, cwd: Path, codes: Sequence[int] = (0,)) -> bytes:
    done = programs.run(argv, cwd=cwd, environ=git_environ(os.environ), limit_s=None)
    if done.returncode not in codes:
        raise OSError(done.stderr.decode("utf-8", "replace").strip().partition("\n")[0])
    return done.stdout


def copy_entry(entry: Path, manifest: Manifest, target: Path, checkout: Path) -> None:
    """Make an environment from an entry; one that is there already, whole or not, is replaced; a file is not.

    What the install left in its checkout is put into the task's `checkout` where nothing is.
    """
    for path in (target, checkout):  # a link may lead from the one name to the other
        if _REFUSED.search(str(path)):
            why = "it holds a character to which scripts or PATH give a meaning"
            raise EnvironmentProblem(f"no environment can be made for {path}: {why}")
    if target.is_file() and not target.is_symlink():  # beside a worktree that was moved
        raise EnvironmentProblem(f"{target} is a file, where its environment has its place: move it away")
    trees.remove_entry(target)
    moves = {f"{manifest.made_at}/{ENV}": str(target), f"{manifest.made_at}/{CHECKOUT}": str(checkout)}
    _run(*_COPY, "--", ENV, str(target), cwd=entry)
    for name in manifest.texts:
        if name.startswith(f"{ENV}/"):
            _rewrite(target / name[len(ENV) + 1 :], moves)
    for name in inputs.iterate_names(entry / LEFT):
        _put_left(entry / LEFT / name, checkout / name, moves, is_text=f"{LEFT}/{name}" in manifest.texts)


def _put_left(source: Path, target: Path, moves: Mapping[str, str], *, is_text: bool) -> None:
    """Put what the install left in the checkout there; nothing goes over what is there, nor through a link."""
    if os.path.lexists(target) or os.path.realpath(target.parent) != str(target.parent):
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return
    if source.is_symlink():
        os.symlink(_move(os.readlink(source), moves), target)
    elif source.is_file():
        beside = target.with_name(f".new-{target.name}")
        trees.remove_entry(beside)  # of a start that was killed
        shutil.copy2(source, beside)
        if is_text:
            _rewrite(beside, moves)
        os.rename(beside, target)


def _rewrite(place: Path, moves: Mapping[str, str]) -> None:
    """Put the new places for the old ones into a text.  What was compiled of it could look fresh, and goes."""
    mode, content = stat.S_IMODE(place.lstat().st_mode), place.read_bytes()
    place.unlink()  # it may be one that can only be read
    place.write_bytes(os.fsencode(_move(os.fsdecode(content), moves)))
    place.chmod(mode)
    for stale in place.parent.glob(f"__pycache__/{place.stem}.*.pyc") if place.suffix == ".py" else ():
        stale.unlink()


def _move(text: str, moves: Mapping[str, str]) -> str:
    for old, new in moves.items():
        text = text.replace(f"file://{quote(old)}", f"file://{quote(new)}").replace(old, new)
    return text
