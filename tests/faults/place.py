"""Where a campaign runs: directories of its own, the real command, and waiting without sleeping blindly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from sessionrun.store.processes import send_signal
from sessionrun.store.session import SessionDir, iterate_sessions

from .chain import Role, find_left, kill_role

KILL_S: Final = 60.0
POLL_S: Final = 0.01
LAST_POLL_S: Final = 0.05

_COMMAND: Final = [sys.executable, "-m", "sessionrun"]


def wait_until(condition: Callable[[], Any], timeout_s: float) -> bool:
    """Call until the answer is true; False when it did not become so in time.  The pauses in between grow."""
    deadline, pause_s = time.monotonic() + timeout_s, POLL_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, LAST_POLL_S)
    return True


def kill_surely(session: SessionDir, role: Role) -> None:
    """Kill who plays this role; for the moment of a spawn a keeper looks like what it spawns, and is not found."""
    assert wait_until(lambda: kill_role(session.path, role), KILL_S), f"no {role} is found"


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

    def resume(self, session: SessionDir) -> str:
        """Resume a session; what was said."""
        _, out, said = self.run_verb("resume", session.session_id)
        return (out or said).strip()

    @contextmanager
    def nest(self, name: object) -> Iterator[Place]:
        """A place in this one, whose sessions are ended afterwards."""
        inside = Place(self.path / str(name), dict(self.environ))
        inside.path.mkdir()
        try:
            yield inside
        finally:
            end_sessions(inside.results)


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
        end_sessions(place.results)
        shutil.rmtree(path, ignore_errors=True)


def end_sessions(results: Path) -> None:
    """Kill every process of the sessions in a results directory, until none is left."""
    for session in iterate_sessions(results):

        def is_empty(path: Path = session.path) -> bool:
            left = find_left(path)
            for process in left:
                send_signal(process.identity, signal.SIGKILL)
            return not left

        wait_until(is_empty, 20.0)
