"""Rounds in a worktree, done again: what is kept, taken back and put back survives a kill at each step."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from calls import between, forked, needs_calls, run_watched
from conftest import Command, eventually
from stages import git
from test_rounds import CountingProject, by_round, junit, only_task, refs
from test_workspaces import Project
from test_worktrees import start, wait

from sessionrun.model.places import Place
from sessionrun.worktrees.release import release
from sessionrun.worktrees.request import WorkRequest, WorkspaceRequest
from sessionrun.worktrees.rounds import DONE, keep_round, take_back


@pytest.fixture
def project(own_place: Path) -> Project:
    return CountingProject(own_place)


def mess_up(path: Path) -> None:
    """Commits of the agent's own, on another branch, with changes of all kinds, and what git ignores."""
    git(path, "checkout", "-q", "-B", "elsewhere")
    (path / "calc.py").write_text("mine\n")
    git(path, "commit", "-qam", "mine")
    (path / "a.txt").unlink()
    (path / "new" / "deep").mkdir(parents=True, exist_ok=True)
    (path / "new" / "deep" / "file.txt").write_text("new\n")
    (path / "venv").mkdir(exist_ok=True)
    (path / "venv" / "tool").write_text("tool\n")
    admin = Path(git(path, "rev-parse", "--absolute-git-dir"))
    (admin / "index.lock").touch()


def sweep_set_back(root: str) -> None:
    Path(root).mkdir()
    project = CountingProject(Path(root))
    request, place = project.prepare()
    path, first = Path(place.worktree or ""), project.folder()
    loop = replace(request, place=place, round="a1-round-1")
    asked = WorkRequest(loop, ("true",), str(first), str(project.folder()))

    def begin(environ: Mapping[str, str]) -> None:
        (first / DONE).unlink(missing_ok=True)
        mess_up(path)
        forked(lambda: take_back(asked, first))(environ)

    for at, _ in between(begin, project.root / "calls", "work"):
        take_back(asked, first)
        assert git(path, "status", "--porcelain", "--branch") == f"## {place.branch}", at
        assert git(path, "rev-parse", "HEAD") == place.base_commit, at
        left = [one for one in (path / "new").rglob("*") if one.is_file()]  # git sees no empty directory
        assert (path / "venv" / "tool").exists() and not left, at
        assert "+mine" in Path(asked.before, "round.patch").read_text().splitlines(), at
    (path / "calc.py").write_text("of this round\n")
    take_back(asked, first)
    assert (path / "calc.py").read_text() == "of this round\n", "it is done once in a round"


@needs_calls
@pytest.mark.slow
def test_a_worktree_that_is_half_set_back_is_set_back(project: Project) -> None:
    run_watched(sweep_set_back, project.root / "swept")


def prepare_rounds(project: Project, task: str) -> tuple[WorkspaceRequest, Place]:
    """A worktree whose first round was the best, and whose second one has commits of its own."""
    request, place = project.prepare(task)
    path = Path(place.worktree or "")
    (path / "calc.py").write_text("good\n")
    (path / "only-good.txt").write_text("good\n")
    request = replace(request, place=place, round="a1-round-1")
    kept = keep_round(request, project.folder())
    assert keep_round(request, project.folder()).tree == kept.tree, "done again, it is the same"
    (path / "calc.py").write_text("bad\n")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "bad")
    (path / "only-bad.txt").write_text("bad\n")
    folder = project.root / "p" / task
    return replace(request, best=kept.commit, replaced=str(folder / "a1-replaced.patch")), place


def sweep_put_back(root: str) -> None:
    Path(root).mkdir()
    project = CountingProject(Path(root))

    numbers = itertools.count()

    def begin(environ: Mapping[str, str]) -> tuple[WorkspaceRequest, Place]:
        request, place = prepare_rounds(project, f"t{next(numbers)}")
        forked(partial(release, request, project.folder()))(environ)
        return request, place

    for at, (request, place) in between(begin, project.root / "calls", "release"):
        released = release(request, project.folder())
        assert released.commit is not None and released.worktree is None, at
        assert project.show(released.commit, "calc.py") == b"good\n", at
        kept = {name for name in project.files(released.commit) if name.startswith("only-")}
        subjects = project.run("log", "--format=%s", f"{place.base_commit}..{released.commit}").splitlines()
        assert (kept, subjects) == ({"only-good.txt"}, [f"Work of task {request.task}"]), at
        assert "+bad" in Path(request.replaced).read_text().splitlines(), at
        assert refs(project) == "", at


@needs_calls
@pytest.mark.slow
def test_the_best_round_is_put_back_whatever_is_killed(project: Project) -> None:
    run_watched(sweep_put_back, project.root / "swept")


def test_what_no_commit_can_hold_is_not_replaced(project: Project) -> None:
    request, place = prepare_rounds(project, "t")
    inner = Path(place.worktree or "") / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "file").write_text("x")
    git(inner, "-c", "user.name=a", "-c", "user.email=a", "add", "file")
    released = release(request, project.folder())
    assert released.remark is not None and released.kept is not None
    assert released.remark.startswith("the best round's work is not put back: ")
    assert released.commit is not None
    assert project.show(released.commit, "calc.py") == b"bad\n"


@pytest.mark.slow
@pytest.mark.parametrize("reset", ["keep", "hard"])
def test_rounds_go_on_whatever_is_killed(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch, reset: str
) -> None:
    """Supervisors and keepers die all the time; each round works once, and the best one is kept."""
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(sessionrun.results))
    worked = project.root / "worked"
    work = f"echo $SESSIONRUN_ROUND >> {worked}; echo $SESSIONRUN_ROUND >> new.txt; sleep 0.3"
    check = {"commands": by_round(junit(1, 2), junit(2, 1), junit(0, 3), junit(1, 2)), "rounds": 4, "reset": reset}
    session = start(sessionrun, project, [{"id": "a", "prompt": work, "check": check}], "--worktree")

    def find_epoch() -> int:
        view = sessionrun.status(session)
        return -1 if view["ended_at"] else int(view["epoch"])

    def has_changed(before: int) -> bool:
        return find_epoch() not in (before, 0)

    for number in range(12):
        before = find_epoch()
        if before < 0:
            break
        try:
            victims = sessionrun.chain(session)[1:] if number % 3 == 2 else (sessionrun.supervisor(session),)
            os.kill(victims[0], signal.SIGKILL)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue  # it has ended, or another one is just being started
        eventually(partial(has_changed, before))
    task = only_task(wait(sessionrun, session))
    assert worked.read_text().split() == ["1", "2", "3", "4"]
    assert (task["outcome"], task["check"]["best_round"]) == ("failed", 2)
    kept = project.show(task["commit"], "new.txt")
    assert kept == (b"2\n" if reset == "hard" else b"1\n2\n")
    assert refs(project) == ""
