"""Places that are made once per worker and laid out for each test: repositories, and sessions that have ended.

A session names absolute paths, in its spec and in its worktrees.  So what was recorded of one always stands at the
same path: the place is emptied, and filled with what was there when it had been made.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path

import pytest

import sessionrun as package


class Tree:
    """A directory as it was, with all that it held: an archive, because that knows links, FIFOs and times."""

    def __init__(self, root: Path) -> None:
        self._content = io.BytesIO()
        with tarfile.open(fileobj=self._content, mode="w") as archive:
            archive.add(root, ".")

    def lay_out(self, root: Path) -> None:
        """Make the directory again; there may be an empty one."""
        self._content.seek(0)
        with tarfile.open(fileobj=self._content) as archive:
            archive.extraction_filter = lambda member, _: member
            archive.extractall(root)


@cache
def template(make: Callable[[Path], object]) -> Tree:
    """Return what `make` fills an empty directory with; it is called once, and must not name where it works."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        return Tree(Path(folder))


def git(top: Path, *words: str) -> str:
    """What git prints in a repository, where Ann is at work."""
    argv = ("git", "-c", "user.name=Ann", "-c", "user.email=ann@example.org", *words)
    return subprocess.run(argv, cwd=top, capture_output=True, text=True, check=True).stdout.strip()


def begin_repository(top: Path, names: str = "sha1") -> None:
    """An empty repository of Ann's on `main`, without git's sample hooks."""
    for words in (
        f"init -q -b main --object-format={names}",
        "config user.name Ann",
        "config user.email ann@example.org",
    ):
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


def copy_package(place: Path) -> Path:
    """Copy our package into a directory; where it is there."""
    there = place / "sessionrun"
    shutil.copytree(Path(package.__file__).parent, there, ignore=shutil.ignore_patterns("__pycache__"))
    return there


def put_first(root: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A `git` below this directory, first on the PATH, which does something before it is git."""
    program = make_program(root / "bin" / "git", f'{script}\nexec {shutil.which("git")} "$@"')
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


refs_are_files = pytest.mark.skipif(
    os.environ.get("GIT_DEFAULT_REF_FORMAT") == "reftable", reason="a table of refs has one lock, and no files"
)


def make_repository_of(top: Path, files: Mapping[str, str], names: str = "sha1") -> None:
    top.mkdir(parents=True, exist_ok=True)
    begin_repository(top, names)
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
    """Make home, state and directory of this process below a place, as those of each test are below its own."""
    for folder in ("home", "work"):
        (place / folder).mkdir(parents=True)
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
        live_in(place, monkeypatch)
        if key in self._trees:
            self._trees[key].lay_out(place)
        else:
            make(place)
            self._trees[key] = Tree(place)
        return place


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("recorded"))
