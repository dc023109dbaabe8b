"""PREPARE and RELEASE on real repositories: every byte of work that is not ignored survives them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import eventually
from stages import lay_out_repository, make_repository_of, put_first

from sessionrun.git.git import Git, GitError, version
from sessionrun.git.repository import find_repository
from sessionrun.git.rooms import room_path
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.landings import MendBase
from sessionrun.model.places import KeepPolicy, Place, Repository, Seats
from sessionrun.store.space import measure
from sessionrun.worktrees.clean import Claimed
from sessionrun.worktrees.environments.request import find_environment
from sessionrun.worktrees.registration import STALE_LOCK_S
from sessionrun.worktrees.release import end_setup, release
from sessionrun.worktrees.request import WorkspaceRequest, load_claim
from sessionrun.worktrees.rounds import set_back
from sessionrun.worktrees.site import BEGUN, open_site
from sessionrun.worktrees.worktree import prepare

Work = Callable[[Path], object]

IDENTITY = {
    f"GIT_{who}_{what}": "ann@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def make_repository(top: Path) -> None:
    """A repository with a few files, in one commit."""
    files = {"a.txt": "a\n", "sub/b.txt": "b\n", ".gitignore": "*.log\nnode_modules\n"}
    make_repository_of(top, files)


class Project:
    """A repository with a few files, and what is done to a worktree of it."""

    make = staticmethod(make_repository)

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = root / "repo"
        lay_out_repository(self.make, self.top)
        self._jobs = 0

    def run(self, *argv: str, cwd: Path | None = None) -> str:
        place = cwd or self.top
        done = subprocess.run(
            ["git", *argv], cwd=place, capture_output=True, text=True, check=True, env={**os.environ, **IDENTITY}
        )
        return done.stdout.strip()

    def repository(self, keep: KeepPolicy = "never") -> Repository:
        return find_repository(self.top, base=None, worktree_dir=None, keep=keep)[0]

    def folder(self) -> Path:
        self._jobs += 1
        folder = self.root / f"jobs-{self._jobs}" / "a1-1-prepare"
        folder.mkdir(parents=True)
        return folder

    def prepare(self, task: str = "t", **changes: object) -> tuple[WorkspaceRequest, Place]:
        repository = self.repository(changes.pop("keep", "never"))  # type: ignore[arg-type]
        patch = str(self.root / "p" / f"{task}.patch")
        request = WorkspaceRequest(repository, "s1", task, "do it", patch=patch)
        request = replace(request, **changes)  # type: ignore[arg-type]
        return request, prepare(request, self.folder())

    def begin_work(self, task: str = "t", **changes: object) -> tuple[WorkspaceRequest, Path]:
        """The request for what comes after PREPARE, and where the task works."""
        request, place = self.prepare(task, **changes)
        return replace(request, place=place), Path(place.worktree or "")

    def claim(self, request: WorkspaceRequest, *, folder: Path | None = None, worked: bool = True) -> Claimed:
        """What `clean` finds of the last PREPARE."""
        folder = folder or self.root / f"jobs-{self._jobs}" / "a1-1-prepare"
        claim = load_claim(folder)
        assert claim is not None
        return Claimed.of(request, claim, folder, worked=worked)

    def cycle(self, work: Work, task: str = "t", **changes: object) -> tuple[Place, Path]:
        """PREPARE, some work in the worktree, RELEASE; the place after it and where the worktree was."""
        request, path = self.begin_work(task, **changes)
        work(path)
        return release(request, self.folder()), path

    def shell(self, script: str, cwd: Path) -> None:
        environ = {**os.environ, **IDENTITY}
        subprocess.run(["sh", "-ec", script], cwd=cwd, check=True, capture_output=True, env=environ)

    def check_patch(self, patch: Path, base: str, commit: str) -> None:
        """On the base, it gives the tree of the commit."""
        git = Git(self.top).with_index(self.root / "patch-index")
        git("read-tree", base)
        if patch.stat().st_size:
            git("apply", "--cached", "--whitespace=nowarn", str(patch))
        assert git.line("write-tree") == git.line("rev-parse", f"{commit}^{{tree}}"), patch

    def show(self, commit: str, name: str) -> bytes:
        return Git(self.top)("cat-file", "blob", f"{commit}:{name}")

    def files(self, commit: str) -> set[str]:
        return set(Git(self.top).names("ls-tree", "-r", "-z", "--name-only", commit))


@pytest.fixture
def project(own_place: Path) -> Project:
    return Project(own_place)


def test_others_may_write_in_the_list_of_worktrees_where_they_may_in_the_repository(project: Project) -> None:
    project.run("config", "core.sharedRepository", "group")
    (project.top / ".git").chmod(0o2775)
    project.prepare()
    modes = [stat.S_IMODE((project.top / ".git" / name).stat().st_mode) for name in ("", "worktrees")]
    assert modes == [0o2775, 0o2775]


TRAPS = {
    "a submodule": "git init -q lib && git -C lib commit -q --allow-empty -m one && git -C repo -c "
    "protocol.file.allow=always submodule --quiet add ../lib inner && git -C repo/inner config "
    "extensions.worktreeConfig true && mv repo outer && ln -s outer/inner repo",
    "core.bare in a checkout": "cd repo && git config extensions.worktreeConfig true && git config core.bare true",
    "core.worktree behind a link": "cd repo && git config extensions.worktreeConfig true && git config "
    "core.worktree $PWD && mv .git/config ../config && ln -s ../../config .git/config",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_the_git_of_a_task_works_in_its_worktree_whatever_the_shared_settings_say(
    project: Project, trap: str
) -> None:
    script = TRAPS[trap].replace("outer/inner repo", "outer/inner repo && git -C outer add -A")
    repository = None if trap == "a submodule" else project.repository()
    project.shell(script, project.root)
    request = WorkspaceRequest(repository or project.repository(), "s1", "t", "do it")
    place = prepare(request, project.folder())
    path = Path(place.worktree or "")
    assert project.run("rev-parse", "--show-toplevel", cwd=path) == str(path)
    project.run("clean", "-fdxq", cwd=path)
    (path / "work.txt").write_text("work\n")
    project.run("add", "-A", cwd=path)
    project.run("commit", "-q", "-m", "work", cwd=path)
    released = release(replace(request, place=place), project.folder())
    assert released.kept is None and "work.txt" in project.files(released.commit or "")
    assert Git(project.top.resolve()).attempt("fsck").returncode == 0


def test_a_worktree_takes_sixteen_commands_of_git(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the launch to the end of work that is not committed."""
    put_first(project.root, monkeypatch, f'echo "$*" >> {project.root}/calls')
    project.cycle(lambda path: (path / "new").write_text("new"))
    calls = (project.root / "calls").read_text().splitlines()
    is_table = (project.top / ".git/reftable").is_dir()  # there git has to be asked for HEAD
    assert len(calls) == 16 + is_table, calls


