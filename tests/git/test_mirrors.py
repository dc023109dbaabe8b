"""Mirrors in the cache: what has the final name is whole, whatever was killed, planted or done meanwhile.

An excerpt, the repository of a task's own, has the base and some commits before it, whatever its mirror has.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest
from calls import each_call, needs_calls, run_program
from stages import begin_repository, git, make_program

from sessionrun.git.clone import drop_excerpt, list_alternates, make_excerpt
from sessionrun.git.git import Git
from sessionrun.git.mirrors import MARKER, iterate_mirrors, locate_mirror, remove_mirror, use_mirror
from sessionrun.model.errors import RepositoryFailed, SessionrunError
from sessionrun.model.places import Start, Upstream, check_ref, parse_repo
from sessionrun.store import trees
from sessionrun.store.locks import hold_lock
from sessionrun.store.trees import hold_entry, lock_path


@dataclass
class Place:
    """A repository, a cache, and the folder of a session."""

    root: Path

    @property
    def top(self) -> Path:
        return self.root / "upstream"

    def run(self, *argv: str, cwd: Path | None = None) -> str:
        return git(cwd or self.top, *argv)

    def commit(self, name: str = "a.txt", text: str = "more\n") -> str:
        (self.top / name).write_text(text)
        self.run("add", "-A")
        self.run("commit", "-q", "--allow-empty", "-m", name)
        return self.run("rev-parse", "HEAD")

    def upstream(self, ref: str | None = None, repo: str | None = None) -> Upstream:
        repo = repo or str(self.top)
        return Upstream(repo, ref, str(locate_mirror(self.root / "cache", repo)))

    @property
    def mirror(self) -> Path:
        return Path(self.upstream().mirror)

    def use(self, ref: str | None = None, *, note: str = "note", repo: str | None = None, **words: Any) -> Start:
        """Where a task of the session `note` begins."""
        path = self.root / f"{note}-{ref}".replace("/", "-")
        with use_mirror(self.upstream(ref, repo), path, self.root, **{"limit_s": 60, **words}) as start:
            return start

    def use_in_process(
        self, *refs: str, variables: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.CompletedProcess[str]:
        """The same in a process of its own, one ref after the other."""
        program = (
            "import sys; from pathlib import Path\n"
            "from sessionrun.model.places import Upstream\n"
            "from sessionrun.git.mirrors import use_mirror\n"
            "repo, mirror, note, *refs = sys.argv[1:]\n"
            "for ref in refs:\n"
            "    with use_mirror(Upstream(repo, ref, mirror), Path(note + ref), Path(note).parent) as start:\n"
            "        print(start.commit)"
        )
        words = [str(self.top), str(self.mirror), str(self.root / "note"), *refs]
        return run_program(program, *words, environ=variables)


@pytest.fixture
def place(own_place: Path) -> Place:
    """A repository of one commit on its branch main."""
    found = Place(own_place)
    found.top.mkdir()
    begin_repository(found.top)
    found.commit()
    return found


@pytest.mark.parametrize(
    ("text", "repo"),
    [
        ("psf/requests", "https://github.com/psf/requests"),
        ("psf/requests.git", "https://github.com/psf/requests"),
        ("HTTPS://GitHub.com:443/psf/requests.git/", "https://github.com/psf/requests"),
        ("https://example.org/a/b.git", "https://example.org/a/b.git"),
        ("http://127.0.0.1:8000/x", "http://127.0.0.1:8000/x"),
        ("ssh://git@Host.example:2222/a/b", "ssh://git@host.example:2222/a/b"),
        ("git://[::1]/a", "git://[::1]/a"),
        ("git@GitHub.com:psf/requests.git", "git@github.com:psf/requests.git"),
        ("file:///srv/a", "/srv/a"),
        ("./here", "./here"),
        ("../a/b", "../a/b"),
        ("/srv/a.bundle", "/srv/a.bundle"),
        ("cache/a.bundle", "./cache/a.bundle"),
    ],
)
def test_a_repository_has_one_spelling(text: str, repo: str) -> None:
    assert parse_repo(text) == repo
    assert parse_repo(repo) == repo


@pytest.mark.parametrize(
    "text",
    [
        "ext::sh -c date",
        "-u/x",
        "--upload-pack=date",
        "https://user:secret@example.org/a",
        "https://example.org",
        "ssh://-oProxyCommand=date/x",
        "-oProxyCommand=date:x",
        "ftp://example.org/x",
        "file://other/x",
        "name",
        "a/b/c",
        "",
    ],
)
def test_a_name_that_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        parse_repo(text)


@pytest.mark.parametrize("ref", ["-x", "a..b", "a b", "a~1", "a^", "x:y", "@{1}", "a.lock", "/a", "a/", "@"])
def test_a_name_that_is_no_ref_is_refused(ref: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        check_ref(ref)
    assert check_ref("feature/x.1") == "feature/x.1"


def test_mirrors_of_different_repositories_have_different_names(place: Place) -> None:
    repos = ["https://a/x", "https://b/x", "/srv/x", "/srv/x.git", "/srv/y/x", "https://a/x-y", "https://a/x/y"]
    assert len({locate_mirror(place.root, repo).name for repo in repos}) == len(repos)


@pytest.mark.parametrize("names", ["sha1", "sha256"])
def test_a_mirror_has_all_branches_and_tags_and_no_task_branch(place: Place, names: str) -> None:
    rmtree(place.top / ".git")
    begin_repository(place.top, names)
    place.commit()
    first = place.run("rev-parse", "HEAD")
    place.run("tag", "-a", "-m", "one", "v1")
    place.run("checkout", "-q", "-b", "feature/x")
    second = place.commit()
    assert place.use() == Start("feature/x", second)
    assert place.use("main", note="b") == Start("main", first)
    assert place.use("v1", note="c") == Start("v1", first)
    assert place.use("refs/tags/v1", note="d") == Start("v1", first)
    assert place.use(first[:10], note="e") == Start(first[:12], first)
    assert place.run("for-each-ref", "refs/heads", cwd=place.mirror) == ""
    assert place.run("fsck", "--full", cwd=place.mirror) == ""
    assert not list(place.mirror.parent.glob(".new-*"))
    make_excerpt(place.root / "own.git", place.mirror, second, 0)
    assert place.run("rev-list", "--all", cwd=place.root / "own.git") == second
    third = place.commit()
    assert place.use("feature/x", note="f") == Start("feature/x", third)


def test_tasks_of_one_session_begin_at_the_same_commit_and_a_new_session_at_the_new_one(place: Place) -> None:
    first = place.use("main").commit
    second = place.commit()
    assert place.use("main").commit == first
    assert place.use("main", note="other").commit == second


def test_a_ref_that_another_task_fetched_meanwhile(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = place.use("main"), place.root / "other-main"
    content = (place.root / "note-main").read_bytes()
    place.commit()
    monkeypatch.setattr(trees, "hold_entry", lambda *words: other.write_bytes(content) and hold_entry(*words))
    assert place.use("main", note="other") == first


def test_what_no_branch_has_is_fetched_by_its_name_and_a_commit_is_pinned(place: Place) -> None:
    """Also if only a part of it is there: an agent may have made it in the mirror."""
    place.use()
    lost = place.commit(text="lost\n")
    place.run("update-ref", "refs/pull/3/head", lost)
    place.run("reset", "-q", "--hard", "HEAD~1")
    content = Git(place.top)("cat-file", "commit", lost)
    Git(place.mirror)("hash-object", "-t", "commit", "-w", "--stdin", stdin=content)
    assert place.use(lost) == Start(lost[:12], lost)
    assert place.run("show", f"{lost}:a.txt", cwd=place.mirror) == "lost"
    assert place.run("rev-parse", f"refs/sessionrun/pins/{lost}", cwd=place.mirror) == lost
    assert place.use("refs/pull/3/head") == Start("pull/3/head", lost)
    place.top.rename(place.root / "gone")
    assert place.use(lost, note="later").commit == lost  # without any fetch


def test_a_commit_that_is_missing_is_told_from_a_repository_without_any(place: Place) -> None:
    with pytest.raises(RepositoryFailed, match=r"has no branch, tag or commit 00000"):
        place.use("0" * 40)
    empty = place.root / "empty"
    subprocess.run(["git", "init", "-q", str(empty)], check=True)
    with pytest.raises(RepositoryFailed, match=r"empty has no commit at its HEAD"):
        place.use(repo=str(empty))


def test_require_cache_fetches_nothing_and_needs_no_cache_that_can_be_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RepositoryFailed, match=r"is not in the cache, .* sessionrun precache"):
        place.use(require_cache=True)
    first = place.use().commit
    second = place.commit()
    place.top.rename(place.root / "gone")
    monkeypatch.setattr(os, "utime", Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))))
    assert place.use(note="b", require_cache=True).commit == first
    for ref in ("other", second):
        with pytest.raises(RepositoryFailed, match=rf"has no {ref} in the cache, .* sessionrun precache"):
            place.use(ref, note="c", require_cache=True)


def test_a_rewritten_branch_and_one_that_becomes_a_directory_are_followed(place: Place) -> None:
    place.run("branch", "a")
    old = place.use("a").commit
    place.run("branch", "-D", "a")
    place.run("commit", "-q", "--amend", "-m", "again")
    place.run("branch", "a/b")
    assert place.use("a/b", note="b").commit == place.run("rev-parse", "HEAD") != old
    with pytest.raises(RepositoryFailed, match=r"no branch, tag or commit a$"):
        place.use("a", note="c")


def test_a_shallow_upstream_is_refused_and_a_mirror_that_an_agent_made_shallow_becomes_whole(place: Place) -> None:
    place.commit()
    place.use()
    deep = place.commit(text="deep\n")
    place.commit(text="deeper\n")
    place.run("fetch", "-q", "--depth=1", f"file://{place.top}", "main", cwd=place.mirror)
    assert (place.mirror / "shallow").exists()
    start = place.use(note="b")
    assert not (place.mirror / "shallow").exists()
    assert place.run("rev-list", "--count", start.commit, cwd=place.mirror) == "4"
    assert place.run("cat-file", "-t", deep, cwd=place.mirror) == "commit"
    shallow = place.root / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{place.top}", str(shallow)], check=True)
    with pytest.raises(RepositoryFailed, match="shallow is a shallow clone"):
        place.use(repo=str(shallow), note="c")


def plant(mirror: Path, evil: str) -> None:
    """All that a task can write into a mirror, and that git would run, or be led by."""
    settings = (
        f"[core]\n\tsshCommand = {evil}\n\tfsmonitor = {evil}\n\thooksPath = {mirror}/hooks\n"
        f"\talternateRefsCommand = {evil}\n"
        f'[remote "origin"]\n\turl = ext::{evil}\n\tuploadpack = {evil}\n\tvcs = evil\n\tproxy = {evil}\n'
        f'[url "ext::{evil} "]\n\tinsteadOf = /\n[filter "x"]\n\tsmudge = {evil}\n\tclean = {evil}\n'
        f"[credential]\n\thelper = !{evil}\n[gc]\n\tauto = 1\n[protocol]\n\tallow = always\n"
    )
    other = mirror.parent / "other"
    subprocess.run(["git", "init", "-q", "--bare", str(other)], check=True)
    for folder in (mirror, other):
        (folder / "config").write_text(settings)
    for name in ("hooks", "remotes", "branches", "info"):
        (mirror / name).mkdir(exist_ok=True)
    hooks = "reference-transaction post-checkout pre-auto-gc post-rewrite update post-index-change"
    for name in hooks.split():
        make_program(mirror / "hooks" / name, evil)
    for name in ("remotes", "branches"):
        (mirror / name / "origin").write_text(f"URL: ext::{evil}\n")
    (mirror / "info" / "attributes").write_text("* filter=x\n")
    (mirror / "objects" / "info" / "alternates").write_text(f"{other}/objects\n")


def test_what_a_task_wrote_into_the_mirror_runs_nothing_at_the_next_fetch(place: Place) -> None:
    place.use()
    mark = place.root / "ran"
    plant(place.mirror, str(make_program(place.root / "evil", f"touch {mark}")))
    new = place.commit()
    assert place.use(note="b").commit == new
    (place.mirror / "config").write_text("[include]\n\tpath = /dev/zero\n")  # git would never come to an end
    lost = place.commit()
    place.run("reset", "-q", "--hard", "HEAD~1")
    assert place.use(lost, note="c").commit == lost
    assert not mark.exists()


def test_the_users_own_settings_count(place: Place) -> None:
    """As for git itself: a user may send a name elsewhere, and so to another protocol."""
    place.run("config", "--global", f"url.{place.root}/.insteadOf", "https://nowhere.invalid/")
    with pytest.raises(RepositoryFailed, match=r"transport 'file' not allowed"):
        place.use(repo="https://nowhere.invalid/upstream")


def test_a_mirror_that_is_damaged_or_none_is_refused_in_a_line_and_left_alone(place: Place) -> None:
    place.use()
    with (place.mirror / "config").open("a") as settings:
        settings.write("[extensions]\n\trefStorage\n")
    with pytest.raises(SessionrunError, match="refstorage"):
        place.use()
    for marker, why in (
        ('{"repo": "https://other"}', "it is of https://other"),
        ("", "there is none that can be read"),
    ):
        (place.mirror / MARKER).write_text(marker)
        with pytest.raises(RepositoryFailed, match=rf"is no mirror of .*{why}\): look at it, then move it away"):
            place.use(note="b")
    assert (place.mirror / "objects").is_dir()


@needs_calls
@pytest.mark.slow
def test_a_mirror_that_is_killed_at_any_point_is_made_anew_and_nothing_half_made_is_trusted(place: Place) -> None:
    """In Python and in git."""
    commit = place.run("rev-parse", "HEAD")
    calls = each_call(lambda environ: place.use_in_process("main", variables=environ), place.root / "c", "mirror+")
    for at, _ in calls:
        if place.mirror.exists():
            assert place.run("fsck", "--full", cwd=place.mirror) == "", at
            assert place.run("rev-parse", "refs/remotes/origin/main", cwd=place.mirror) == commit, at
        healed = place.use_in_process("main")
        assert (healed.returncode, healed.stdout) == (0, f"{commit}\n"), f"{at}: {healed.stderr}"
        assert [one.name for one in place.mirror.parent.iterdir() if one.name.startswith(".")] == [], at
        subprocess.run(["rm", "-rf", str(place.mirror.parent), str(place.root / "notemain")], check=True)
    assert at > 20


@needs_calls
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_fetch_that_is_killed_at_any_point_leaves_a_mirror_that_goes_on(place: Place, every: int) -> None:
    place.use()

    def fetch(environ: Mapping[str, str]) -> str:
        commit = place.commit(text=f"{environ['CALLS_AT']}\n")
        (place.root / "notemain").unlink(missing_ok=True)
        place.use_in_process("main", variables=environ)
        return commit

    for at, commit in each_call(fetch, place.root / "calls", "mirror", every=every):
        assert place.run("fsck", "--full", cwd=place.mirror) == "", at
        assert place.use("main", note=f"after-{at}").commit == commit, at
    assert at > 3


def test_a_wait_for_the_lock_beyond_its_limit_is_an_error(place: Place) -> None:
    place.mirror.parent.mkdir(parents=True)
    with hold_lock(lock_path(place.mirror)), pytest.raises(SessionrunError, match=r"was held for 0\.1 s"):
        place.use(limit_s=0.1)


def test_a_mirror_in_use_is_not_removed(place: Place) -> None:
    with use_mirror(place.upstream(), place.root / "note", place.root):
        (found,) = iterate_mirrors(place.root / "cache")
        assert found.repo == str(place.top)
        assert remove_mirror(found) == "it is in use"
    with hold_lock(lock_path(place.mirror)):
        assert remove_mirror(found) == "it is in use"
    assert remove_mirror(found, dry_run=True) is None
    assert place.mirror.is_dir()
    assert remove_mirror(found) is None
    assert not place.mirror.exists()
    assert list(iterate_mirrors(place.root / "cache")) == []


def test_what_a_killed_process_left_is_removed_from_the_cache(place: Place) -> None:
    place.use()
    for prefix in (".new-", ".trash-"):
        left = f"{prefix}{place.mirror.name}-x_1"
        (place.mirror.parent / left / "objects").mkdir(parents=True)
    found = list(iterate_mirrors(place.root / "cache"))
    assert len(found) == 3
    assert [remove_mirror(one) for one in found] == [None] * 3
    assert list(place.mirror.parent.iterdir()) == [], "the lock goes with the mirror"


def test_a_note_that_a_task_wrote_is_believed_only_if_the_mirror_has_the_commit(place: Place) -> None:
    start = place.use()
    lines = [{"name": "x", "commit": "--evil"}, {"name": "x", "commit": "0" * 40}]
    for text in ("{", *map(json.dumps, [*lines, {"name": "\x1b", "commit": start.commit}])):
        (place.root / "note-None").write_text(text)
        assert place.use() == start


# --- excerpts ---


def git_at(top: Path, *argv: str, minute: int = 0) -> str:
    words = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", *argv)
    environ = {**os.environ, "GIT_COMMITTER_DATE": f"2026-01-01T00:{minute:02}:00Z"}
    return subprocess.run(words, cwd=top, check=True, capture_output=True, text=True, env=environ).stdout.strip()


class Origin:
    """A repository with a base, later commits, tags and other branches; and its mirror."""

    def __init__(self, place: Path) -> None:
        self.top = place / "upstream"
        self.top.mkdir()
        git_at(self.top, "init", "-q", "-b", "main")
        self.commits = []
        for number in range(10):
            (self.top / "file").write_text(f"{number}\n" * 3)
            git_at(self.top, "add", "-A")
            git_at(self.top, "commit", "-qm", f"c{number}", minute=number)
            self.commits.append(git_at(self.top, "rev-parse", "HEAD"))
        self.base = self.commits[5]
        git_at(self.top, "tag", "light", self.commits[8])
        git_at(self.top, "tag", "-a", "-m", "later", "v9", self.commits[7], minute=8)
        git_at(self.top, "tag", "v2", self.commits[4])
        git_at(self.top, "tag", "-a", "-m", "note", "v1", self.commits[2], minute=3)
        git_at(self.top, "tag", "-a", "-m", "what came later", "v3", self.commits[5], minute=9)
        git_at(self.top, "tag", "-a", "-m", "of a tag", "nested", "v1", minute=3)
        self.note = git_at(self.top, "rev-parse", "v1")
        git_at(self.top, "branch", "other", self.commits[9])
        git_at(self.top, "checkout", "-q", "-b", "side", self.commits[3])
        git_at(self.top, "commit", "-q", "--allow-empty", "-m", "aside")
        git_at(self.top, "checkout", "-q", "main")
        self.mirror = locate_mirror(place / "cache", str(self.top))
        with use_mirror(Upstream(str(self.top), self.base, str(self.mirror)), None):
            pass


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    """It is only read."""
    return Origin(tmp_path_factory.mktemp("upstream"))


@pytest.mark.parametrize(
    ("history", "seen", "tags"), [(0, "c5", "v3"), (2, "c5 c4 c3", "v2 v3"), (50, "c5 c4 c3 c2 c1 c0", "v1 v2 v3")]
)
def test_nothing_else_is_there(upstream: Origin, tmp_path: Path, history: int, seen: str, tags: str) -> None:
    """Of tags those of its commits; an object of a tag only if it was made before the base was."""
    own = tmp_path / "own.git"
    make_excerpt(own, upstream.mirror, upstream.base, history)
    assert git_at(own, "log", "--all", "--format=%s").split() == seen.split()
    listed = git_at(own, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
    commits = {line.split()[0] for line in listed.split("\n") if line.endswith("commit")}
    assert commits == set(upstream.commits[5 - len(seen.split()) + 1 : 6])
    noted = {line.split()[0] for line in listed.split("\n") if line.endswith("tag")}
    assert noted == ({upstream.note} if "v1" in tags else set())
    assert git_at(own, "fsck", "--full", "--strict") == ""
    refs = ["refs/sessionrun/base", *(f"refs/tags/{tag}" for tag in tags.split())]
    assert git_at(own, "for-each-ref", "--format=%(refname)").split() == refs
    assert git_at(own, "describe", "--tags", "--long", upstream.base).startswith("v3-0-")
    for tip in (f"{tag}^{{commit}}" for tag in tags.split()):
        assert git_at(own, "rev-parse", tip) == git_at(upstream.top, "rev-parse", tip)
    assert not (own / "objects" / "info" / "alternates").exists()
    for later in (upstream.commits[6], upstream.commits[9]):
        assert subprocess.run(["git", "cat-file", "-e", later], cwd=own, capture_output=True).returncode != 0


def test_it_is_whole_or_it_is_not_there(upstream: Origin, tmp_path: Path) -> None:
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
    upstream: Origin, tmp_path: Path, every: int
) -> None:
    """In Python and in git; what is made after that is whole, and what a crash left goes with it."""
    own = tmp_path / "trees" / "own.git"
    words = (str(own), str(upstream.mirror), upstream.base, str(tmp_path))

    def check(at: int) -> None:
        assert git_at(own, "fsck", "--full", "--strict") == "", at
        assert git_at(own, "log", "--all", "--format=%s").split() == ["c5", "c4", "c3", "c2"], at
        tags = ["refs/tags/v1", "refs/tags/v2", "refs/tags/v3"]
        assert git_at(own, "for-each-ref", "--format=%(refname)").split() == ["refs/sessionrun/base", *tags], at

    run = partial(run_program, MAKE, *words)
    for at, _ in each_call(lambda environ: run(environ=environ), tmp_path / "calls", "excerpt+", every=every):
        if own.exists():
            check(at)
        make_excerpt(own, upstream.mirror, upstream.base, 3)
        check(at)
        drop_excerpt(own)
        assert list(own.parent.iterdir()) == [], at
    assert at > 20


def test_it_goes_when_it_holds_no_branch(upstream: Origin, tmp_path: Path) -> None:
    own = tmp_path / "own.git"
    make_excerpt(own, upstream.mirror, upstream.base, 3)
    (tmp_path / ".new-own.git-x").mkdir()
    git_at(own, "branch", "work", upstream.base)
    for pack in (False, True):
        if pack:
            git_at(own, "pack-refs", "--all")
        drop_excerpt(own)
        assert own.is_dir() and not (tmp_path / ".new-own.git-x").exists()
    git_at(own, "branch", "-D", "work")
    drop_excerpt(own)
    assert not own.exists()
    drop_excerpt(own)


def test_alternates_of_alternates_are_found(tmp_path: Path) -> None:
    for name, line in (("a", "../../b/objects"), ("b", f"{tmp_path}/c/objects"), ("c", "../../a/objects")):
        (tmp_path / name / "objects" / "info").mkdir(parents=True)
        (tmp_path / name / "objects" / "info" / "alternates").write_text(f"# none\n{line}\n")
    found = [str(tmp_path / name / "objects") for name in ("b", "c", "a")]
    assert list(list_alternates(tmp_path / "a")) == found
