"""Where a campaign runs: directories of its own, and the real command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from conftest import kill_sessions

from sessionrun.store.session import SessionDir

_COMMAND: Final = [sys.executable, "-m", "sessionrun"]


@dataclass
class Place:
    """Directories of a campaign, and the environment that its commands get."""

    path: Path
    environ: dict[str, str] = field(default_factory=dict)
    real: bool = False
    """Whether each command is an interpreter of its own: what it costs is measured."""
    warm: ClassVar[Any] = None
    """What starts our commands in tests without a new interpreter; None where a campaign runs by itself."""

    @property
    def results(self) -> Path:
        """The results directory."""
        return self.path / "results"

    @property
    def executed(self) -> Path:
        """What ran, told by those that ran: a line for each start, by one write(2)."""
        return self.path / "executed"

    def run_argv(self, plan: object, *words: str) -> list[str]:
        """How to run a plan on the shell agent; the command prints the session's id alone."""
        file = self.path / f"plan-{time.monotonic_ns()}.json"
        file.write_text(json.dumps(plan))
        options = ["-q", "--agent", "shell", "--results-dir", str(self.results), *words]
        return [*_COMMAND, "run", *options, str(file)]

    def popen(self, argv: list[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Any:
        """Start one of our commands beside the test; both outputs are read at its end."""
        environ = {**self.environ, **(env or {})}
        if self.warm is not None and not self.real and argv[:3] == _COMMAND and self.warm.serves(environ):
            return self.warm.popen(argv[3:], cwd=cwd or self.path, environ=environ)
        return subprocess.Popen(
            argv,
            cwd=cwd or self.path,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(
        self, plan: object, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> SessionDir:
        """Start a session; raises AssertionError with what was said when that fails."""
        process = self.popen(self.run_argv(plan, *words), env=env, cwd=cwd)
        out, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        return self.session(out.strip())

    def session(self, session_id: str) -> SessionDir:
        """The session of an id."""
        return SessionDir(self.results / f"session-{session_id}")

    def start_verb(self, *words: str, env: Mapping[str, str] | None = None) -> Any:
        """Start a verb about the sessions of the place, beside the test."""
        return self.popen([*_COMMAND, *words, "--results-dir", str(self.results)], env=env)

    def run_verb(self, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run such a verb: its code and both outputs."""
        process = self.start_verb(*words, env=env)
        out, said = process.communicate(timeout=120)
        return process.returncode, out, said

    def resume(self, session: SessionDir) -> None:
        """Resume a session; raises AssertionError with what was said when it does not go on."""
        _, out, said = self.run_verb("resume", session.session_id)
        assert out.strip().endswith(": goes on"), said

    def copy(self, session: SessionDir, *changes: tuple[str, str]) -> SessionDir:
        """A session under another id, with no process; `changes` are made in its spec."""
        made = self.session(str(uuid.uuid4()))
        shutil.copytree(session.path, made.path, ignore=shutil.ignore_patterns("wake", "*.lock", "lock"))
        os.mkfifo(made.wake_path, 0o600)
        spec = made.spec_path.read_text()
        for old, new in ((session.session_id, made.session_id), *changes):
            spec = spec.replace(old, new)
        made.spec_path.write_text(spec)
        return made

    @contextmanager
    def nest(self, name: object) -> Iterator[Place]:
        """A place in this one, whose sessions are ended afterwards."""
        inside = Place(self.path / str(name), dict(self.environ))
        inside.path.mkdir()
        try:
            yield inside
        finally:
            kill_sessions(inside.results)


@contextmanager
def make_place(parent: Path | None = None) -> Iterator[Place]:
    """A place that vanishes afterwards, with all processes of the sessions in it."""
    path = Path(tempfile.mkdtemp(prefix="faults-", dir=parent)).resolve()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SESSIONRUN_")}
    environ["PYTHONPATH"] = str(os.environ.get("PYTHONPATH") or Path(__file__).parents[2])
    environ.update(HOME=str(path), XDG_STATE_HOME=str(path / "state"), XDG_CONFIG_HOME=str(path / "config"))
    place = Place(path, environ)
    try:
        yield place
    finally:
        kill_sessions(place.results)
        shutil.rmtree(path, ignore_errors=True)
