"""PREPARE and RELEASE on real repositories: every byte of work that is not ignored survives them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Command, eventually
from stages import commit_all, lay_out_repository, make_program, make_repository_of, put_first
from walled import need_walls

from sessionrun.git.git import Git
from sessionrun.git.private import open_fence
from sessionrun.git.repository import find_repository
from sessionrun.git.rooms import (
    fill_submodules,
    find_empty,
    list_borrowed,
    list_stores,
    open_clean_room,
    room_path,
)
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.landings import MendBase
from sessionrun.model.places import KeepPolicy, Place, Repository, Seats
from sessionrun.store.space import measure
from sessionrun.worktrees.clean import Claimed
from sessionrun.worktrees.release import end_setup, release
from sessionrun.worktrees.request import WorkspaceRequest, find_environment, load_claim
from sessionrun.worktrees.worktree import prepare

Work = Callable[[Path], object]

IDENTITY = {
    f"GIT_{who}_{what}": "ann@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def make_repository(top: Path) -> None:
    """A repository with a few files, in one commit."""
    files = {"a.txt": "a\n", "sub/b.txt": "b\n", ".gitignore": "*.log\nnode_modules\n__pycache__/\n"}
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
    place, _ = project.cycle(lambda path: (path / "new").write_text("x"), mend=mend)
    assert place.refused == f"it leaves a.txt just as it found it, without what the {whose} has made of it"


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


def test_a_change_in_the_second_of_the_checkout_is_found(project: Project) -> None:
    """Of the same size: git tells it by the time of the index alone, so a copy of the index must have that too."""
    for number in range(10):
        request, path = project.begin_work(f"t{number}")
        file = path / "a.txt"
        before = int(file.stat().st_ctime)
        file.write_text("b\n")
        if int(file.stat().st_ctime) == before:
            break
    eventually(lambda: int(time.time()) > before + 1)
    released = release(request, project.folder())
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


NAMES = {
    "git switch -q --detach": (None, "{head}-task-t"),
    "git tag v1; git commit -q --allow-empty -m later": ("v1", "v1-task-t"),
    "git update-ref refs/remotes/origin/dev/x HEAD": ("origin/dev/x", "dev/x-task-t"),
    "git branch main-task-t/x": (None, "main-task-t-2"),
}
"""What was done, the base that is asked for, and the branch of a task."""


@pytest.mark.parametrize("script", NAMES)
def test_where_a_task_begins_names_its_branch(project: Project, script: str) -> None:
    head, (base, branch) = project.run("rev-parse", "--short=12", "HEAD"), NAMES[script]
    project.shell(script, project.top)
    repository, _ = find_repository(project.top, base=base, worktree_dir=None, keep="never")
    _, place = project.prepare(repository=repository)
    assert (place.branch, (place.base_commit or "")[:12]) == (branch.format(head=head), head)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("init -q place", "its branch has no commit yet: commit something first"),
        ("init -q --bare place", "is a bare repository or inside .git; start in a checkout of it"),
        ("init -q place/.git/stray", r"is in no git repository; worktrees need one \(git init\)"),
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


# --- submodules: filled out of what the checkout has, and no work in one is lost ---

ALLOW = ("-c", "protocol.file.allow=always")


def add_submodule(project: Project, source: str, path: str, top: Path) -> None:
    project.run(*ALLOW, "submodule", "--quiet", "add", str(project.root / source), path, cwd=top)
    commit_all(top, path)


@pytest.fixture
def nested(own_place: Path) -> Project:
    """A repository with a submodule that has one, too; the repositories that they came from are gone."""
    project = Project(own_place)
    for name in ("deep", "library"):
        project.shell(f"git init -q -b main {name}; echo {name} > {name}/{name}.txt", project.root)
        commit_all(project.root / name, "one")
    add_submodule(project, "deep", "in/deep", project.root / "library")
    add_submodule(project, "library", "my lib", project.top)
    project.run(*ALLOW, "submodule", "--quiet", "update", "--init", "--recursive")
    for name in ("deep", "library"):
        shutil.rmtree(project.root / name)
    return project


CHANGES, COMMITS = (f"submodule my lib has {what} of its own" for what in ("changes", "commits"))
WORK: Mapping[str | None, tuple[str, ...]] = {
    None: (
        "true",
        "git clean -fdxq; git submodule foreach -q git status",
        "git rm -qf 'my lib'",
        "rm -rf 'my lib'; mkdir -p 'my lib/a/b'",
        "rm -rf 'my lib'; ln -s sub 'my lib'",
    ),
    CHANGES: (
        "echo new > 'my lib/new'",
        "git config -f .gitmodules 'submodule.my lib.ignore' all; echo new > 'my lib/new'",
        "cd 'my lib'; git update-index --assume-unchanged library.txt; echo new > library.txt",
        "rm -rf 'my lib'/in/deep/.git",
        "cd 'my lib'; rm -rf in/deep; echo new > in/deep",
    ),
    COMMITS: (
        "cd 'my lib'; echo new > new; git add new; git commit -qm new; cd ..; git commit -qam new",
        "cd 'my lib'; git switch -qc own; git commit -q --allow-empty -m new; git switch -q --detach HEAD~",
        "cd 'my lib'; git commit -q --allow-empty -m new; git tag own; git switch -q --detach HEAD~",
    ),
    "submodule in/deep has changes of its own (in my lib)": ("echo new > 'my lib/in/deep/deep.txt'",),
    "my lib/ is a repository of its own": ("git clone -q . ../clone; rm -rf 'my lib'; mv ../clone 'my lib'",),
    "a.txt/ is a repository of its own": (
        "rm a.txt; git init -q a.txt; cd a.txt; git commit -q --allow-empty -m own",
    ),
    "my lib/ is the place of a submodule, and no commit can hold the files in it": (
        "rm -rf 'my lib'; mkdir -p 'my lib/a'; echo new > 'my lib/a/new'",
    ),
}
"""Why the worktree is kept, and what its task does then."""


@pytest.mark.parametrize(
    ("script", "kept"), [(script, why) for why, scripts in WORK.items() for script in scripts]
)
def test_a_filled_submodule_is_no_work_until_the_task_works_in_it(
    nested: Project, script: str, kept: str | None
) -> None:
    settings = (nested.top / ".git/config").read_bytes()

    def work(path: Path) -> None:
        assert nested.run("status", "--porcelain", cwd=path) == ""
        found = ((path / "my lib" / name).read_text() for name in ("library.txt", "in/deep/deep.txt"))
        assert [*found] == ["library\n", "deep\n"]
        nested.shell(script, path)

    place, path = nested.cycle(work)
    assert (place.kept, path.exists()) == (kept, kept is not None)
    assert (nested.top / ".git/config").read_bytes() == settings
    assert nested.run("fsck") == "" and nested.run("status", "--porcelain") == ""


@pytest.mark.parametrize("kept", [None, CHANGES, COMMITS])
def test_a_submodule_that_the_task_has_cloned_is_looked_at(nested: Project, kept: str | None) -> None:
    """The checkout lacks it.  Its repository lies in the books of the worktree, and would go with them."""
    nested.run("clone", "-q", str(nested.top / "my lib"), str(nested.root / "library"))
    shutil.rmtree(nested.top / ".git/modules")

    def work(path: Path) -> None:
        nested.run(*ALLOW, "submodule", "--quiet", "update", "--init", "my lib", cwd=path)
        assert (nested.top / ".git/worktrees/main-task-t/modules/my lib").is_dir()
        nested.shell(WORK[kept][0], path)

    place, path = nested.cycle(work)
    assert (place.kept, path.exists()) == (kept, kept is not None)


def test_nothing_of_the_borrowed_repository_counts_but_its_objects(nested: Project) -> None:
    ran, module = nested.root / "ran", nested.top / ".git/modules/my lib"
    program = make_program(nested.root / "program", f"touch {ran}")
    for key in ("core.fsmonitor", "filter.x.smudge", "filter.x.clean", "core.alternateRefsCommand"):
        nested.run("config", "--file", str(module / "config"), key, str(program))
    (module / "info/attributes").write_text("* filter=x\n")
    shutil.copy(program, module / "hooks/post-checkout")
    _, path = nested.begin_work()
    assert (path / "my lib/library.txt").read_text() == "library\n" and not ran.exists()


@pytest.mark.parametrize("name", ["../../../lib", "..", ".git", "my lib/.."])
def test_a_name_that_leads_elsewhere_fills_nothing(nested: Project, name: str) -> None:
    """The list of submodules is a file of the work."""
    shutil.copytree(nested.top / ".git/modules/my lib", nested.root / "lib")
    (nested.top / ".gitmodules").write_text(f'[submodule "{name}"]\n\tpath = my lib\n\turl = x\n')
    commit_all(nested.top, "planted")
    before = sorted(os.listdir(nested.root))
    _, path = nested.begin_work()
    assert os.listdir(path / "my lib") == [] and find_empty(nested.repository()) == []
    assert {*os.listdir(nested.root)} - {*before} <= {"repo-worktrees", "jobs-1"}


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_submodule_whose_commit_is_not_there_stays_empty(
    nested: Project, sessionrun: Command, is_partial: bool
) -> None:
    """Or not with all its files, as in a partial clone: the checkout of the task must not fail for it."""
    command = Command(nested.top, sessionrun.results)
    words = ("--dry-run", "--worktree", "--agent", "shell", "-p", "true")
    sign = "submodules that the checkout lacks"
    assert sign not in command(*words).stderr
    module = Git(nested.top / ".git/modules/my lib")
    if is_partial:
        blob = module.line("rev-parse", "HEAD:library.txt")
        for pack in (module.directory / "objects/pack").glob("*.pack"):
            content = pack.read_bytes()
            for part in pack.parent.glob(f"{pack.stem}.*"):
                part.unlink()
            module("unpack-objects", "-q", stdin=content)
        (module.directory / "objects" / blob[:2] / blob[2:]).unlink()
    else:
        shutil.rmtree(module.directory / "objects")
    assert f"{sign} are empty: my lib; git submodule update --init, now or" in command(*words).stderr
    assert sign not in command(*words, "--setup", "git submodule update --init").stderr
    request, path = nested.begin_work()
    assert os.listdir(path / "my lib") == []
    assert release(request, nested.folder()).kept is None


def test_a_submodule_that_setup_has_filled_with_files_is_not_looked_at(nested: Project) -> None:
    """No commit can hold them, and they are not the task's: its work is on its branch, not on a rescue branch."""
    shutil.rmtree(nested.top / ".git/modules/my lib/objects")
    request, path = nested.begin_work()
    nested.shell("echo made > 'my lib/made'", path)
    request = replace(request, place=end_setup(request, nested.folder()))
    nested.shell("echo cache > 'my lib/cache'; echo new > new", path)
    place = release(replace(request, worked=True), nested.folder())
    assert (place.kept, place.rescue, path.exists()) == (None, None, False)
    assert "new" in nested.files("main-task-t")


