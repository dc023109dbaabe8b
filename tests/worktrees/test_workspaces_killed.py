"""Jobs in worktrees are killed at every call that changes a file, in Python and in git, and begin again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import orjson
import pytest
from calls import Calls, each_call, needs_calls, run_program
from conftest import slow
from stages import Tree, refresh, refs_are_files
from test_workspaces import Project, make_repository, project

from sessionrun.git.git import GitError, version
from sessionrun.git.mirrors import locate_mirror
from sessionrun.model.landings import MendBase
from sessionrun.model.places import TASK_FILE, Place, Seats, Upstream
from sessionrun.store.jobfiles import load_answer
from sessionrun.worktrees.registration import STALE_LOCK_S
from sessionrun.worktrees.release import park_work, release, settle
from sessionrun.worktrees.request import WorkspaceRequest
from sessionrun.worktrees.rounds import set_back
from sessionrun.worktrees.seats import list_free
from sessionrun.worktrees.site import BEGUN, open_site
from sessionrun.worktrees.worktree import prepare

__all__ = ["project"]

COMMIT = "git -c user.name=a -c user.email=a@b commit -q -m own"
WORKS = {
    "none": "true",
    "a file": "echo new > new",
    "a commit and a file": f"echo new > new; git add new; {COMMIT}; echo more > more",
    "off its branch": f"git checkout -q --detach; echo new > new; git add new; {COMMIT}; echo more > more",
}


class Bench:
    """A project in which each kill finds what the one before found."""

    def __init__(self, project: Project, say: Callable[[str], None]) -> None:
        self.project, self.say = project, say
        self.jobs, self.counts = project.root / "jobs", project.root.parent / "calls"
        patch = str(project.root / "t.patch")
        self.request = WorkspaceRequest(project.repository(), "s1", "t", "do it", patch=patch)
        self._whole = Tree(project.root)

    def make_folder(self, name: str) -> Path:
        folder = self.jobs / name
        folder.mkdir(parents=True)
        return folder

    def prepare(self, work: str, request: WorkspaceRequest | None = None) -> WorkspaceRequest:
        """A worktree in which somebody has worked; the request for what comes next."""
        request = request or self.request
        place = prepare(request, self.make_folder(f"{request.task}/a1-1-prepare"))
        subprocess.run(["sh", "-ec", work], cwd=place.worktree, check=True)
        return replace(request, place=place)

    def run(
        self,
        phase: str,
        request: WorkspaceRequest,
        folder: Path,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Do the job in a process of its own; the last that it said."""
        (folder / "request.json").write_bytes(orjson.dumps(request))
        code = f"import sys; from sessionrun.session.job import run; sys.exit(run({phase!r}, {str(folder)!r}))"
        return run_program(code, environ=environ).stderr[-500:]

    def sweep(
        self,
        phase: str,
        begin: Callable[[], WorkspaceRequest],
        examine: Callable[[Place], None],
        *,
        first: int = 1,
        every: int = 1,
        elsewhere: bool = False,
    ) -> None:
        """Kill the job at each of its calls from the `first`, let it begin again, and examine what came out.

        With `elsewhere` it begins again in another folder, as a job of its own.
        """
        kills = 0

        def start(environ: Mapping[str, str]) -> tuple[WorkspaceRequest, Path]:
            for path in self.project.root.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._whole.lay_out(self.project.root)
            refresh(self.project.top)
            request, folder = begin(), self.make_folder(f"t/a1-3-{phase}")
            self.run(phase, request, folder, environ)
            return request, folder

        for do, begin_at in (("all", first), ("torn", 1)):
            for at, (request, folder) in each_call(
                start, self.counts, f"{phase}+", do=do, first=begin_at, every=every
            ):
                kills += 1
                print(f"{do} at {at}")  # a failure shows the last line
                folder = self.make_folder(f"t/a1-4-{phase}") if elsewhere else folder
                last = self.run(phase, request, folder)
                answer = load_answer(folder, Place)
                assert answer is not None, last
                examine(answer)
                assert find_locks(self.project) == []
        assert kills
        self.say(f"{kills} kills")


