"""Runs uv: makes an environment, tries the ways to install a project one after the other, lists it.

Each program gets a log in the job's folder and a time limit.  It runs in a group of its own, so that its end takes
all with it that it has started.  With walls it runs inside: an installer runs code of the checkout, and then every
program of the environment does.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from sessionrun.store.files import read_regular
from sessionrun.walls.argv import build_argv
from sessionrun.walls.clearing import clear_ways
from sessionrun.workspaces.environments.inputs import MAX_INPUT_BYTES, PROJECT_FILES, find_requirements
from sessionrun.workspaces.environments.interpreter import Interpreter, Uv
from sessionrun.workspaces.environments.request import BuildWalls, EnvironmentProblem, StepReport
from sessionrun.workspaces.environments.steps import PYTEST, Way, order_ways, read_project
from sessionrun.workspaces.shell import END_S, run_alone

_TAIL_BYTES: Final = 4096
_PACKAGE: Final = re.compile(rb"^([\w.-]+==\S+)\r?$", re.MULTILINE)


@dataclass
class Builder:
    """One build: where, with what, until when; and the steps that it has made."""

    env: Path
    project: Path
    folder: Path
    interpreter: Interpreter
    uv: Uv
    environ: Mapping[str, str]
    deadline: float
    walls: BuildWalls | None = None
    steps: list[StepReport] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def build(self) -> tuple[str, tuple[str, ...]]:
        """Make the environment and install; return the way that was taken and what is installed.

        Raises:
            EnvironmentProblem: no way works, or the time is up.
            OSError: a log cannot be written.
        """
        self._make_empty()
        texts = read_texts(self.project, (*PROJECT_FILES, "uv.lock"))
        ways = order_ways(read_project(texts, find_requirements(self.project)))
        way = next((way for way in ways if self._install(way)), None)
        if way is None:
            raise EnvironmentProblem(self._describe_failure())
        packages = self._list()
        if not any(package.lower().startswith(f"{PYTEST}==") for package in packages):
            if self._run("pytest", self._install_words((PYTEST,))) != 0:
                self.remarks.append(
                    "pytest is not installed: the project does not ask for it and it cannot be had"
                )
            packages = self._list()
        return way.name, packages

    @property
    def _python(self) -> str:
        return str(self.env / "bin" / "python")

    def _make_empty(self) -> None:
        """Relocatable: no program in it begins with the place where it was made, so a copy of it works."""
        words = ("venv", "--quiet", "--no-project", "--relocatable", "--python", self.interpreter.program)
        make = (self.uv.program, *words)
        if self._run("venv", (*make, "--seed", str(self.env))) == 0:
            return
        self.remarks.append("the environment has no pip of its own")
        if self._run("venv without pip", (*make, "--allow-existing", str(self.env))) != 0:
            raise EnvironmentProblem(self._describe_failure())

    def _install(self, way: Way) -> bool:
        if way.sync:
            words: tuple[str, ...] = (self.uv.program, "sync", "--frozen", "--inexact", *way.words)
        else:
            words = self._install_words(way.words)
        return self._run(way.name, words) == 0

    def _install_words(self, words: Sequence[str]) -> tuple[str, ...]:
        return (self.uv.program, "pip", "install", "--python", self._python, *words)

    def _list(self) -> tuple[str, ...]:
        """What is installed."""
        if self._run("list", (self.uv.program, "pip", "list", "--format=freeze", "--python", self._python)) != 0:
            raise EnvironmentProblem(self._describe_failure())
        listed = (self.folder / (self.steps[-1].log or "")).read_bytes()
        return tuple(package.decode("utf-8", "replace") for package in _PACKAGE.findall(listed))

    def _run(self, name: str, argv: tuple[str, ...]) -> int:
        """Run one program and note the step; its exit code."""
        log = self.folder / f"environment-{len(self.steps) + 1}-{_as_name(name)}.log"
        print(f"environment: {name} ...", flush=True)
        begun = time.monotonic()
        with open(log, "wb") as stream:
            words = self._enclose(argv)
            code = _wait(words, self.project, self._variables(), stream, self.deadline)
        spent = time.monotonic() - begun
        self.steps.append(StepReport(name, round(spent, 3), argv, code, log.name))
        print(f"environment: {name}: {'done' if code == 0 else f'exit code {code}'} in {spent:.1f} s", flush=True)
        if time.monotonic() > self.deadline:
            raise EnvironmentProblem(f"{name}: not done in time, see {log.name}")
        return code

    def _enclose(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The words that start a program, inside of walls if there are any."""
        if self.walls is None:
            return argv
        clear_ways(self.walls.walls)
        inside = build_argv(self.walls.walls, str(self.project), dies_with_us=True)
        return (*self.walls.enter, *inside, *argv)

    def _variables(self) -> dict[str, str]:
        path = os.pathsep.join((str(self.env / "bin"), self.environ.get("PATH", os.defpath)))
        return {
            **self.environ,
            "UV_PROJECT_ENVIRONMENT": str(self.env),
            "VIRTUAL_ENV": str(self.env),
            "PATH": path,
        }

    def _describe_failure(self) -> str:
        """The last step that failed, with what its output ends with."""
        step = next(step for step in reversed(self.steps) if step.exit_code != 0)
        lines = (
            _read_end(self.folder / (step.log or ""), _TAIL_BYTES).decode("utf-8", "replace").strip().split("\n")
        )
        telling = [
            line.strip() for line in lines if re.match(r"\s*(error|cause|fatal|\w*Error)\b", line, re.IGNORECASE)
        ]
        closed = self.walls is not None and not self.walls.walls.network
        hint = "; its walls let through no hosts but those in sandbox.network" if closed else ""
        why = (telling or lines)[-1].strip()[:300]
        return f"{step.name}: exit code {step.exit_code}: {why} (see {step.log}){hint}"


def _wait(argv: Sequence[str], cwd: Path, environ: Mapping[str, str], output: IO[bytes], deadline: float) -> int:
    """Run a program to its end, or to the deadline; its exit code, as a shell says it.

    Raises:
        EnvironmentProblem: it cannot be started, or something of it does not end.
    """
    try:
        code, is_gone = run_alone(argv, cwd, environ, output, max(0.0, deadline - time.monotonic()))
    except OSError as error:
        raise EnvironmentProblem(f"cannot run {argv[0]}: {error.strerror}") from None
    if not is_gone:
        raise EnvironmentProblem(f"what a build started goes on after {END_S:g} s")
    return 124 if code is None else code if code >= 0 else 128 - code


def read_texts(project: Path, names: Sequence[str]) -> dict[str, str]:
    """The texts of those of a project's files that are there, or that a link leads to."""
    texts = {}
    for name in names:
        with suppress(OSError):
            content = read_regular(os.path.realpath(project / name), MAX_INPUT_BYTES)
            texts[name] = content.decode("utf-8", "replace")
    return texts


def _read_end(path: Path, size: int) -> bytes:
    with open(path, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
        return stream.read(size)


def _as_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-")[:40]