def test_a_submodule_outside_of_a_sparse_checkout_is_not_made(nested: Project) -> None:
    (nested.top / "seen").mkdir()
    (nested.top / "seen/file").touch()
    nested.run("mv", "my lib", "seen/lib")
    (nested.top / "hidden").mkdir()
    nested.run("mv", "seen/lib", "hidden/lib")
    commit_all(nested.top, "moved")
    nested.run("sparse-checkout", "set", "seen")
    for _ in range(2):  # the second time it is a seat that is taken again
        seats = Seats(str(nested.root / "seats"))
        place, path = nested.cycle(lambda path: None, seats=seats, seat=1)
        assert place.kept is None and not (path / "hidden").exists() and (path / "seen/file").exists()


def test_a_seat_deletes_nothing_behind_a_link_that_the_task_before_has_left(nested: Project) -> None:
    """Git overlooks the link, for a rule of the task, and finds a directory in the place of the submodule."""
    victim = nested.root / "outside/victim"
    victim.mkdir(parents=True)
    (victim / "file").touch()
    seats = Seats(str(nested.root / "seats"))
    script = f"""
    ln -s {victim.parent} a; echo /a >> .gitignore
    git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),a/victim
    git add .gitignore; git commit -qm planted
    """
    place, _ = nested.cycle(lambda path: nested.shell(script, path), seats=seats, seat=1)
    assert place.kept is None
    _, again = nested.begin_work("u", seats=seats, seat=1)
    assert (victim / "file").exists() and (again / "my lib/library.txt").exists()