def find_locks(project: Project) -> list[str]:
    """Locks of git that are left."""
    found = (project.top / ".git").rglob("*.lock")
    return [str(path) for path in found if path.name != "sessionrun.lock"]


@pytest.fixture
def bench(project: Project, say: Callable[[str], None]) -> Bench:
    return Bench(project, say)


@needs_calls
@pytest.mark.parametrize("every", [37, *slow(1)])
def test_prepare(bench: Bench, every: int) -> None:
    """It has the name that it would have had, and all files."""

    def examine(place: Place) -> None:
        assert place.branch == "main-task-t" and place.worktree is not None
        assert bench.project.run("status", "--porcelain", cwd=Path(place.worktree)) == ""

    bench.sweep("prepare", lambda: bench.request, examine, every=every)


def examine_branches(project: Project, place: Place, work: str) -> None:
    """After RELEASE one branch has the work, and only what is off it keeps its worktree."""
    branches = {"none": ["main"], "off its branch": ["main", "main-task-t", "main-task-t-rescue"]}
    refs = project.run("for-each-ref", "--format=%(refname:lstrip=2)").split()
    assert (refs, place.remark) == (branches.get(work, ["main", "main-task-t"]), None)
    if work == "off its branch":
        assert place.worktree is not None and {"new", "more"} <= project.files(refs[-1])
        return
    assert place.kept is None
    if work != "none":
        examine_branch(project, place, work)


def examine_branch(project: Project, place: Place, work: str) -> None:
    """The work is safe on its branch."""
    assert place.branch is not None and place.rescue is None
    assert {name for name in ("new", "more") if name in WORKS[work]} <= project.files(place.branch)


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_release(bench: Bench, work: str) -> None:
    """It keeps no worktree without a reason."""

    def examine(place: Place) -> None:
        examine_branches(bench.project, place, work)
        assert place.kept or place.worktree is None

    bench.sweep("release", lambda: bench.prepare(WORKS[work]), examine)


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["setup", "park"])
def test_setup_and_park(bench: Bench, phase: str) -> None:
    """The worktree stays, its branch has what lies in it, and git sees no change."""
    work = "a commit and a file"

    def examine(place: Place) -> None:
        assert place.worktree is not None
        assert bench.project.run("status", "--porcelain", cwd=Path(place.worktree)) == ""
        examine_branch(bench.project, place, work)

    bench.sweep(phase, lambda: bench.prepare(WORKS[work]), examine)


@pytest.fixture
def clash(bench: Bench) -> Bench:
    """A branch `work` and a target that both change the same line; the request of a mend."""
    project = bench.project
    project.run("checkout", "-q", "-b", "work")
    for branch, text in (("work", "theirs"), ("main", "ours")):
        project.run("checkout", "-q", branch)
        (project.top / "a.txt").write_text(f"{text}\n")
        project.run("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", text)
    tip = project.run("rev-parse", "work")
    patch = str(project.root / "t.patch")
    request = WorkspaceRequest(project.repository(), "s1", "t", "do it", patch=patch, branch="work-mend-1")
    bench.request = replace(request, mend=MendBase("refs/heads/main", tip))
    bench._whole = Tree(project.root)
    return bench


def find_parents(project: Project, commit: str | None) -> list[str]:
    return project.run("rev-list", "--parents", "--no-walk", commit or "none").split()[1:]


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize(
    "then", ["", "git add a.txt; " + COMMIT, "true"], ids=["begun", "committed", "lying there"]
)
def test_prepare_and_release_of_a_mend(clash: Bench, then: str) -> None:
    """It begins with the marks, on a clean index; both its base and what lands have both sides as parents."""
    project, phase = clash.project, "release" if then else "prepare"

    def begin() -> WorkspaceRequest:
        return clash.prepare(f"printf 'ours\\ntheirs\\n' > a.txt; {then}") if then else clash.request

    def examine(place: Place) -> None:
        sides = project.run("rev-parse", "main", "work").split()
        tip = project.run("rev-parse", "work-mend-1")
        assert place.branch == "work-mend-1" and find_parents(project, tip) == sides
        if then:
            assert (place.commit, place.refused, place.worktree) == (tip, None, None)
            assert project.run("show", f"{tip}:a.txt") == "ours\ntheirs"
        else:
            path = Path(place.worktree or "none")
            assert (place.base_commit, project.run("status", "--porcelain", cwd=path)) == (tip, "")
            assert "|||||||" in (path / "a.txt").read_text()

    clash.sweep(phase, begin, examine)


