"""The RELEASE of a task with a mirror is killed while it brings its branch into the user's repository."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest
from calls import Calls, needs_calls
from test_workspaces import Project, project
from test_workspaces_killed import Bench, find_locks

from sessionrun.model.places import Place, Repository, Upstream
from sessionrun.worktrees.mirrors import locate_mirror
from sessionrun.worktrees.release import release
from sessionrun.worktrees.request import WorkspaceRequest
from sessionrun.worktrees.site import BEGUN
from sessionrun.worktrees.worktree import prepare

__all__ = ["project"]


def ask(project: Project) -> WorkspaceRequest:
    """A task in a mirror of the project."""
    mirror = str(locate_mirror(project.root / "cache", str(project.top)))
    own = project.repository()
    assert own.settings is not None
    repository = Repository(
        top=mirror,
        common_dir=mirror,
        base_branch="",
        base_commit="",
        worktree_dir=str(project.root / "worktrees"),
        keep="never",
        excludes=own.excludes,
        settings=replace(own.settings, git_dir=mirror),
        upstream=str(project.top),
    )
    upstream = Upstream(str(project.top), None, mirror, str(project.top / ".git"))
    patch = str(project.root / "t.patch")
    return WorkspaceRequest(repository, "s1", "t", "do it", patch=patch, upstream=upstream)


def work_in_mirror(project: Project) -> WorkspaceRequest:
    """PREPARE, and work; the request for what comes next."""
    request, folder = ask(project), project.root / "jobs" / "a1-1-prepare"
    folder.mkdir(parents=True)
    place = prepare(request, folder)
    subprocess.run(["sh", "-ec", "echo new > new"], cwd=place.worktree, check=True)
    start = place.start
    assert start is not None
    repository = replace(request.repository, base_branch=start.name, base_commit=start.commit)
    return replace(request, repository=repository, place=place, start=start)


def find_all_locks(project: Project) -> list[str]:
    """What a killed git has left in the user's repository and in the mirror."""
    left = (project.root / "cache").glob("mirrors/*.git/**/*.lock")
    return [*find_locks(project), *(str(path) for path in left if path.name != "sessionrun.lock")]


@needs_calls
@pytest.mark.slow
def test_release(project: Project, say: Callable[[str], None]) -> None:
    """The branch is in both repositories, the worktree is gone, and git finds no lock."""
    request = work_in_mirror(project)
    bench = Bench(project)
    without = replace(request, upstream=replace(request.upstream, home=None) if request.upstream else None)
    calls = Calls(bench.counts, "release+:change:9999:kill")
    bench.run("release", without, bench.make_folder("a1-3-release"), calls.environ("release"))
    (before,) = calls.counts()

    def examine(place: Place) -> list[str]:
        wrong = [line for line in (place.remark, place.kept, place.worktree) if line is not None]
        refs = project.run("for-each-ref", "--format=%(refname:lstrip=2)").split()
        if refs != ["main", "main-task-t"]:
            wrong.append(f"refs: {refs}")
        elif "new" not in project.files("main-task-t"):
            wrong.append("work is lost")
        return [*wrong, *find_all_locks(project)]

    say(f"{bench.sweep('release', lambda: request, examine, first=before - 30)} kills")


def test_a_second_start_removes_what_the_killed_fetch_left(project: Project) -> None:
    """The locks of the task's branches; not what another program has made."""
    request, folder = work_in_mirror(project), project.folder()
    home = project.top / ".git"
    (folder / BEGUN).touch()
    locks = [home / "refs" / "heads" / f"main-task-t{end}.lock" for end in ("", "-rescue", "-rescue-2")]
    other = home / "refs" / "heads" / "main.lock"
    for lock in (*locks, other):
        lock.touch()
    done = release(request, folder)
    assert (done.remark, done.worktree) == (None, None)
    assert "new" in project.files("main-task-t")
    assert find_locks(project) == [str(other)]


def test_the_first_start_removes_nothing(project: Project) -> None:
    """A lock in the user's repository is then of the user's own git."""
    request, lock = work_in_mirror(project), project.top / ".git" / "refs" / "heads" / "main-task-t-rescue.lock"
    lock.touch()
    assert release(request, project.folder()).remark is None
    assert lock.exists()
