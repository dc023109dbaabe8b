"""A repository of a task's own: the base and some commits before it, whatever else the mirror has."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
from calls import each_call, needs_calls, run_program

from sessionrun.git.clone import drop_excerpt, list_alternates, make_excerpt
from sessionrun.git.mirrors import locate_mirror, use_mirror
from sessionrun.model import places
from sessionrun.model.errors import SessionrunError


def git(top: Path, *argv: str, minute: int = 0) -> str:
    words = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", *argv)
    environ = {**os.environ, "GIT_COMMITTER_DATE": f"2026-01-01T00:{minute:02}:00Z"}
    return subprocess.run(words, cwd=top, check=True, capture_output=True, text=True, env=environ).stdout.strip()


class Upstream:
    """A repository with a base, later commits, tags and other branches; and its mirror."""

    def __init__(self, place: Path) -> None:
        self.top = place / "upstream"
        self.top.mkdir()
        git(self.top, "init", "-q", "-b", "main")
        self.commits = []
        for number in range(10):
            (self.top / "file").write_text(f"{number}\n" * 3)
            git(self.top, "add", "-A")
            git(self.top, "commit", "-qm", f"c{number}", minute=number)
            self.commits.append(git(self.top, "rev-parse", "HEAD"))
        self.base = self.commits[5]
        git(self.top, "tag", "light", self.commits[8])
        git(self.top, "tag", "-a", "-m", "later", "v9", self.commits[7], minute=8)
        git(self.top, "tag", "v2", self.commits[4])
        git(self.top, "tag", "-a", "-m", "note", "v1", self.commits[2], minute=3)
        git(self.top, "tag", "-a", "-m", "what came later", "v3", self.commits[5], minute=9)
        git(self.top, "tag", "-a", "-m", "of a tag", "nested", "v1", minute=3)
        self.note = git(self.top, "rev-parse", "v1")
        git(self.top, "branch", "other", self.commits[9])
        git(self.top, "checkout", "-q", "-b", "side", self.commits[3])
        git(self.top, "commit", "-q", "--allow-empty", "-m", "aside")
        git(self.top, "checkout", "-q", "main")
        self.mirror = locate_mirror(place / "cache", str(self.top))
        with use_mirror(places.Upstream(str(self.top), self.base, str(self.mirror)), None):
            pass


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    """It is only read."""
    return Upstream(tmp_path_factory.mktemp("upstream"))


@pytest.mark.parametrize(
    ("history", "seen", "tags"),
    [(0, "c5", "v3"), (2, "c5 c4 c3", "v2 v3"), (50, "c5 c4 c3 c2 c1 c0", "v1 v2 v3")],
)
def test_nothing_else_is_there(upstream: Upstream, tmp_path: Path, history: int, seen: str, tags: str) -> None:
    """Of tags those of its commits; an object of a tag only if it was made before the base was."""
    own = tmp_path / "own.git"
    make_excerpt(own, upstream.mirror, upstream.base, history)
    assert git(own, "log", "--all", "--format=%s").split() == seen.split()
    listed = git(own, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
    commits = {line.split()[0] for line in listed.split("\n") if line.endswith("commit")}
    assert commits == set(upstream.commits[5 - len(seen.split()) + 1 : 6])
    noted = {line.split()[0] for line in listed.split("\n") if line.endswith("tag")}
    assert noted == ({upstream.note} if "v1" in tags else set())
    assert git(own, "fsck", "--full", "--strict") == ""
    refs = ["refs/sessionrun/base", *(f"refs/tags/{tag}" for tag in tags.split())]
    assert git(own, "for-each-ref", "--format=%(refname)").split() == refs
    assert git(own, "describe", "--tags", "--long", upstream.base).startswith("v3-0-")
    for tag in tags.split():
        assert git(own, "rev-parse", f"{tag}^{{commit}}") == git(upstream.top, "rev-parse", f"{tag}^{{commit}}")
    assert not (own / "objects" / "info" / "alternates").exists()
    for later in (upstream.commits[6], upstream.commits[9]):
        assert subprocess.run(["git", "cat-file", "-e", later], cwd=own, capture_output=True).returncode != 0


def test_it_is_whole_or_it_is_not_there(upstream: Upstream, tmp_path: Path) -> None:
    own = tmp_path / "place" / "own.git"
    with pytest.raises(SessionrunError):
        make_excerpt(own, upstream.mirror, "f" * 40, 3)
    assert list(own.parent.iterdir()) == []
    make_excerpt(own, upstream.mirror, upstream.base, 3)
    before = (own / "shallow").stat().st_mtime_ns
    make_excerpt(own, upstream.mirror, upstream.base, 3)
    assert (own / "shallow").stat().st_mtime_ns == before, "what is there is taken as it is"


MAKE = """
import sys
from pathlib import Path
from sessionrun.git.clone import make_excerpt
make_excerpt(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], 3, Path(sys.argv[4]))
"""


@needs_calls
@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_an_excerpt_that_is_killed_at_any_point_is_whole_or_not_there(
    upstream: Upstream, tmp_path: Path, every: int
) -> None:
    """In Python and in git; what is made after that is whole, and what a crash left goes with it."""
    own = tmp_path / "trees" / "own.git"
    words = (str(own), str(upstream.mirror), upstream.base, str(tmp_path))

    def check(at: int) -> None:
        assert git(own, "fsck", "--full", "--strict") == "", at
        assert git(own, "log", "--all", "--format=%s").split() == ["c5", "c4", "c3", "c2"], at
        tags = ["refs/tags/v1", "refs/tags/v2", "refs/tags/v3"]
        assert git(own, "for-each-ref", "--format=%(refname)").split() == ["refs/sessionrun/base", *tags], at

    run = partial(run_program, MAKE, *words)
    for at, _ in each_call(lambda environ: run(environ=environ), tmp_path / "calls", "excerpt+", every=every):
        if own.exists():
            check(at)
        make_excerpt(own, upstream.mirror, upstream.base, 3)
        check(at)
        drop_excerpt(own)
        assert list(own.parent.iterdir()) == [], at
    assert at > 20


def test_it_goes_when_it_holds_no_branch(upstream: Upstream, tmp_path: Path) -> None:
    own = tmp_path / "own.git"
    make_excerpt(own, upstream.mirror, upstream.base, 3)
    (tmp_path / ".new-own.git-x").mkdir()
    git(own, "branch", "work", upstream.base)
    for pack in (False, True):
        if pack:
            git(own, "pack-refs", "--all")
        drop_excerpt(own)
        assert own.is_dir() and not (tmp_path / ".new-own.git-x").exists()
    git(own, "branch", "-D", "work")
    drop_excerpt(own)
    assert not own.exists()
    drop_excerpt(own)


def test_alternates_of_alternates_are_found(tmp_path: Path) -> None:
    for name, line in (("a", "../../b/objects"), ("b", f"{tmp_path}/c/objects"), ("c", "../../a/objects")):
        (tmp_path / name / "objects" / "info").mkdir(parents=True)
        (tmp_path / name / "objects" / "info" / "alternates").write_text(f"# none\n{line}\n")
    found = [str(tmp_path / name / "objects") for name in ("b", "c", "a")]
    assert list(list_alternates(tmp_path / "a")) == found