LOCKS = ("refs/heads/main-task-t.lock", "packed-refs.lock", "worktrees/main-task-t/HEAD.lock")


@refs_are_files
@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("job", [release, park_work, settle])
def test_a_second_start_removes_what_the_first_one_left(
    project: Project, job: Callable[[WorkspaceRequest, Path], Place], lock: str
) -> None:
    request, path = project.begin_work()
    (path / "new").write_text("new")
    folder = project.folder()
    (folder / BEGUN).touch()
    (folder / "park-index.lock").touch()
    (project.top / ".git" / lock).touch()
    if lock == "packed-refs.lock":
        age([folder / BEGUN, project.top / ".git" / lock])
    done = job(request, folder)
    assert (find_locks(project), done.rescue) == ([], None)
    assert "new" in project.files("main-task-t")


def age(paths: list[Path]) -> None:
    """As if all this had been a while ago."""
    for path in paths:
        made = path.stat().st_mtime - STALE_LOCK_S - 1
        os.utime(path, (made, made))


@refs_are_files
@pytest.mark.parametrize("since", ["the first start", "before"])
def test_a_lock_of_another_program_stays(project: Project, since: str) -> None:
    """One on another branch, and those that are older than the job."""
    request, _ = project.begin_work()
    folder = project.folder()
    locks = [project.top / ".git" / name for name in ("refs/heads/main.lock", "packed-refs.lock")]
    other = locks[0] if since == "the first start" else locks[1]
    other.touch()
    if since == "before":
        age([other])
    (folder / BEGUN).touch()
    release(request, folder)
    assert find_locks(project) == [str(other)]


def seated(bench: Bench, *, work: str = "", task: str = "t") -> WorkspaceRequest:
    """Worktrees stay; with `work`, a task has worked in the first and left it."""
    top = bench.project.top
    request = replace(bench.request, seats=Seats(str(top / "worktrees")), seat=1, prompt="do it", task=task)
    if work:
        earlier = bench.prepare(work, replace(request, task="earlier"))
        release(earlier, bench.make_folder("earlier/a1-3-release"))
    return request


EARLIER = "mkdir cache; echo '*' > cache/.gitignore; echo old > old; echo changed > a; ln -s a l"


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True], ids=["again", "another"])
@pytest.mark.parametrize("work", ["", EARLIER], ids=["new", "used"])
def test_prepare_of_a_worktree_that_stays(bench: Bench, work: str, elsewhere: bool) -> None:
    """It is on its branch, and nothing is left in it but what git ignores, which is there if the job goes on."""
    project = bench.project

    def examine(place: Place) -> None:
        path = Path(place.worktree or "")
        head = project.run("rev-parse", "--abbrev-ref", "HEAD", cwd=path)
        assert (place.branch, head, path.name) == ("main-task-t", "main-task-t", "w1")
        refs = project.run("for-each-ref", "--format=%(refname:lstrip=2)").split()
        assert refs == ["main", *(["main-task-earlier"] if work else []), "main-task-t"]
        assert project.run("status", "--porcelain", cwd=path) == ""
        assert project.run("status", "--porcelain", "--untracked-files=all") == "", "the checkout shows nothing"
        assert (path / TASK_FILE).read_text() == "do it\n"
        assert not work or elsewhere or (path / "cache/.gitignore").exists()

    bench.sweep("prepare", lambda: seated(bench, work=work), examine, elsewhere=elsewhere)


