"""A repository of a task's own: the base and some commits before it, whatever else the mirror has."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sessionrun.model.errors import SessionrunError
from sessionrun.workspaces.clone import drop_excerpt, make_excerpt
from sessionrun.workspaces.mirrors import fetch_mirror, locate_mirror


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
        self.mirror.parent.mkdir(parents=True)
        fetch_mirror(self.mirror, str(self.top), [self.base])


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


GIT = """#!/bin/sh
count=$(($(wc -l < {calls}) + 1))
echo $count >> {calls}
[ $count.before != {dies} ] || kill -KILL $PPID
{git} "$@"
code=$?
[ $count.after != {dies} ] || kill -KILL $PPID
exit $code
"""
"""A git that kills the process that calls it, before or after its call of a number has done its work."""


class Victim:
    """Makes the repository in a process of its own, which is killed."""

    def __init__(self, upstream: Upstream, place: Path) -> None:
        self.upstream, self.own, self.place = upstream, place / "trees" / "own.git", place
        self.git, self.calls = place / "bin" / "git", place / "calls"
        self.git.parent.mkdir()

    def make(self) -> None:
        make_excerpt(self.own, self.upstream.mirror, self.upstream.base, 3, self.place)

    def die(self, dies: str) -> bool:
        """Make it with a git that kills; whether it did."""
        self.git.write_text(GIT.format(calls=self.calls, git=shutil.which("git"), dies=dies))
        self.git.chmod(0o755)
        self.calls.write_text("")
        pid = os.fork()
        if pid == 0:
            try:
                os.environ["PATH"] = f"{self.git.parent}:{os.environ['PATH']}"
                self.make()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL)
        return code != 0

    def is_whole(self) -> bool:
        """Whether what has the final name is all of it."""
        refs = git(self.own, "for-each-ref", "--format=%(refname)").split()
        log = git(self.own, "log", "--all", "--format=%s").split()
        sound = git(self.own, "fsck", "--full", "--strict") == ""
        return sound and log == ["c5", "c4", "c3", "c2"] and refs == ["refs/sessionrun/base", *TAGS]


TAGS = ["refs/tags/v1", "refs/tags/v2", "refs/tags/v3"]


def sweep(victim: Victim, points: Iterable[str]) -> Iterator[str]:
    """Die at each of these points, and look at what is left and at what is made after that."""
    for dies in points:
        died = victim.die(dies)
        assert died != victim.own.exists(), f"{dies}: nothing has the name before it is whole"
        if died:
            yield dies
        victim.make()
        assert victim.is_whole(), dies
        assert not (victim.own / "worktrees").exists()
        drop_excerpt(victim.own)
        assert list(victim.own.parent.iterdir()) == [], f"{dies}: what a crash left goes with it"


def test_what_is_half_made_is_not_trusted(upstream: Upstream, tmp_path: Path) -> None:
    points = ["1.after", "7.before"]
    assert list(sweep(Victim(upstream, tmp_path), points)) == points


@pytest.mark.slow
def test_a_repository_that_is_killed_at_any_git_step(upstream: Upstream, tmp_path: Path) -> None:
    """Before and after each; the last point is one that is not reached."""
    points = [f"{number}.{side}" for number in range(1, 9) for side in ("before", "after")]
    assert list(sweep(Victim(upstream, tmp_path), points)) == points[:-2]


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
