"""`needs` hands the work on: a task with a worktree begins where those that it needs ended."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from stages import Stage, refresh, stage
from test_cli_worktrees import Finished, Project, finished, next_block, project, project_in, type_in
from test_workspaces import Project as Repo
from test_worktrees import by_id, finish
from test_worktrees import project as repo

from sessionrun.engine.handed import find_handed
from sessionrun.git.private import open_fence
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Handed, Place
from sessionrun.model.spec import SessionSpec, TaskSpec, Workspace
from sessionrun.session.history import begin
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.bases import find_base, merge_ends
from sessionrun.worktrees.clean import Claimed, clean_claimed
from sessionrun.worktrees.release import release
from sessionrun.worktrees.request import NeedsConflict, WorkspaceRequest, load_claim
from sessionrun.worktrees.worktree import prepare

__all__ = ["finished", "project", "repo", "stage"]

FIVE: dict[str, list[dict[str, Any]]] = {
    "prompts": [
        {"id": "last", "needs": ["both", "own"], "prompt": "cat a b both && echo > last"},
        {"id": "a", "prompt": "echo a > a"},
        {"id": "b", "prompt": "echo b > b; git add b; git commit -qm 'b itself'"},
        {"id": "both", "needs": ["b", "a"], "prompt": "cat a b && echo both > both"},
        {"id": "own", "needs": "a", "prompt": "cat a && [ ! -e b ] && echo own > own"},
    ]
}
"""Two of them have two needs; `both` and `own` have one in common."""

CLASH = {
    "prompts": [
        {"id": "x", "prompt": "echo x > README; echo x > 'a file'; echo x > x"},
        {"id": "y", "prompt": "echo y > README; echo y > 'a file'; echo y > y"},
        {"id": "free", "prompt": "echo > free"},
        {"id": "z", "needs": ["x", "free", "y"], "retries": 2, "prompt": "cat README x y free && echo > z"},
        {"id": "after", "needs": "z", "prompt": "cat z && echo > after"},
    ]
}


def changed(project: Project, task: dict[str, Any]) -> list[str]:
    return project.git("diff", "--name-only", task["base_commit"], task["commit"]).split("\n")


# --- the graph ---


def check_five(project: Project, session: str) -> None:
    tasks = by_id(project.status(session))
    assert [task["reason"] for task in tasks.values() if task["outcome"] != "succeeded"] == []
    base = project.git("rev-parse", "main")
    assert tasks["a"]["base_commit"] == tasks["b"]["base_commit"] == base
    assert tasks["own"]["base_commit"] == tasks["a"]["commit"]
    for name, needs in (("both", ["b", "a"]), ("last", ["both", "own"])):
        merged = tasks[name]["base_commit"]
        parents = project.git("rev-parse", f"{merged}^@").split("\n")
        assert parents == [tasks[need]["commit"] for need in needs]
        assert project.git("show", "-s", "--format=%s %an", merged) == f"Needs of task {name} sessionrun"
    for name, task in tasks.items():
        assert task["branch"] == f"main-task-{name}" and changed(project, task) == [name]
        assert task["diff_stat"]["files"] == 1
        patch = project("diff", session, name).stdout
        assert re.findall(r"^diff --git a/(.*) b/", patch, re.MULTILINE) == [name]
    assert project.git("ls-tree", "--name-only", "main-task-last").split() == [
        ".gitignore",
        *("README", "a", "b", "both", "last", "own"),
    ]


def test_each_task_finds_the_work_of_its_needs(finished: Finished) -> None:
    project = finished(FIVE)
    session = project.sessions[0]
    check_five(project, session)
    kept = project.load("clean", "--worktrees")["findings"]
    assert [finding["removed"] for finding in kept] == [False] * 5
    type_in(project, next_block(project("results", session).stdout))
    assert {"a", "b", "both", "own", "last"} <= {path.name for path in project.cwd.iterdir()}
    type_in(project, next_block(project("results", session).stdout))
    assert project.branches() == ["main"]


@pytest.mark.slow
def test_what_comes_next_of_some_tasks_takes_the_work_that_theirs_is_built_on(finished: Finished) -> None:
    project = finished(FIVE)
    session = project.sessions[0]
    block = next_block(project("results", session, "own").stdout)
    assert block == f"  sessionrun merge {session[:8]} a own    # land what succeeded on main\n"
    type_in(project, block)
    assert not (project.cwd / "b").exists() and (project.cwd / "own").exists()


@pytest.mark.slow
def test_a_resumed_session_gives_the_same_branches(project: Project) -> None:
    """All processes die when two needs have ended and their dependents are still held."""
    tasks = [dict(task) for task in FIVE["prompts"]]
    tasks[1]["prompt"] = f"while ! [ -e ../../go ]; do sleep 0.2; done; {tasks[1]['prompt']}"
    session = project.start({"prompts": tasks}, "--worktree")
    assert project("hold", session, "both", "own").returncode == 0
    (project.cwd.parent / "go").touch()
    project.until(session, lambda view: view["completed"] == 2)
    project.kill_chain(session)
    assert project("resume", session).returncode == 0
    assert project("release", session, "both", "own").returncode == 0
    project.wait(session)
    check_five(project, session)


@pytest.mark.slow
def test_a_prepare_that_is_killed_gives_the_same_branch(sessionrun: Command, repo: Repo) -> None:
    """Its third start comes to its end: the task has the names and the base that it would have had."""
    script, count = repo.root / "filter.sh", repo.root / "count"
    kill = f'echo >> {count}; [ "$(wc -l < {count})" -gt 2 ] || kill -KILL 0'
    script.write_text(f'case "$(pwd)" in *-task-c*) {kill};; esac; exec cat\n')
    (repo.top / ".gitattributes").write_text("*.k filter=k\n")
    (repo.top / "one.k").write_text("one\n")
    repo.run("add", "-A")
    repo.run("commit", "-qm", "filtered")
    repo.run("config", "filter.k.smudge", f"sh {script}")
    plan = [
        {"id": "a", "prompt": "echo a > a.n"},
        {"id": "b", "prompt": "echo b > b.n"},
        {"id": "c", "needs": ["a", "b"], "prompt": "cat a.n b.n one.k && echo c > c.n"},
    ]
    tasks = by_id(finish(sessionrun, repo, plan))
    assert tasks["c"]["outcome"] == "succeeded" and count.read_text() == "\n\n\n"
    assert tasks["c"]["branch"] == "main-task-c" and repo.run("branch", "--list", "*-2") == ""
    parents = repo.run("rev-parse", f"{tasks['c']['base_commit']}^@").split()
    assert parents == [tasks["a"]["commit"], tasks["b"]["commit"]]


# --- what cannot be merged ---


@pytest.mark.slow
def test_a_conflict_of_needs_is_told_and_can_be_mended(project: Project) -> None:
    session = project.finish(CLASH)
    tasks = by_id(project.status(session))
    z = tasks["z"]
    assert (z["outcome"], z["reason_class"], z["attempt"]) == ("failed", "needs_conflict", 1)
    mend = "merge main-task-x into main-task-y, then retry"
    assert z["reason"] == f"needs_conflict: 'x' and 'y' conflict in README, a file: {mend}"
    assert (z["branch"], z["worktree"], z["base_commit"]) == (None, None, None)
    assert (tasks["after"]["outcome"], tasks["after"]["reason_class"]) == ("skipped", "need")
    assert project.branches() == ["main", *(f"main-task-{name}" for name in ("free", "x", "y"))]
    assert not project.worktree("main-task-z").exists()
    project.git("switch", "-q", "main-task-y")
    project.git("merge", "-q", "-X", "ours", "main-task-x")
    project.git("switch", "-q", "main")
    assert project.to_end("retry", session).returncode == 0
    tasks = by_id(project.wait(session))
    assert [tasks[name]["outcome"] for name in ("z", "after")] == ["succeeded", "succeeded"]
    assert (project.directory(session) / "task-z.txt").read_text() == "y\nx\ny\n\n"
    assert tasks["z"]["branch"] == "main-task-z" and changed(project, tasks["z"]) == ["z"]
    type_in(project, next_block(project("results", session).stdout))
    assert project.git("ls-tree", "--name-only", "main", "after") == "after"


def request_of(repo: Repo, *needs: Handed, task: str = "t") -> WorkspaceRequest:
    return WorkspaceRequest(repo.repository(), "s1", task, "do it", needs=needs)


def end(repo: Repo, name: str, text: str = "", base: str = "main", **files: str) -> Handed:
    """A task that ended: its branch with a file of its own, and others."""
    repo.run("switch", "-q", "-c", f"main-task-{name}", base)
    for file, content in {name: text or name, **files}.items():
        (repo.top / file).write_text(content)
    repo.run("add", "-A")
    repo.run("commit", "-qm", name)
    repo.run("switch", "-q", "main")
    return Handed(name, repo.run("rev-parse", f"main-task-{name}"), f"main-task-{name}")


OLDER_GIT = """#!/bin/sh
for last; do :; done
[ "$last" = version ] && exec echo git version 2.34.1
exec {} "$@"
"""


def merge(repo: Repo, request: WorkspaceRequest, ends: dict[str, Handed]) -> str:
    with open_fence(request.repository) as fence:
        return merge_ends(fence, request, ends, repo.folder())


def base_of(repo: Repo, request: WorkspaceRequest, folder: Path) -> str:
    with open_fence(request.repository) as fence:
        return find_base(fence, request, folder)


@pytest.mark.slow
@pytest.mark.parametrize("is_old", [False, True], ids=["git 2.38", "older git"])
def test_merges_are_the_same_each_time(repo: Repo, is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_old:
        program = repo.top.parent / "older" / "git"
        program.parent.mkdir()
        program.write_text(OLDER_GIT.format(shutil.which("git")))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (repo.top / ".gitattributes").write_text("list merge=union\n")
    (repo.top / "list").write_text("0\n")
    repo.run("add", "-A")
    repo.run("commit", "-qm", "list")
    needs = [end(repo, name, list=f"0\n{name}\n") for name in ("a", "b", "c")]
    (repo.top / ".gitattributes").write_text("list -merge\n")  # what lies in the checkout does not count
    before = repo.run("status", "--porcelain"), repo.run("for-each-ref")
    request, ends = request_of(repo, *needs), {need.commit or "": need for need in needs}
    made = {merge(repo, request, ends) for _ in range(2)}
    (commit,) = made
    assert repo.run("rev-parse", f"{commit}^@").split() == [need.commit for need in needs]
    assert repo.show(commit, "list") == b"0\na\nb\nc\n"
    assert {"a", "b", "c"} <= repo.files(commit)
    assert (repo.run("status", "--porcelain"), repo.run("for-each-ref")) == before
    repo.run("checkout", "-q", ".gitattributes")
    clash = end(repo, "d", base="main-task-a", a="other")
    more = end(repo, "e", base="main-task-a", a="another\n")
    with pytest.raises(NeedsConflict, match=r"^'d' and 'e' conflict in a: merge main-task-d into main-task-e"):
        ends = {need.commit or "": need for need in (needs[1], clash, more)}
        merge(repo, request, ends)
    folder = repo.folder()
    assert base_of(repo, request, folder) == commit
    assert list(folder.iterdir()) == []


def test_what_contains_others_is_enough(repo: Repo) -> None:
    a = end(repo, "a")
    b = end(repo, "b", base="main-task-a")
    idle = Handed("idle", repo.run("rev-parse", "main"))
    assert base_of(repo, request_of(repo, a, b), repo.folder()) == b.commit
    assert base_of(repo, request_of(repo, b, idle, a), repo.folder()) == b.commit
    assert base_of(repo, request_of(repo, idle, a), repo.folder()) == a.commit
    assert base_of(repo, request_of(repo, idle), repo.folder()) == repo.run("rev-parse", "main")
    assert base_of(repo, request_of(repo), repo.folder()) == repo.run("rev-parse", "main")


def test_a_need_whose_work_nothing_holds(repo: Repo) -> None:
    """Without its branch the commit will do, as long as it is there."""
    a, b = end(repo, "a"), end(repo, "b")
    repo.run("branch", "-q", "-D", "main-task-a", "main-task-b")
    merged = base_of(repo, request_of(repo, a, b), repo.folder())
    assert repo.run("rev-parse", f"{merged}^@").split() == [a.commit, b.commit]
    repo.run("reflog", "expire", "--expire=now", "--all")
    repo.run("gc", "-q", "--prune=now")
    request = request_of(repo, a)
    with pytest.raises(SessionrunError, match=r"work of task 'a', which it needs: branch main-task-a and .* gone"):
        prepare(request, repo.folder())
    with pytest.raises(SessionrunError, match="'l', which it needs: both were deleted"):
        prepare(replace(request, needs=(Handed("l", None, None, "both were deleted"),)), repo.folder())
    assert repo.run("branch", "--list", "*task*") == ""


def test_somebody_went_on_where_a_need_ended(repo: Repo) -> None:
    """The tip of its branch counts if it is asked for, and has the recorded work."""
    recorded = end(repo, "a")
    a = replace(recorded, follow=True)
    repo.run("switch", "-q", "main-task-a")
    repo.run("commit", "-q", "--allow-empty", "-m", "more")
    repo.run("switch", "-q", "main")
    assert base_of(repo, request_of(repo, a), repo.folder()) == repo.run("rev-parse", "main-task-a") != a.commit
    assert base_of(repo, request_of(repo, recorded), repo.folder()) == a.commit
    repo.run("branch", "-q", "-f", "main-task-a", "main")
    assert base_of(repo, request_of(repo, a), repo.folder()) == a.commit


# --- which needs hand on ---


SOME: dict[str, Any] = {
    "defaults": {"base": "session"},
    "prompts": [
        {"id": "a", "prompt": "mkdir sub; echo a > sub/a"},
        {"id": "alone", "needs": "a", "prompt": "[ ! -e sub/a ] && echo b > b"},
        {"id": "c", "needs": ["a", "alone"], "base": "needs", "prompt": "cat sub/a b && echo c > c"},
        {"id": "idle", "needs": "a", "base": "needs", "prompt": "cat sub/a"},
        {"id": "gate", "needs": "idle", "base": "needs", "workspace": "none", "prompt": "[ ! -e sub/a ]"},
        {
            "id": "last",
            "needs": "gate",
            "base": "needs",
            "cwd": "sub",
            "prompt": "cat a && echo > last",
            "expect_change": True,
        },
        {"id": "lazy", "needs": "a", "base": "needs", "prompt": "true", "expect_change": True},
        {"id": "third", "prompt": "[ $SESSIONRUN_ATTEMPT = 3 ] && echo a > a", "retries": 2},
    ],
}


@pytest.fixture
def some(own_place: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Project:
    """All tasks of SOME have ended, in `sessions[0]`, started in a checkout with an empty directory `sub`."""

    def run(place: Path) -> None:
        project = project_in(place / "work", monkeypatch)
        (project.cwd / "sub").mkdir()
        session = SessionDir(project.directory(project.finish(SOME)))
        eventually(lambda: not session.is_alive())

    project = project_in(stage.enter("some", monkeypatch, run) / "work", monkeypatch)
    refresh(project.cwd)
    project.sessions = [path.name.removeprefix("session-") for path in project.results.glob("session-*")]
    return project


@pytest.mark.slow
def test_base_session_begins_with_the_session(some: Project) -> None:
    tasks = by_id(some.wait(some.sessions[0]))
    assert {tasks[name]["outcome"] for name in ("a", "alone", "c")} == {"succeeded"}
    assert tasks["alone"]["base_commit"] == some.git("rev-parse", "main")
    assert changed(some, tasks["c"]) == ["c"]
    done = some("--worktree", "--agent", "shell", stdin='[{"prompt": "true", "base": "main"}]')
    assert (
        done.returncode == 2
        and '[0].base: must be one of needs, session, target, not the text "main"' in done.stderr
    )


@pytest.mark.slow
def test_needs_that_changed_nothing_or_have_no_worktree(some: Project) -> None:
    """`idle` has no branch and `gate` no worktree; what they had to begin with goes on to `last` all the same."""
    session = some.sessions[0]
    tasks = by_id(some.wait(session))
    outcomes = [tasks[name]["outcome"] for name in ("a", "idle", "gate", "last", "lazy")]
    assert outcomes == [*["succeeded"] * 4, "failed"]
    assert tasks["lazy"]["reason_class"] == "no_change"
    assert tasks["last"]["base_commit"] == tasks["idle"]["commit"] == tasks["a"]["commit"]
    assert some.branches() == ["main", *(f"main-task-{name}" for name in ("a", "alone", "c", "last", "third"))]
    assert some("diff", session, "idle").stdout == ""


def state_of(*specs: TaskSpec, places: dict[str, Place]) -> dict[str, Any]:
    state = begin(SessionSpec("s", "", "prompts", "", "/", "shell", {}, specs))
    for name, place in places.items():
        state.tasks[name].place = place
    return state.tasks


def test_what_is_handed_on() -> None:
    tree = Workspace("worktree")
    places = {
        "a": Place("ba", None, "0", "1"),
        "b": Place("bb", None, "0", "2", rescue="bb-rescue"),
        "lost": Place(base_commit="0", remark="deleted"),
    }
    tasks = state_of(
        *(TaskSpec(name, ("x",), workspace=tree) for name in places),
        TaskSpec("none", ("x",), needs=("b", "a")),
        TaskSpec("cut", ("x",), needs=("b",), base="session"),
        TaskSpec("t", ("x",), needs=("a", "none", "lost", "cut"), workspace=tree),
        TaskSpec("s", ("x",), needs=("a",), base="session", workspace=tree),
        TaskSpec("r", ("x",), needs=("a",), workspace=tree),
        places=places,
    )
    a, b = Handed("a", "1", "ba"), Handed("b", "2", "bb-rescue")
    assert find_handed(tasks["t"], tasks) == (a, b, Handed("lost", None, None, "deleted"))
    assert find_handed(tasks["s"], tasks) == ()
    assert find_handed(tasks["r"], tasks) == (a,)
    tasks["r"].attempt = 3
    assert find_handed(tasks["r"], tasks) == (replace(a, follow=True),)
    tasks["r"].retried = 2
    assert find_handed(tasks["r"], tasks) == (a,)
    tasks["a"].place = Place(None, None, "1", "1")
    assert find_handed(tasks["r"], tasks) == ()


# --- trying again ---


@pytest.mark.slow
def test_a_retry_hands_on_to_those_that_were_skipped(project: Project) -> None:
    """The first attempt of `a` leaves work that nobody gets, that of `b` nothing: its name comes back."""
    ok = project.cwd.parent / "ok"
    plan = {
        "prompts": [
            {"id": "a", "prompt": f"echo $SESSIONRUN_ATTEMPT > a; [ -e {ok} ]"},
            {"id": "b", "prompt": f"[ -e {ok} ] && echo b > b"},
            {"id": "c", "needs": ["a", "b"], "prompt": "cat a b && echo c > c"},
            {"id": "d", "needs": "c", "prompt": "cat c && echo d > d"},
        ]
    }
    session = project.finish(plan)
    assert project.branches() == ["main", "main-task-a"]
    ok.touch()
    assert project.to_end("retry", session).returncode == 0
    tasks = by_id(project.wait(session))
    assert {task["outcome"] for task in tasks.values()} == {"succeeded"}
    branches = {name: f"main-task-{name}" for name in "bcd"}
    assert {name: task["branch"] for name, task in tasks.items()} == {"a": "main-task-a-2", **branches}
    assert (project.directory(session) / "task-c.txt").read_text() == "2\nb\n"
    merged = project.git("rev-parse", f"{tasks['c']['base_commit']}^@").split("\n")
    assert merged == [tasks["a"]["commit"], tasks["b"]["commit"]]


# --- branches that hold nothing ---


def test_a_retry_has_the_name_of_an_attempt_that_left_nothing(some: Project) -> None:
    task = by_id(some.wait(some.sessions[0]))["third"]
    assert (task["attempt"], task["branch"]) == (3, "main-task-third")
    assert [name for name in some.branches() if "third" in name] == ["main-task-third"]
    said = [line for line in some("clean", "--worktrees").stdout.splitlines() if "third" in line]
    assert said == ["kept branch main-task-third: it holds work that is not merged"]


def _prepared(repo: Repo, *needs: Handed) -> tuple[WorkspaceRequest, Path]:
    request, folder = request_of(repo, *needs), repo.root / "jobs" / "a1-r1-prepare"
    folder.mkdir(parents=True)
    return replace(request, place=prepare(request, folder)), folder


def _release(repo: Repo, request: WorkspaceRequest, number: int = 1) -> Place:
    folder = repo.root / "jobs" / f"a1-r1-release-{number}"
    folder.mkdir(exist_ok=True)
    return release(request, folder)


@pytest.mark.parametrize("killed", ["before the branch went", "after"])
def test_a_release_that_is_killed_over_an_empty_branch(repo: Repo, killed: str) -> None:
    request, folder = _prepared(repo)
    first = _release(repo, request)
    base = repo.run("rev-parse", "main")
    assert first == Place(base_commit=base, commit=base, diff_stat=None, changed=False)
    claim = load_claim(folder)
    assert claim is not None and claim.emptied
    if killed != "after":
        repo.run("branch", claim.branch, base)
    assert _release(repo, request, 2) == first
    assert repo.run("branch", "--list", "*task*") == ""


@pytest.mark.slow
def test_an_empty_branch_that_is_needed_stays(repo: Repo) -> None:
    """One that somebody has checked out, or that alone holds what it began with."""
    a = end(repo, "a")
    request, folder = _prepared(repo, a)
    assert request.place is not None and request.place.base_commit == a.commit
    repo.run("branch", "-q", "-D", "main-task-a")
    assert _release(repo, request).branch == "main-task-t"
    claim = load_claim(folder)
    assert claim is not None
    claimed = Claimed.of(request, claim, folder, worked=True)
    for dry_run in (True, False):
        (finding,) = clean_claimed(claimed, dry_run=dry_run)
        assert (finding.removed, finding.why) == (False, "it holds work that is not merged")
    repo.run("switch", "-q", "main-task-t")
    assert _release(repo, request, 2).branch == "main-task-t"
    repo.run("switch", "-q", "main")
    repo.run("branch", "kept", "main-task-t")
    assert _release(repo, request, 3).branch is None


@pytest.mark.slow
def test_a_merge_of_needs_alone_is_nothing(repo: Repo) -> None:
    """It can be made again; one that somebody else made cannot."""
    request, _ = _prepared(repo, end(repo, "a"), end(repo, "b"))
    assert _release(repo, request).branch is None
    repo.run("switch", "-q", "-c", "main-task-m", "main-task-a")
    repo.run("merge", "-q", "--no-edit", "main-task-b")
    repo.run("switch", "-q", "main")
    commit = repo.run("rev-parse", "main-task-m")
    again = replace(request_of(repo, Handed("m", commit, "main-task-m"), task="u"))
    place = prepare(again, repo.folder())
    repo.run("branch", "-q", "-D", "main-task-m")
    assert _release(repo, replace(again, place=place), 4).branch == "main-task-u"