@needs_calls
@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_release_of_a_worktree_that_stays(bench: Bench, work: str) -> None:
    """One branch has the work, and the worktree is free for the next task, or keeps what is off its branch."""
    project = bench.project

    def examine(place: Place) -> None:
        examine_branches(project, place, work)
        if work == "off its branch":
            return
        free = list_free(project.repository(), Seats(str(project.top / "worktrees")))
        again = prepare(seated(bench, task="next"), bench.make_folder("next/a1-1-prepare"))
        assert (len(free), again.seat) == (1, 1)
        assert not {path.name for path in Path(again.worktree or "").iterdir()} & {"new", "more"}

    bench.sweep("release", lambda: bench.prepare(WORKS[work], seated(bench)), examine)


# --- its branch comes into the repository of its user ---


def ask(project: Project) -> WorkspaceRequest:
    """A task in a mirror of the project."""
    mirror = str(locate_mirror(project.root / "cache", str(project.top)))
    own = project.repository()
    assert own.settings is not None
    repository = replace(
        own,
        top=mirror,
        common_dir=mirror,
        base_branch="",
        base_commit="",
        worktree_dir=str(project.root / "worktrees"),
        settings=replace(own.settings, git_dir=mirror),
        upstream=str(project.top),
    )
    upstream = Upstream(str(project.top), None, mirror, str(project.top / ".git"))
    patch = str(project.root / "t.patch")
    return WorkspaceRequest(repository, "s1", "t", "do it", patch=patch, upstream=upstream)


def work_in_mirror(project: Project) -> WorkspaceRequest:
    """PREPARE, and work; the request for what comes next."""
    request, folder = ask(project), project.root / "jobs" / "t" / "a1-1-prepare"
    folder.mkdir(parents=True)
    place = prepare(request, folder)
    subprocess.run(["sh", "-ec", "echo new > new"], cwd=place.worktree, check=True)
    start = place.start
    assert start is not None
    repository = replace(request.repository, base_branch=start.name, base_commit=start.commit)
    return replace(request, repository=repository, place=place)


@needs_calls
@pytest.mark.slow
def test_release_of_a_task_with_a_mirror(project: Project, say: Callable[[str], None]) -> None:
    """The branch is in both repositories, the worktree is gone, and git finds no lock."""
    request = work_in_mirror(project)
    bench = Bench(project, say)
    without = replace(request, upstream=replace(request.upstream, home=None) if request.upstream else None)
    calls = Calls(bench.counts, "release+:change:9999:kill")
    bench.run("release", without, bench.make_folder("t/a1-3-release"), calls.environ("release"))
    (before,) = calls.counts()

    def examine(place: Place) -> None:
        assert (place.remark, place.kept, place.worktree) == (None, None, None)
        refs = project.run("for-each-ref", "--format=%(refname:lstrip=2)").split()
        assert refs == ["main", "main-task-t"] and "new" in project.files("main-task-t")
        left = (project.root / "cache").glob("mirrors/*.git/**/*.lock")
        assert [path for path in left if path.name != "sessionrun.lock"] == []

    bench.sweep("release", lambda: request, examine, first=before - 30)


@refs_are_files
@pytest.mark.parametrize("begun", [True, False], ids=["a second start", "the first start"])
def test_locks_of_the_tasks_branches_go_where_a_killed_fetch_can_have_left_them(
    project: Project, begun: bool
) -> None:
    """Not what another program has made; at the first start all locks there are of the user's own git."""
    request, folder = work_in_mirror(project), project.folder()
    names = ("main", "main-task-t-rescue", *(("main-task-t", "main-task-t-rescue-2") if begun else ()))
    if begun:
        (folder / BEGUN).touch()
    for name in names:
        (project.top / ".git/refs/heads" / f"{name}.lock").touch()
    done = release(request, folder)
    assert (done.remark, done.worktree) == (None, None) and "new" in project.files("main-task-t")
    left = {Path(path).stem for path in find_locks(project)}
    assert left == ({"main"} if begun else {*names})


# --- refs in a table, which has one lock for all of them ---


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
        request, path = project.begin_work(task, seats=Seats(str(project.root / "seats")), seat=1)
        (path / task).write_text(task)
        assert release(request, project.folder()).kept is None
        assert project.files(f"main-task-{task}") == {"a.txt", "sub/b.txt", ".gitignore", task}
    assert project.run("fsck") == "" and project.run("worktree", "prune", "-n") == ""
