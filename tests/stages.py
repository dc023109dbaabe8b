"""Places that are made once per worker and laid out for each test: repositories, and sessions that have ended.

A session names absolute paths, in its spec and in its worktrees.  So what was recorded of one always stands at the
same path: the place is emptied, and filled with what was there when it had been made.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest


@dataclass(frozen=True)
class _Entry:
    """One directory, file, symbolic link or FIFO; `content` is what the link leads to."""

    path: str
    mode: int
    times_ns: tuple[int, int]
    content: bytes

    def make(self, root: Path) -> None:
        path = root / self.path
        if stat.S_ISLNK(self.mode):
            path.symlink_to(os.fsdecode(self.content))
            return
        if stat.S_ISDIR(self.mode):
            path.mkdir(exist_ok=True)
        elif stat.S_ISFIFO(self.mode):
            os.mkfifo(path)
        else:
            path.write_bytes(self.content)
        path.chmod(stat.S_IMODE(self.mode))


@dataclass(frozen=True)
class Tree:
    """A directory as it was, with all that it held."""

    entries: tuple[_Entry, ...]

    @classmethod
    def of(cls, root: Path) -> Tree:
        return cls(tuple(_read(root, path) for path in (root, *sorted(root.rglob("*")))))

    def lay_out(self, root: Path) -> None:
        """Make the directory again; there may be an empty one."""
        for entry in self.entries:
            entry.make(root)
        for entry in reversed(self.entries):  # a directory after what is in it
            os.utime(root / entry.path, ns=entry.times_ns, follow_symlinks=False)


def _read(root: Path, path: Path) -> _Entry:
    found = path.lstat()
    content = b""
    if stat.S_ISLNK(found.st_mode):
        content = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(found.st_mode):
        content = path.read_bytes()
    else:
        assert stat.S_ISDIR(found.st_mode) or stat.S_ISFIFO(found.st_mode), path
    return _Entry(str(path.relative_to(root)), found.st_mode, (found.st_atime_ns, found.st_mtime_ns), content)


@cache
def template(make: Callable[[Path], object]) -> Tree:
    """Return what `make` fills an empty directory with; it is called once, and must not name where it works."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return Tree.of(Path(folder))


def git(top: Path, *words: str) -> str:
    """What git prints in a repository, where Ann is at work."""
    argv = ("git", "-c", "user.name=Ann", "-c", "user.email=ann@example.org", *words)
    return subprocess.run(argv, cwd=top, capture_output=True, text=True, check=True).stdout.strip()


def begin_repository(top: Path) -> None:
    """An empty repository of Ann's on `main`, without git's sample hooks."""
    for words in ("init -q -b main", "config user.name Ann", "config user.email ann@example.org"):
        git(top, *words.split())
    for sample in (top / ".git" / "hooks").glob("*.sample"):
        sample.unlink()


def commit_all(top: Path, message: str = "first") -> None:
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", message)


def write_files(top: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


def make_program(path: Path, script: str) -> Path:
    """An executable file; the script is one of sh, unless it says itself whose it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def put_first(root: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A `git` below this directory, first on the PATH, which does something before it is git."""
    program, real = root / "bin" / "git", shutil.which("git")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n{script}\nexec {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


refs_are_files = pytest.mark.skipif(
    os.environ.get("GIT_DEFAULT_REF_FORMAT") == "reftable", reason="a table of refs has one lock, and no files"
)


def make_repository_of(top: Path, files: Mapping[str, str]) -> None:
    """A repository of Ann's with these files in one commit."""
    top.mkdir(parents=True, exist_ok=True)
    begin_repository(top)
    write_files(top, files)
    git(top, "add", "-A")
    git(top, "commit", "-q", "--allow-empty", "-m", "first")


def lay_out_repository(make: Callable[[Path], object], top: Path) -> None:
    """Lay out the repository that `make` makes, with an index that knows the files."""
    template(make).lay_out(top)
    refresh(top)


def refresh(top: Path) -> None:
    """Tell git that the files of a copied repository are those of its index: it goes by inodes and times."""
    subprocess.run(["git", "update-index", "-q", "--refresh"], cwd=top, check=True)


def live_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Home, state and directory of this process are below a place, as those of each test are below its own."""
    for name, folder in {"HOME": "", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}.items():
        monkeypatch.setenv(name, str(place / "home" / folder))
    monkeypatch.chdir(place / "work")


class Stage:
    """Where the recorded places of a worker stand, each at a path of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[Hashable, Tree] = {}
        self._paths: dict[Hashable, Path] = {}

    def enter(self, key: Hashable, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object]) -> Path:
        """Let the test live in the place of this key, as `make` left it when it was called for the first time.

        As in the place that each test has, its home is in `home`, and `work` is where it starts.
        """
        place = self._paths.setdefault(key, self._root / str(len(self._paths)))
        shutil.rmtree(place, ignore_errors=True)
        (place / "home").mkdir(parents=True)
        (place / "work").mkdir()
        live_in(place, monkeypatch)
        if key in self._trees:
            self._trees[key].lay_out(place)
        else:
            make(place)
            self._trees[key] = Tree.of(place)
        return place


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The recorded places of this worker."""
    return Stage(tmp_path_factory.mktemp("recorded"))
