"""Runs uv: makes an environment, tries the ways to install a project one after the other, lists it.

With walls each program runs inside: an installer runs code of the checkout, and then every program of the
environment does.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sessionrun.store.files import read_end, read_regular
from sessionrun.walls.argv import Enclosure, clear_ways
from sessionrun.walls.shell import END_S, run_alone
from sessionrun.worktrees.env_inputs import (
    MAX_INPUT_BYTES,
    PROJECT_FILES,
    PYTEST,
    Way,
    find_requirements,
    order_ways,
)
from sessionrun.worktrees.env_interpreter import EnvironmentProblem, Program
from sessionrun.worktrees.env_request import StepReport

_TAIL_BYTES: Final = 4096
_PACKAGE: Final = re.compile(rb"^([\w.-]+==\S+)\r?$", re.MULTILINE)
_TELLS: Final = re.compile(r"\s*(error|cause|fatal|\w*Error)\b", re.IGNORECASE)


@dataclass
class Steps:
    """What was done to make an environment, in its order; the logs of programs lie in `folder`."""

    folder: Path
    done: list[StepReport] = field(default_factory=list)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """A step that is work of ours."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.done.append(StepReport(name, round(time.monotonic() - begun, 3)))

    def run(
        self,
        name: str,
        argv: tuple[str, ...],
        start: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        deadline: float,
    ) -> int:
        """Run a program to its end or to the deadline, with all that it starts; its exit code, as a shell says it.

        `start` are the words that start it, maybe inside of walls, and `argv` those that people see.

        Raises:
            EnvironmentProblem: it cannot be started, something of it does not end, or its time was up.
        """
        number = sum(step.log is not None for step in self.done) + 1
        log = self.folder / f"environment-{number}-{_as_name(name)}.log"
        print(f"environment: {name} ...", flush=True)
        begun = time.monotonic()
        try:
            with open(log, "wb") as stream:
                code, is_gone = run_alone(start, cwd, environ, stream, max(0.0, deadline - begun))
        except OSError as error:
            raise EnvironmentProblem(f"cannot run {argv[0]}: {error.strerror}") from None
        if not is_gone:
            raise EnvironmentProblem(f"what a build started goes on after {END_S:g} s")
        code = 124 if code is None else code if code >= 0 else 128 - code
        spent = time.monotonic() - begun
        self.done.append(StepReport(name, round(spent, 3), argv, code, log.name))
        how = "done" if code == 0 else f"exit code {code}"
        print(f"environment: {name}: {how} in {spent:.1f} s", flush=True)
        if time.monotonic() > deadline:
            raise EnvironmentProblem(f"{name}: not done in time, see {log.name}")
        return code

    def read_log(self) -> bytes:
        """What the last program printed."""
        return (self.folder / (self.done[-1].log or "")).read_bytes()

    def describe_failure(self) -> str:
        """The last step that failed, with the line of its output that tells the most."""
        step = next(step for step in reversed(self.done) if step.exit_code != 0)
        tail = read_end(self.folder / (step.log or ""), _TAIL_BYTES).decode("utf-8", "replace").strip()
        lines = tail.split("\n")
        why = ([line for line in lines if _TELLS.match(line)] or lines)[-1].strip()[:300]
        return f"{step.name}: exit code {step.exit_code}: {why} (see {step.log})"


@dataclass
class Builder:
    """One build: where, with what, until when; its steps, and its remarks for people."""

    env: Path
    project: Path
    interpreter: Program
    uv: Program
    environ: Mapping[str, str]
    deadline: float
    walls: Enclosure | None
    steps: Steps
    remarks: list[str] = field(default_factory=list)

    def build(self) -> tuple[str, tuple[str, ...]]:
        """Make the environment and install; return the way that was taken and what is installed.

        Raises:
            EnvironmentProblem: no way works, or the time is up.
            OSError: a log cannot be written.
        """
        self._make_empty()
        texts = read_texts(self.project, (*PROJECT_FILES, "uv.lock"))
        ways = order_ways(texts, find_requirements(self.project))
        way = next(filter(self._install, ways), None)
        if way is None:
            raise self._fail()
        packages = self._list()
        if not any(package.lower().startswith(f"{PYTEST}==") for package in packages):
            if self._install(Way(PYTEST, (PYTEST,))):
                packages = self._list()
            else:
                remark = "pytest is not installed: the project does not ask for it and it cannot be had"
                self.remarks.append(remark)
        return way.name, packages

    def _make_empty(self) -> None:
        """Relocatable: no program in it begins with the place where it was made, so a copy of it works."""
        make = ("venv", "--quiet", "--no-project", "--relocatable", "--python", self.interpreter.path)
        if self._run("venv", *make, "--seed", str(self.env)) == 0:
            return
        self.remarks.append("the environment has no pip of its own")
        if self._run("venv without pip", *make, "--allow-existing", str(self.env)) != 0:
            raise self._fail()

    def _install(self, way: Way) -> bool:
        sync, pip = ("sync", "--frozen", "--inexact"), ("pip", "install", "--python", self._python)
        return self._run(way.name, *(sync if way.sync else pip), *way.words) == 0

    def _list(self) -> tuple[str, ...]:
        """What is installed."""
        if self._run("list", "pip", "list", "--format=freeze", "--python", self._python) != 0:
            raise self._fail()
        return tuple(package.decode("utf-8", "replace") for package in _PACKAGE.findall(self.steps.read_log()))

    @property
    def _python(self) -> str:
        return str(self.env / "bin" / "python")

    def _run(self, name: str, *words: str) -> int:
        """Run uv, inside of walls if there are any; its exit code."""
        argv = start = (self.uv.path, *words)
        if self.walls is not None:
            clear_ways(self.walls.walls)
            start = self.walls.at(str(self.project)).wrap(*argv)
        path = os.pathsep.join((str(self.env / "bin"), self.environ.get("PATH", os.defpath)))
        own = {"UV_PROJECT_ENVIRONMENT": str(self.env), "VIRTUAL_ENV": str(self.env), "PATH": path}
        return self.steps.run(name, argv, start, self.project, {**self.environ, **own}, self.deadline)

    def _fail(self) -> EnvironmentProblem:
        closed = self.walls is not None and not self.walls.walls.network
        hint = "; its walls let through no hosts but those in sandbox.network" if closed else ""
        return EnvironmentProblem(self.steps.describe_failure() + hint)


def read_texts(project: Path, names: Sequence[str]) -> dict[str, str]:
    """The texts of those of a project's files that are there, or that a link leads to."""
    texts = {}
    for name in names:
        with suppress(OSError):
            content = read_regular(os.path.realpath(project / name), MAX_INPUT_BYTES)
            texts[name] = content.decode("utf-8", "replace")
    return texts


def _as_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-")[:40]
