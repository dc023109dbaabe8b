"""A repository with work to land, for tests: branches of tasks made by plain git, and how they land."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from calls import Calls, run_program
from stages import lay_out_repository, make_repository_of

from sessionrun.git.repository import find_repository
from sessionrun.landing.records import Entry, Gates, LandRequest, Report, digest_target
from sessionrun.landing.target import Slot
from sessionrun.landing.turn import land

MAIN: Final = "refs/heads/main"
CHECK: Final = "! grep -rqs BAD --include=*.txt ."
FILES: Final[Mapping[str, str]] = {"a.txt": "a\n", "b.txt": "b\n", "d/c.txt": "c\n", "gone.txt": "gone\n"}

PROGRAM: Final = """
import pickle, sys
from sessionrun.landing.turn import land
with open(sys.argv[1], "rb") as stream:
    land(pickle.load(stream))
"""
"""Lands as a pickled request says."""


@dataclass
class Yard:
    """A repository on `main`, and the entries that may land there."""

    top: Path
    entries: list[Entry] = field(default_factory=list)
    setups: tuple[str, ...] = ()

    def git(self, *words: str, cwd: Path | None = None, codes: Sequence[int] = (0,)) -> str:
        environ = {
            **os.environ,
            "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
            "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
        }
        argv = ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.org", *words]
        done = subprocess.run(argv, cwd=cwd or self.top, capture_output=True, text=True, env=environ)
        assert done.returncode in codes, done.stderr
        return done.stdout.strip()

    def sh(self, script: str, cwd: Path | None = None) -> None:
        subprocess.run(["sh", "-ec", script], cwd=cwd or self.top, check=True, capture_output=True)

    def commit(self, files: Mapping[str, str | None], parent: str = "main", message: str = "work") -> str:
        """A commit on top of another one, made without a checkout; a file of None is deleted.

        The text of a program begins with ``*``, that of a link to another repository is ``@`` and its commit.
        """
        lines = ["commit refs/sessionrun-test", "mark :1", "committer Ann <ann@example.org> 1767225600 +0000"]
        lines += [f"data {len(message.encode())}", message, f"from {parent}^0"]
        for name, text in files.items():
            if text is None:
                lines.append(f"D {name}")
            elif text.startswith("@"):
                lines.append(f"M 160000 {text[1:]} {name}")
            else:
                mode, content = ("100755", text[1:]) if text.startswith("*") else ("100644", text)
                lines += [f"M {mode} inline {name}", f"data {len(content.encode())}", content]
        nothing = "0" * len(self.git("rev-parse", "main"))
        lines += ["", "get-mark :1", "reset refs/sessionrun-test", f"from {nothing}", ""]
        argv = ["git", "fast-import", "--quiet", "--force", "--cat-blob-fd=1"]
        done = subprocess.run(
            argv, cwd=self.top, input="\n".join(lines), capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def add(self, task: str, files: Mapping[str, str | None], parent: str = "main", **more: Any) -> Entry:
        """A task whose work is these files."""
        base = self.git("rev-parse", parent)
        tip = self.commit(files, base, f"Work of task {task}")
        self.git("update-ref", f"refs/heads/main-task-{task}", tip)
        entry = Entry(task, tip, base, title=f"do {task}", **more)
        self.entries.append(entry)
        return entry

    def request(self, *gates: str, target: str = MAIN, **more: Any) -> LandRequest:
        repository, _ = find_repository(self.top, base="main", worktree_dir=None, keep="never")
        session = self.top.parent / "session-1"
        return LandRequest(
            repository=repository,
            session_id="5e551011-0000-4000-8000-000000000000",
            folder=str(session / "landing" / digest_target(target)),
            target=target,
            entries=tuple(self.entries),
            gates=Gates(gates, 60.0),
            setups=self.setups,
            late_s=0.01,
            **more,
        )

    def land(self, *gates: str, **more: Any) -> Report:
        return land(self.request(*gates, **more))

    def land_apart(
        self, *gates: str, environ: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.CompletedProcess[str]:
        path = self.top.parent / "request"
        path.write_bytes(pickle.dumps(self.request(*gates)))
        return run_program(PROGRAM, str(path), environ=environ)

    def land_killed(self, *gates: str, rule: str) -> None:
        calls = Calls(self.top.parent / "calls", f"land+:{rule}")
        self.land_apart(*gates, environ=calls.environ("land"))
        assert calls.has_hit() == [True]

    def statuses(self, report: Report) -> dict[str, str]:
        return {fate.task: fate.status for fate in report.fates}

    def files(self, commit: str = "main") -> list[str]:
        return self.git("ls-tree", "-r", "--name-only", commit).split("\n")

    def read(self, name: str, commit: str = "main") -> str:
        return self.git("show", f"{commit}:{name}")

    def examine(self, entries: Sequence[str] = ()) -> list[str]:
        """What is wrong: locks or records that are left, a dirty checkout, work that landed twice, a red state."""
        wrong = [
            str(path) for path in (self.top / ".git").rglob("*.lock") if not path.name.startswith("sessionrun")
        ]
        wrong += [str(path) for path in (self.top / ".git").rglob("sessionrun-index*")]
        request = self.request()
        if Slot(request.repository, MAIN).record_path.exists():
            wrong.append("a record")
        work = Path(request.folder, "work")
        wrong += ["temporary directories"] if work.exists() else []
        for commit in self.git("rev-list", "--first-parent", "main").split("\n"):
            red = self.git("grep", "-l", "BAD", commit, "--", "*.txt", codes=(0, 1))
            wrong += [f"{commit} is red: {red}"] if red else []
        merges = self.git("log", "--format=%s", "main").split("\n")
        for task in entries:
            count = sum(line.startswith(f"Merge task {task}:") for line in merges)
            wrong += [f"{task} landed {count} times"] if count != 1 else []
        return wrong


def make_yard(place: Path, *, detached: bool = False) -> Yard:
    """The repository, with `main` checked out, or no branch."""
    yard = Yard(place / "repo")
    place.mkdir(exist_ok=True)
    lay_out_repository(_make, yard.top)
    if detached:
        yard.git("checkout", "-q", "--detach")
    return yard


def _make(top: Path) -> None:
    make_repository_of(top, FILES)