def test_a_submodule_of_the_task_before_is_no_work_of_the_next(nested: Project) -> None:
    seats = Seats(str(nested.root / "seats"))
    place, path = nested.cycle(lambda path: None, seats=seats, seat=1)
    assert place.kept is None
    nested.shell("git -C 'my lib' commit -q --allow-empty -m two; git commit -qam newer", nested.top)
    request, again = nested.begin_work("u", seats=seats, seat=1)
    assert (again, nested.run("log", "-1", "--format=%s", cwd=path / "my lib")) == (path, "two")
    place = release(request, nested.folder())
    assert (place.kept, place.changed, place.branch) == (None, False, None)
    nested.shell(
        "git rm -qf 'my lib'; mkdir 'my lib'; echo > 'my lib/x'; git add .; git commit -qm own", nested.top
    )
    assert os.listdir(nested.begin_work("v", seats=seats, seat=1)[1] / "my lib") == ["x"], "and no repository"


def test_a_path_into_the_repository_is_none_of_a_submodule(nested: Project) -> None:
    (nested.top / ".gitmodules").write_text('[submodule "my lib"]\n\tpath = .git\n\turl = x\n')
    git = Git(nested.top)
    blob, head = git.line("hash-object", "-w", ".gitmodules"), git.line("rev-parse", "HEAD:my lib")
    entries = f"160000 commit {head}\t.git\n100644 blob {blob}\t.gitmodules\n"
    tree = git("mktree", stdin=entries.encode()).decode().strip()
    git("update-ref", "HEAD", git.line("commit-tree", tree, "-m", "planted"))
    fill_submodules(git, [nested.top / ".git"])
    assert git.commit_of("HEAD") is not None


