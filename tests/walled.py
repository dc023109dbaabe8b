"""A place where the real command runs sessions with walls, as whoever runs the tests or as another user.

The other user is only there for root: to root, walls are thinner.  Its place lies below the system's directory for
temporary files, since those of the tests cannot be reached by others.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import psutil
import pytest
from conftest import eventually, kill_sessions

from sessionrun.model.asked import Sandbox
from sessionrun.store.session import SessionDir
from sessionrun.walls import groups
from sessionrun.walls.trial import find_problem

OTHER: Final = 65534
"""The other user (nobody)."""

LIMIT_S: Final = 600.0
"""How long a session may take on a machine that is busy."""


@functools.cache
def why_no_walls() -> str | None:
    """Why the tests cannot build walls here; None: they can."""
    return find_problem("project") or find_problem("strict", network=False)


def need_walls() -> None:
    """Skip the test, with the reason, where no walls can be built."""
    if (problem := why_no_walls()) is not None:
        pytest.skip(f"no walls here: {problem}")


def need_groups(wish: Sandbox) -> None:
    """Skip the test, with the reason, where no control groups for these limits can be made."""
    problem = groups.find_problem(wish)
    if problem is not None:
        pytest.skip(problem)


IS_INSIDE: Final = "tr '\\0' ' ' < /proc/1/cmdline | grep -q bwrap"
"""Passes inside of walls: the first process is bubblewrap's."""


def closed(policy: str) -> dict[str, Any]:
    """The sandbox of a task that needs no network."""
    return {"policy": policy, "network": "none"}


def reasons(tasks: Mapping[str, Any]) -> dict[str, Any]:
    """Of tasks that did not succeed: the outcome and why."""
    ends = {name: (task["outcome"], task["reason"]) for name, task in tasks.items()}
    return {name: end for name, end in ends.items() if end[0] != "succeeded"}