def test_an_old_git_is_refused_by_its_version(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    put_first(
        project.root, monkeypatch, 'for last; do :; done; [ "$last" = version ] && exec echo git version 2.33.8'
    )
    with pytest.raises(InputError, match=r"^worktrees need git 2\.34 or newer; this is 2\.33$"):
        project.repository()


def test_what_setup_did_to_the_settings_is_mended(project: Project) -> None:
    request, path = project.begin_work()
    project.shell(f"git config extensions.worktreeConfig true; git config core.worktree {project.top}", path)
    assert project.run("rev-parse", "--show-toplevel", cwd=path) == str(project.top)
    end_setup(request, project.folder())
    assert project.run("rev-parse", "--show-toplevel", cwd=path) == str(path)


@pytest.mark.parametrize("age_s", [0, 60])
def test_a_worktree_that_another_git_begins_is_left_alone(project: Project, age_s: int) -> None:
    """It looks as what a killed git of ours left: a directory without a mark, without a word of whose it is."""
    request, place = project.prepare()
    begun = project.top / ".git/worktrees/begun"
    begun.mkdir()
    os.utime(begun, (time.time() - age_s,) * 2)
    release(replace(request, place=place), project.folder())
    assert begun.exists() is (age_s == 0)


def test_a_worktree_whose_git_works_elsewhere_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings of the worktree itself have the last word, so only another git can insist."""
    repository = project.repository()
    put_first(project.root, monkeypatch, f'case "$*" in *--absolute-git-dir*) cd {project.top};; esac')
    with pytest.raises(SessionrunError, match=f"works on {project.top}: core.worktree"):
        prepare(WorkspaceRequest(repository, "s1", "t", "do it"), project.folder())
    assert list((project.top.parent / "repo-worktrees").iterdir()) == []
    assert not (project.top / ".git" / "worktrees").exists()


@pytest.mark.parametrize(("whose", "first"), [("branch", 1), ("work", -1)])
def test_a_path_that_a_mend_left_untouched(project: Project, whose: str, first: int) -> None:
    ours, theirs = ("git rm -q a.txt", "echo more >a.txt")[::first]
    script = f"git switch -qc work; {theirs}; git commit -qam w; git switch -q main; {ours}; git commit -qam m"
    project.shell(script, project.top)
    mend = MendBase("refs/heads/main", project.run("rev-parse", "work"), files=("a.txt",))
    request, place = project.prepare(mend=mend)
    (Path(place.worktree or "") / "new").write_text("x")
    refused = release(replace(request, place=place), project.folder()).refused
    assert refused == f"it leaves a.txt just as it found it, without what the {whose} has made of it"


def test_a_filter_without_its_program_is_told_at_the_launch(project: Project) -> None:
    for name, command in (("big", "big-files smudge"), ("idle", "not-there clean"), ("here", "exec cat")):
        project.run("config", f"filter.{name}.smudge", command)
    (project.top / ".gitattributes").write_text("a.txt filter=big\nsub/* filter=here\n")
    project.run("add", ".gitattributes")
    _, remarks = find_repository(project.top, base=None, worktree_dir=None, keep="never")
    assert remarks == ["a.txt has the filter 'big', and its program 'big-files' is not found"]
    project.run("config", "filter.big.required", "true")
    with pytest.raises(InputError, match="'big-files' is not found: install it"):
        project.repository()


def test_a_release_without_a_worktree_leaves_the_rounds_of_earlier_attempts(project: Project) -> None:
    """A PREPARE failed; the RELEASE before it may have failed, too."""
    ref = "refs/sessionrun/s1/t/a1-round-1"
    project.run("update-ref", ref, "HEAD")
    request = WorkspaceRequest(project.repository(), "s1", "t", "do it")
    assert release(request, project.folder()) == Place()
    assert project.run("for-each-ref", "--format=%(refname)", "refs/sessionrun") == ref


class TableProject(Project):
    """Its refs are in a table, and no file HEAD says what is checked out."""

    @staticmethod
    def make(top: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GIT_DEFAULT_REF_FORMAT", "reftable")
            for name, value in (("COUNT", "1"), ("KEY_0", "maintenance.auto"), ("VALUE_0", "false")):
                patch.setenv(f"GIT_CONFIG_{name}", value)  # newer ones go on in the background
            make_repository(top)


knows_tables = pytest.mark.skipif(version(Path("/")) < (2, 45), reason="this git knows no reftable")


@knows_tables
@pytest.mark.parametrize("admin", ["", "worktrees/main-task-t/"])
def test_a_second_start_removes_the_lock_of_a_table(own_place: Path, admin: str) -> None:
    project = TableProject(own_place)
    request, path = project.begin_work()
    project.shell("echo new > new; git add new; git commit -q -m new; echo more > more", path)
    folder, lock = project.folder(), project.top / f".git/{admin}reftable/tables.list.lock"
    for left in (folder / BEGUN, lock):
        left.touch()
        os.utime(left, (time.time() - STALE_LOCK_S - 1,) * 2)
    assert release(request, folder).kept is None
    assert "more" in project.files("main-task-t") and not lock.exists()


@knows_tables
def test_a_release_does_not_try_each_name_while_a_table_is_locked(own_place: Path) -> None:
    """Each try would wait for ten seconds."""
    project = TableProject(own_place)
    request, path = project.begin_work()
    (path / "new").write_text("new")
    (project.top / ".git/reftable/tables.list.lock").touch()
    with pytest.raises(GitError, match="cannot lock references: another git is at work, or was killed"):
        release(request, project.folder())
    assert (path / "new").exists()


@knows_tables
def test_a_lock_of_its_own_table_stops_no_round_and_no_next_task(own_place: Path) -> None:
    """A git of the task, or one while its seat was free, was killed."""
    project = TableProject(own_place)
    words = {"seats": Seats(str(project.root / "seats")), "seat": 1}
    request, path = project.begin_work("one", **words)
    lock = project.top / ".git/worktrees/w1/reftable/tables.list.lock"
    lock.touch()
    with open_site(request, project.folder()) as site:
        set_back(site, *(project.run("rev-parse", "main"),) * 2)
    assert not lock.exists()
    (path / "x.log").write_text("cache")
    release(request, project.folder())
    lock.touch()
    assert project.begin_work("two", **words)[1] == path and (path / "x.log").exists()


@knows_tables
def test_refs_may_be_in_a_table(own_place: Path) -> None:
    project = TableProject(own_place)
    (project.top / "later").write_text("later")
    place, path = project.cycle(lambda path: (path / "new").write_text("n"))
    assert (place.kept, path.exists(), place.branch) == (None, False, "main-task-t")
    assert project.show("main-task-t", "new") == b"n"
    kept, path = project.cycle(lambda path: project.run("switch", "-q", "-c", "elsewhere", cwd=path), "off")
    assert (kept.kept, kept.rescue) == ("HEAD is on elsewhere, not on main-task-off", None)
    empty, _ = project.cycle(lambda path: None, "empty")
    assert empty.branch is None
    for task in ("one", "two"):  # a worktree that stays
        request, place = project.prepare(task, seats=Seats(str(project.root / "seats")), seat=1)
        (Path(place.worktree or "") / task).write_text(task)
        assert release(replace(request, place=place), project.folder()).kept is None
        assert project.files(f"main-task-{task}") == {"a.txt", "sub/b.txt", ".gitignore", task}
    assert project.run("fsck") == "" and project.run("worktree", "prune", "-n") == ""


def test_a_change_in_the_second_of_the_checkout_is_found(project: Project) -> None:
    """Of the same size: git tells it by the time of the index alone, so a copy of the index must have that too."""
    for number in range(10):
        request, place = project.prepare(f"t{number}")
        file = Path(place.worktree or "") / "a.txt"
        before = int(file.stat().st_ctime)
        file.write_text("b\n")
        if int(file.stat().st_ctime) == before:
            break
    eventually(lambda: int(time.time()) > before + 1)
    released = release(replace(request, place=place), project.folder())
    assert released.commit is not None and project.show(released.commit, "a.txt") == b"b\n"


def test_commits_off_the_branch_outlive_the_worktrees_directory(project: Project) -> None:
    request, path = project.begin_work()
    project.shell("git checkout -q --detach; git commit --allow-empty -q -m off", path)
    commit = project.run("rev-parse", "HEAD", cwd=path)
    shutil.rmtree(path)
    for _ in range(2):  # also where it was killed before it could answer
        released = release(request, project.folder())
        assert (released.commit, released.rescue) == (commit, "main-task-t-rescue")
    assert project.run("rev-parse", "main-task-t-rescue") == commit


@pytest.mark.slow
def test_a_kept_worktree_that_is_released_again_gets_no_second_rescue_branch(project: Project) -> None:
    request, path = project.begin_work()
    project.run("checkout", "-q", "--detach", cwd=path)
    (path / "new").write_text("n")
    first = release(request, project.folder())
    second = int(time.time())
    eventually(lambda: int(time.time()) > second + 1)  # commits of one second are the same commit
    again = release(request, project.folder())
    assert again == first and first.rescue == "main-task-t-rescue"
    (path / "new").write_text("changed")
    assert release(request, project.folder()).rescue == "main-task-t-rescue-2"


def test_environments_go_with_the_worktree_and_so_does_what_a_killed_proof_left(project: Project) -> None:
    """Whatever its agent made of it; and nothing elsewhere."""
    request, place = project.prepare()
    room = room_path(request.repository, request.owner)
    left = [room, *(Path(find_environment(top)) for top in (room, place.worktree or ""))]
    (left[0] / "bin").mkdir(parents=True)
    left[1].symlink_to(project.top)
    left[2].write_text("no directory")
    assert release(replace(request, place=place), project.folder()).worktree is None
    assert [path for path in left if os.path.lexists(path)] == [] and (project.top / "a.txt").exists()


@pytest.mark.parametrize("seats", [False, True])
def test_a_worktree_whose_environment_cannot_be_deleted_is_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch, seats: bool
) -> None:
    """Its work is parked, and the job passes: it says why."""

    def refuse(top: Path) -> None:
        if top == path:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    stays = Seats(str(project.top / "worktrees")) if seats else None
    request, path = project.begin_work(seats=stays)
    (path / "new").write_text("n")
    Path(find_environment(path)).mkdir()
    monkeypatch.setattr("sessionrun.worktrees.release.drop_environment", refuse)
    released = release(request, project.folder())
    assert released.commit is not None and project.show(released.commit, "new") == b"n"
    assert released.worktree == str(path) and path.exists()
    assert "its environment cannot be deleted: [Errno 1]" in str(released.kept)


def test_a_worktree_goes_whose_name_is_too_long_for_an_environment(project: Project) -> None:
    place, path = project.cycle(lambda path: None, branch=f"{'b' * 120}/{'c' * 130}")
    assert len(path.name) == 251
    assert (place.kept, place.worktree, path.exists()) == (None, None, False)


@pytest.mark.parametrize("mode", [pytest.param(0o700, marks=pytest.mark.slow), 0o500])
def test_directories_deeper_than_our_stack_are_removed(
    project: Project, make_deep: Callable[[Path, int], None], mode: int
) -> None:
    def work(path: Path) -> None:
        (path / "new").mkdir()
        (path / "new" / "file").write_text("1")
        (path / "new" / "link").symlink_to(project.top)
        make_deep(path / "new", 1500)
        (path / "new").chmod(mode)
        assert measure(path) >= measure(path / "new") > 0

    place, path = project.cycle(work)
    assert place.kept is None and not path.exists() and not list(path.parent.glob(".trash-*"))
    assert place.branch is not None and project.run("show", f"{place.branch}:new/file") == "1"
    assert (project.top / "a.txt").exists()


@pytest.mark.parametrize("name", ["plain", "with space", "ünïcode", "-dash", "quote'\"$x"])
def test_odd_paths(own_place: Path, name: str) -> None:
    (own_place / name).mkdir()
    project = Project(own_place / name)
    place, path = project.cycle(lambda path: (path / "new").write_text("n"))
    assert place.commit is not None and "new" in project.files(place.commit) and not path.exists()


def test_inside_a_linked_worktree(project: Project) -> None:
    """It is the user's, as is one that is locked, and stays one."""
    other = project.root / "other"
    project.run("worktree", "add", "-q", "-b", "topic", str(other))
    project.run("worktree", "add", "-q", "--lock", "--detach", str(project.root / "locked"))
    listed = project.run("worktree", "list")
    repository, _ = find_repository(other, base=None, worktree_dir=None, keep="never")
    assert repository.base_branch == "topic"
    request = WorkspaceRequest(repository, "s1", "t", "x", patch=str(project.root / "p.patch"))
    place = prepare(request, project.folder())
    assert place.branch == "topic-task-t"
    release(replace(request, place=place), project.folder())
    assert project.run("worktree", "list") == listed


def test_detached_head_is_named_by_its_commit(project: Project) -> None:
    project.run("switch", "-q", "--detach")
    commit = project.run("rev-parse", "HEAD")
    assert project.prepare()[1].branch == f"{commit[:12]}-task-t"


def test_base_may_be_a_tag_or_another_branch(project: Project) -> None:
    project.run("tag", "v1")
    (project.top / "later").write_text("later")
    project.run("add", "later")
    project.run("commit", "-q", "-m", "later")
    repository, _ = find_repository(project.top, base="v1", worktree_dir=None, keep="never")
    assert (repository.base_branch, repository.base_commit) == ("v1", project.run("rev-parse", "v1"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("init -q place", "its branch has no commit yet: commit something first"),
        ("init -q --bare place", "is a bare repository or inside .git; start in a checkout of it"),
    ],
)
def test_a_place_without_a_checkout_of_a_commit_is_refused(own_place: Path, words: str, why: str) -> None:
    subprocess.run(["git", *words.split()], cwd=own_place, check=True)
    with pytest.raises(InputError, match=f"{why}$"):
        find_repository(own_place / "place", base=None, worktree_dir=None, keep="never")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to somebody else")
def test_a_repository_of_another_user_is_refused_with_a_hint(project: Project) -> None:
    for path in (project.top, *project.top.rglob("*")):
        os.chown(path, 12345, 12345)
    with pytest.raises(InputError, match=r"belongs to another user.*safe\.directory"):
        project.repository()
