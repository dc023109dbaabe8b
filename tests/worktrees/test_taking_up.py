"""PREPARE of an attempt that goes on with earlier work: on real repositories; nothing of the work is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_workspaces import Project

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import KeepPolicy, Place
from sessionrun.worktrees.release import release, settle
from sessionrun.worktrees.request import WorkspaceRequest, load_claim
from sessionrun.worktrees.worktree import check_earlier, prepare

BRANCH = "main-task-t"


class Again(Project):
    """A task of a repository that has worked once, and works again; `place` is where it is."""

    def begin(self, work: Callable[[Path], object], keep: KeepPolicy = "never") -> Place:
        """The first attempt."""
        self.keep, self.attempt, self.place = keep, 1, Place()
        self.start()
        work(self.path)
        return self.end()

    @property
    def path(self) -> Path:
        assert self.place.worktree is not None
        return Path(self.place.worktree)

    def request(self, **changes: object) -> WorkspaceRequest:
        patch = str(self.root / "jobs" / "t" / f"a{self.attempt}-diff.patch")
        request = WorkspaceRequest(self.repository(self.keep), "s1", "t", "do it", patch=patch, keep=self.keep)
        return replace(request, **changes)  # type: ignore[arg-type]

    def folder_of(self, phase: str) -> Path:
        folder = self.root / "jobs" / "t" / f"a{self.attempt}-r1-{phase}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def start(self, **changes: object) -> Place:
        self.place = prepare(self.request(**changes), self.folder_of("prepare"))
        return self.place

    def go_on(self) -> Place:
        """PREPARE of the next attempt."""
        self.attempt += 1
        return self.start(earlier=self.place)

    def end(self) -> Place:
        self.place = release(self.request(place=self.place, succeeded=True), self.folder_of("release"))
        return self.place

    def log(self, name: str = BRANCH) -> list[str]:
        return self.run("log", "--format=%s", name).split("\n")

    def commit(self, name: str, cwd: Path | None = None) -> None:
        (cwd or self.top).joinpath(name).write_text(f"{name}\n")
        self.run("add", name, cwd=cwd)
        self.run("commit", "-q", "-m", name, cwd=cwd)


@pytest.fixture
def again(own_place: Path) -> Again:
    return Again(own_place)


def write(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text(f"{name}\n")


def test_the_work_goes_on_on_the_same_branch_in_the_same_directory(again: Again) -> None:
    first = again.begin(write("one"))
    where = again.root / "repo-worktrees" / BRANCH
    assert not where.exists() and first.commit is not None
    place = again.go_on()
    assert (place.branch, place.worktree, place.base_commit) == (BRANCH, str(where), first.base_commit)
    assert (place.taken_up, place.commit) == (first.commit, None)
    assert (where / "one").read_text() == "one\n"
    again.commit("two", where)
    write("three")(where)
    ended = again.end()
    assert ended.diff_stat == {"files": 3, "insertions": 3, "deletions": 0}, "all that the task did"
    assert again.log()[:2] == ["Work of task t", "two"]
    assert again.run("rev-parse", f"{BRANCH}~2") == first.commit
    assert again.run("for-each-ref", "--format=%(refname:short)", "refs/heads").split() == ["main", BRANCH]


def test_commits_of_a_person_are_taken_along(again: Again) -> None:
    again.begin(write("one"))
    again.run("switch", "-q", BRANCH)
    again.commit("mine")
    with pytest.raises(SessionrunError, match=f"branch {BRANCH} is checked out in {again.top}: check out another"):
        again.go_on()
    again.run("switch", "-q", "main")
    place = again.go_on()
    assert place.taken_up == again.run("rev-parse", BRANCH) and (again.path / "mine").exists()


def test_a_branch_that_lost_the_work_is_refused(again: Again) -> None:
    place = again.begin(write("one"))
    again.run("branch", "-f", BRANCH, "main")
    before = again.run("for-each-ref")
    with pytest.raises(SessionrunError) as raised:
        again.go_on()
    commit = (place.commit or "")[:12]
    wanted = f"branch {BRANCH} does not hold {commit}, where its work is: merge {commit} into it"
    assert str(raised.value) == wanted
    with pytest.raises(SessionrunError, match="does not hold"):
        check_earlier(again.request(earlier=place))
    assert again.run("for-each-ref") == before and not (again.root / "repo-worktrees" / BRANCH).exists()


def test_a_branch_that_a_person_made_again_is_its_own(again: Again) -> None:
    place = again.begin(write("one"))
    again.run("branch", "-q", "-D", BRANCH)
    again.run("branch", "-q", BRANCH, str(place.commit))
    assert again.go_on().taken_up == place.commit


def test_nothing_goes_on_without_the_work(again: Again) -> None:
    place = again.begin(write("one"))
    again.run("branch", "-q", "-D", BRANCH)
    again.run("reflog", "expire", "--expire=now", "--all")
    again.run("gc", "-q", "--prune=now")
    with pytest.raises(SessionrunError, match=f"nothing holds its work any more: branch {BRANCH} or its commit"):
        check_earlier(again.request(earlier=place))


@pytest.mark.slow
def test_a_worktree_that_was_kept_is_used_again_with_all_that_lies_in_it(again: Again) -> None:
    first = again.begin(lambda path: (write("one")(path), write("x.log")(path)), keep="always")
    write("edit")(again.path)
    place = again.go_on()
    assert (place.worktree, place.base_commit) == (first.worktree, first.base_commit)
    assert again.run("show", f"{BRANCH}:edit") == "edit" and place.taken_up == again.run("rev-parse", BRANCH)
    assert again.run("status", "--porcelain", cwd=again.path) == ""
    assert (again.path / "x.log").exists(), "what git ignores is there as well"
    claim = load_claim(again.folder_of("prepare"))
    assert claim is not None and claim.reused
    again.keep = "never"
    write("two")(again.path)
    ended = again.end()
    assert ended.worktree is None and ended.diff_stat == {"files": 3, "insertions": 3, "deletions": 0}


@pytest.mark.slow
def test_a_prepare_that_is_done_again_keeps_what_lies_in_a_worktree_that_was_kept(again: Again) -> None:
    again.begin(write("one"), keep="always")
    earlier = again.place
    again.go_on()
    write("new")(again.path)  # as if it had been written in between
    again.start(earlier=earlier)
    assert (again.path / "new").read_text() == "new\n"
    folder = again.folder_of("prepare").with_name("a2-r1-prepare-s2")
    folder.mkdir()
    prepare(again.request(earlier=earlier), folder)
    release(again.request(place=again.place), again.folder_of("release"))
    assert again.path.is_dir() and (again.path / "new").exists()


def test_a_prepare_that_is_done_again_goes_on_with_its_own_worktree(again: Again) -> None:
    again.begin(write("one"))
    earlier = again.place
    first = again.go_on()
    assert again.start(earlier=earlier) == first
    folder = again.folder_of("prepare").with_name("a2-r1-prepare-s2")
    folder.mkdir()
    second = prepare(again.request(earlier=earlier), folder)
    assert second == first and (again.path / "one").exists()
    assert again.run("rev-parse", BRANCH) == earlier.commit


def test_a_kept_worktree_that_is_on_another_branch_is_refused(again: Again) -> None:
    again.begin(write("one"), keep="always")
    again.run("switch", "-q", "-c", "else", cwd=again.path)
    with pytest.raises(SessionrunError, match=f"{again.path} is not on {BRANCH} any more"):
        again.go_on()
    assert (again.path / "one").exists()


def test_a_kept_worktree_that_a_person_deleted_is_made_again(again: Again) -> None:
    again.begin(write("one"), keep="always")
    path = again.path
    shutil.rmtree(path)
    place = again.go_on()
    assert (place.worktree, (path / "one").read_text()) == (str(path), "one\n")
    assert len(again.run("worktree", "list").split("\n")) == 2


def test_work_on_a_rescue_branch_has_to_be_merged_first(again: Again) -> None:
    def leave(path: Path) -> None:
        again.run("switch", "-q", "--detach", cwd=path)
        again.commit("astray", path)

    place = again.begin(leave)
    assert place.rescue == f"{BRANCH}-rescue" and place.worktree is not None
    shutil.rmtree(place.worktree)
    with pytest.raises(SessionrunError, match=f"merge {BRANCH}-rescue into it"):
        check_earlier(again.request(earlier=place))
    again.run("worktree", "prune")
    again.run("branch", "-f", BRANCH, f"{BRANCH}-rescue")
    assert again.go_on().taken_up == place.commit


@pytest.mark.slow
def test_what_a_setup_leaves_in_a_further_attempt_moves_only_where_it_began(again: Again) -> None:
    again.begin(lambda path: None)
    again.attempt, again.place = 1, Place()
    again.start()
    write("lock")(again.path)
    again.place = settle(again.request(place=again.place), again.folder_of("setup"))
    setup = again.place.setup_commit
    write("one")(again.path)
    first = again.end()
    place = again.go_on()
    assert (place.setup_commit, place.taken_up) == (setup, first.commit)
    write("lock2")(again.path)
    settled = settle(again.request(place=place), again.folder_of("setup"))
    assert settled.setup_commit == setup and settled.taken_up == again.run("rev-parse", BRANCH)
    assert settled.taken_up != first.commit
    again.place = settled
    assert again.end().diff_stat == {"files": 2, "insertions": 2, "deletions": 0}