def bare_path(folder: Path) -> str:
    """A PATH with git and the rest, and without bubblewrap."""
    folder.mkdir()
    for name in ("git", "sh", "true"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return str(folder)


def is_running(mark: str) -> bool:
    """Whether a process has this in its words."""
    found = (process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"]))
    return any(mark in word for words in found for word in words)


@dataclass
class Walled:
    """A user's machine: a home, a repository, and the command; all of it goes at the end."""

    root: Path
    python: str
    other: bool
    environ: dict[str, str] = field(default_factory=dict)
    number: int = 0

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def top(self) -> Path:
        return self.root / "repo"

    @property
    def results(self) -> Path:
        return Path(self.environ["SESSIONRUN_RESULTS_DIR"])

    def call(
        self, *argv: str, cwd: Path | None = None, code: int | None = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as the user."""
        drop = ("setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups") if self.other else ()
        done = subprocess.run(
            [*drop, *argv],
            cwd=cwd or self.top,
            env={**self.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=LIMIT_S,
        )
        assert code is None or done.returncode == code, (argv, done.returncode, done.stdout, done.stderr)
        return done

    def git(self, *words: str) -> str:
        return self.call("git", *words).stdout.strip()

    def sh(self, script: str, cwd: Path | None = None) -> str:
        return self.call("sh", "-ec", script, cwd=cwd).stdout

    def make_repository(self, *words: str) -> None:
        self.top.mkdir(exist_ok=True)
        self.give(self.top)
        self.git("init", "-q", "-b", "main", *words)
        self.sh("printf '*.log\\n' > .gitignore; echo a > a.txt; mkdir sub; echo b > sub/b.txt; git add -A")
        self.git("commit", "-q", "-m", "first")

    def give(self, *paths: Path) -> None:
        """Give what root has made to the user."""
        for path in paths if self.other else ():
            os.chown(path, OTHER, OTHER, follow_symlinks=False)

    def write(self, name: str, content: str) -> Path:
        """Write a file below the root, with its directories, as the user's."""
        path = self.root / name
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        self.give(path, *made)
        return path

    def command(
        self, *words: str, code: int | None = 0, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command; results lie beside the repository unless the words say otherwise."""
        return self.call(self.python, "-m", "sessionrun", *words, code=code, env=env, cwd=cwd)

    def start(self, plan: object, *words: str, env: Mapping[str, str] | None = None) -> SessionDir:
        """Start a session of a plan with worktrees; it runs on behind the test."""
        self.number += 1
        whole = plan if isinstance(plan, dict) else {"prompts": plan}
        file = self.write(f"plan-{self.number}.json", json.dumps(whole))
        done = self.command("-q", "--worktree", "--agent", "shell", *words, str(file), env=env)
        (session_id,) = done.stdout.split()
        return SessionDir(self.results / f"session-{session_id}")

    def run(self, plan: object, *words: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run a session to its end; its tasks by id, as `status --json` shows them."""
        return self.finish(self.start(plan, *words, env=env))

    def finish(self, session: SessionDir) -> dict[str, Any]:
        """Wait for the end of a session; its tasks by id."""

        def has_ended() -> bool:
            summary = session.load_summary()
            return summary is not None and bool(summary["ended_at"]) and not session.is_alive()

        eventually(has_ended, timeout_s=LIMIT_S)
        view = json.loads(self.command("status", session.session_id, "--json").stdout)
        return {task["id"]: {**task, "session": session} for task in view["tasks"]}

    def printed(self, task: Mapping[str, Any]) -> str:
        return Path(task["session"].output_path(task["id"])).read_text(errors="replace")

    def files(self, branch: str) -> set[str]:
        return set(self.git("ls-tree", "-r", "--name-only", branch).split())

    def snapshot(self) -> dict[str, bytes]:
        """All of the repository but objects, and the books and branches of tasks."""
        found = {}
        for path in sorted(self.top.rglob("*")):
            name = str(path.relative_to(self.top))
            ours = name == ".git/sessionrun.lock" or "main-task-" in name
            mine = not name.startswith((".git/objects/", ".git/worktrees")) and not ours
            if mine and path.is_file():
                found[name] = path.read_bytes()
        return found


def _find_python(*, other: bool) -> str | None:
    """An interpreter that the user can run, and that has our libraries."""
    if not other:
        return sys.executable
    program = shutil.which("python3", path="/usr/bin:/bin")
    words = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": _find_libraries()}
    asked = [*words, program or "", "-c", "import sessionrun.cli, orjson"]
    done = subprocess.run(asked, cwd="/", env=environ, capture_output=True) if shutil.which("setpriv") else None
    return program if done is not None and done.returncode == 0 else None


def _find_libraries() -> str:
    package = Path(__file__).parents[1]
    return f"{package}:{Path(orjson.__file__).parents[1]}"


@contextmanager
def make_walled(*, other: bool) -> Iterator[Walled]:
    """A place of a user, with a repository; skips the test where there is no such user."""
    need_walls()
    if other and os.geteuid() != 0:
        pytest.skip("only root can be another user as well")
    python = _find_python(other=other)
    if python is None:
        pytest.skip("another user cannot run an interpreter with our libraries here")
    root = Path(tempfile.mkdtemp(prefix="sessionrun-walls-test-", dir="/tmp"))
    site = Walled(root, python, other)
    try:
        site.give(root)
        (root / "home").mkdir()
        site.give(root / "home")
        site.environ = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(site.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "XDG_STATE_HOME": str(site.home / "state"),
            "XDG_CONFIG_HOME": str(site.home / "config"),
            "PYTHONPATH": _find_libraries(),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SESSIONRUN_RESULTS_DIR": str(root / "results"),
        }
        site.write("home/.gitconfig", "[user]\n\tname = Ann\n\temail = ann@example.org\n")
        site.make_repository()
        yield site
    finally:
        kill_sessions(site.results)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def site(own_place: Path) -> Iterator[Walled]:
    """A place of whoever runs the tests."""
    with make_walled(other=False) as made:
        yield made