def test_walls_show_no_folder_to_which_a_link_in_the_list_of_submodules_leads(nested: Project) -> None:
    """What is shown last is covered by no mask, and a task without walls can write there."""
    secret, modules = nested.root / "secret", nested.top / ".git/modules"
    secret.mkdir()
    (modules / "planted").mkdir()
    (modules / "planted/HEAD").touch()
    (modules / "planted/objects").symlink_to(secret)
    with (modules / "my lib/objects/info/alternates").open("a") as stream:
        stream.write(f"{secret}\n")
    repository = nested.repository()
    own = {str(modules / name / "objects") for name in ("my lib", "my lib/modules/in/deep")}
    assert {*list_stores(repository)} == own
    assert [*list_borrowed(repository)] == [str(secret)]


def test_a_linked_checkout_has_submodules_of_its_own(nested: Project) -> None:
    nested.run("worktree", "add", "-q", "../linked", "-b", "linked")
    books = nested.top / ".git/worktrees/linked"
    os.rename(nested.top / ".git/modules", books / "modules")
    assert find_empty(nested.repository()) == ["my lib"]
    nested.top = nested.root / "linked"
    assert find_empty(nested.repository()) == []
    assert (nested.begin_work()[1] / "my lib/in/deep/deep.txt").read_text() == "deep\n"


def test_a_start_that_was_killed_while_it_filled_is_done_again(nested: Project) -> None:
    request, folder = nested.prepare()[0], nested.root / "jobs-1/a1-1-prepare"
    path = nested.root / "repo-worktrees/main-task-t"
    (path / "my lib/library.txt").unlink()
    (path / "my lib/.git/index").unlink()
    (path / "my lib/.git/index.lock").touch()
    place = prepare(request, folder)
    assert nested.run("status", "--porcelain", cwd=path) == "" and (path / "my lib/library.txt").is_file()
    assert release(replace(request, place=place), nested.folder()).kept is None


def test_a_kept_worktree_has_no_settings_of_a_walled_task(nested: Project) -> None:
    """A person's git looks into submodules, and would run what they name."""
    need_walls()
    request, path = nested.begin_work(walls=str(nested.root / "walls"))
    git_dir, ran = path / "my lib/.git", nested.root / "ran"
    program = make_program(path / "program", f"touch {ran}")
    for place in (git_dir, path / "my lib/in/deep/.git"):
        nested.run("config", "--file", str(place / "config"), "core.fsmonitor", str(program))
        make_program(place / "hooks/post-checkout", f"touch {ran}")
    (git_dir / "elsewhere").mkdir()
    shutil.copy(git_dir / "config", git_dir / "elsewhere/config")
    (git_dir / "commondir").write_text("elsewhere\n")
    (path / "my lib/new").write_text("new\n")
    assert (release(request, nested.folder()).kept or "").startswith("submodule my lib has ")
    assert nested.run("status", "--porcelain", cwd=path) == 'M "my lib"\n?? program'
    assert not ran.exists()


def test_rooms_of_proofs_and_gates_have_them_too(nested: Project) -> None:
    repository = nested.repository()
    with (
        open_fence(repository, nested.folder()) as fence,
        open_clean_room(fence, "s1/t", repository.base_commit, nested.top / ".git/objects") as room,
    ):
        assert (room / "my lib/in/deep/deep.txt").read_text() == "deep\n"
        assert nested.run("status", "--porcelain", cwd=room) == ""
