"""Work goes on: a task begins where those that it needs ended, and a further attempt where the earlier one did."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import slow
from stages import commit_all, put_first
from test_cli_worktrees import Finished, Project, finished, next_block, project, stage, type_in
from test_workspaces import Project as Repo
from test_worktrees import by_id
from test_worktrees import project as repo

from sessionrun.engine.task import find_handed
from sessionrun.git.private import open_fence
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Handed, KeepPolicy, Place, Start
from sessionrun.model.spec import SessionSpec, TaskSpec, Workspace
from sessionrun.session.history import begin
from sessionrun.worktrees.bases import find_base, merge_ends
from sessionrun.worktrees.clean import clean_claimed
from sessionrun.worktrees.release import release, settle
from sessionrun.worktrees.request import NeedsConflict, WorkspaceRequest
from sessionrun.worktrees.worktree import check_earlier, prepare

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


def test_each_task_finds_the_work_of_its_needs(finished: Finished) -> None:
    project = finished(FIVE)
    session = project.sessions[0]
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
    kept = project.load("clean", "--worktrees")["findings"]
    assert [finding["removed"] for finding in kept] == [False] * 5
    block = next_block(project("results", session, "own").stdout)
    assert block == f"  sessionrun merge {session[:8]} a own    # land what succeeded on main\n"
    type_in(project, next_block(project("results", session).stdout))
    assert {"a", "b", "both", "own", "last"} <= {path.name for path in project.cwd.iterdir()}
    type_in(project, next_block(project("results", session).stdout))
    assert project.branches() == ["main"]


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


def request_of(repo: Repo, *needs: Handed) -> WorkspaceRequest:
    return WorkspaceRequest(repo.repository(), "s1", "t", "do it", needs=needs)


def end(repo: Repo, name: str, text: str = "", base: str = "main", **files: str) -> Handed:
    """A task that ended: its branch with a file of its own, and others."""
    repo.run("switch", "-q", "-c", f"main-task-{name}", base)
    for file, content in {name: text or name, **files}.items():
        (repo.top / file).write_text(content)
    repo.run("add", "-A")
    repo.run("commit", "-qm", name)
    repo.run("switch", "-q", "main")
    return Handed(name, repo.run("rev-parse", f"main-task-{name}"), f"main-task-{name}")


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
        script = 'for last; do :; done; [ "$last" = version ] && exec echo git version 2.34.1'
        put_first(repo.root, monkeypatch, script)
    (repo.top / ".gitattributes").write_text("list merge=union\n")
    (repo.top / "list").write_text("0\n")
    commit_all(repo.top, "list")
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


def test_what_is_handed_on_of_work_that_is_lost_or_on_a_rescue_branch() -> None:
    """`idle` has changed nothing, and `none` has no worktree: what they had to begin with goes on all the same."""
    tree = Workspace("worktree")
    specs = (
        TaskSpec("b", ("x",), workspace=tree),
        TaskSpec("lost", ("x",), workspace=tree),
        TaskSpec("idle", ("x",), needs=("b",), workspace=tree),
        TaskSpec("none", ("x",), needs=("idle",)),
        TaskSpec("t", ("x",), needs=("none", "lost"), workspace=tree),
        TaskSpec("alone", ("x",), needs=("b",), workspace=tree, base="session"),
    )
    tasks = begin(SessionSpec("s", "", "prompts", "", "/", "shell", {}, specs)).tasks
    tasks["b"].place = Place("bb", None, "0", "2", rescue="bb-rescue")
    tasks["lost"].place = Place(base_commit="0", remark="deleted")
    tasks["idle"].place = Place(base_commit="2", commit="2")
    b, lost = Handed("b", "2", "bb-rescue"), Handed("lost", None, None, "deleted")
    assert (find_handed(tasks["t"], tasks), find_handed(tasks["alone"], tasks)) == ((b, lost), ())
    tasks["t"].attempt = 3
    assert find_handed(tasks["t"], tasks) == (replace(b, follow=True), replace(lost, follow=True))
    tasks["t"].retried = 2
    assert find_handed(tasks["t"], tasks) == (b, lost)


# --- branches that hold nothing ---


@pytest.mark.slow
def test_an_empty_branch_that_is_needed_stays(repo: Repo) -> None:
    """One that somebody has checked out, or that alone holds what it began with."""
    a = end(repo, "a")
    request, _ = repo.begin_work(needs=(a,))
    claimed = repo.claim(request)
    assert request.place is not None and request.place.base_commit == a.commit
    repo.run("branch", "-q", "-D", "main-task-a")
    assert release(request, repo.folder()).branch == "main-task-t"
    for dry_run in (True, False):
        (finding,) = clean_claimed(claimed, dry_run=dry_run)
        assert (finding.removed, finding.why) == (False, "it holds work that is not merged")
    repo.run("switch", "-q", "main-task-t")
    assert release(request, repo.folder()).branch == "main-task-t"
    repo.run("switch", "-q", "main")
    repo.run("branch", "kept", "main-task-t")
    assert release(request, repo.folder()).branch is None


@pytest.mark.slow
def test_a_merge_of_needs_alone_is_nothing(repo: Repo) -> None:
    """It can be made again; one that somebody else made cannot."""
    request, _ = repo.begin_work(needs=(end(repo, "a"), end(repo, "b")))
    assert release(request, repo.folder()).branch is None
    repo.run("switch", "-q", "-c", "main-task-m", "main-task-a")
    repo.run("merge", "-q", "--no-edit", "main-task-b")
    repo.run("switch", "-q", "main")
    commit = repo.run("rev-parse", "main-task-m")
    again, _ = repo.begin_work("u", needs=(Handed("m", commit, "main-task-m"),))
    repo.run("branch", "-q", "-D", "main-task-m")
    assert release(again, repo.folder()).branch == "main-task-u"


# --- an attempt that goes on with earlier work ---

BRANCH = "main-task-t"


def write(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_text(f"{name}\n")


def add(name: str) -> str:
    """What commits a file."""
    return f"echo {name} > {name}; git add {name}; git commit -qm {name}"


def check(repo: Repo, earlier: Place) -> None:
    """Check, without a change, that an attempt can go on."""
    check_earlier(WorkspaceRequest(repo.repository(), "s1", "t", "do it", earlier=earlier))


def test_the_work_goes_on_on_the_same_branch_in_the_same_directory(repo: Repo) -> None:
    first, where = repo.cycle(write("one"))
    assert not where.exists() and first.commit is not None
    request, place = repo.prepare(earlier=first)
    assert (place.branch, place.worktree, place.base_commit) == (BRANCH, str(where), first.base_commit)
    assert (place.taken_up, place.commit) == (first.commit, None)
    assert (where / "one").read_text() == "one\n"
    repo.shell(f"{add('two')}; echo three > three", where)
    ended = release(replace(request, place=place), repo.folder())
    assert ended.diff_stat == {"files": 3, "insertions": 3, "deletions": 0}, "all that the task did"
    assert repo.run("log", "-2", "--format=%s", BRANCH).split("\n") == ["Work of task t", "two"]
    assert repo.run("rev-parse", f"{BRANCH}~2") == first.commit
    assert repo.run("for-each-ref", "--format=%(refname:short)", "refs/heads").split() == ["main", BRANCH]


def test_commits_of_a_person_are_taken_along_on_the_branch_or_one_of_its_name(repo: Repo) -> None:
    first, path = repo.cycle(write("one"))
    repo.shell(f"git switch -q {BRANCH}; {add('mine')}; git switch -q main", repo.top)
    _, place = repo.prepare(earlier=first)
    assert place.taken_up == repo.run("rev-parse", BRANCH) and (path / "mine").exists()
    again = f"git worktree remove {path}; git branch -q -D {BRANCH}; git branch -q {BRANCH} {first.commit}"
    repo.shell(again, repo.top)
    assert repo.prepare(earlier=first)[1].taken_up == first.commit


REFUSED = {
    f"git switch -q {BRANCH}": f"branch {BRANCH} is checked out in {{top}}: check out another one there",
    f"git branch -f {BRANCH} main": f"branch {BRANCH} does not hold {{commit}}, where its work is: "
    "merge {commit} into it",
    f"git branch -q -D {BRANCH}; git reflog expire --expire=now --all; git gc -q --prune=now": (
        f"nothing holds its work any more: branch {BRANCH} or its commit is gone"
    ),
}


@pytest.mark.parametrize("script", REFUSED)
def test_nothing_goes_on_without_the_work_or_where_its_branch_is_in_use(repo: Repo, script: str) -> None:
    place, path = repo.cycle(write("one"))
    repo.shell(script, repo.top)
    before = repo.run("for-each-ref")
    says = REFUSED[script].format(top=repo.top, commit=(place.commit or "")[:12])
    for go_on in (partial(repo.prepare, earlier=place), partial(check, repo, place)):
        with pytest.raises(SessionrunError, match=f"^{re.escape(says)}$"):
            go_on()
    assert repo.run("for-each-ref") == before and not path.exists()


@pytest.mark.slow
def test_a_worktree_that_was_kept_is_used_again_with_all_that_lies_in_it(repo: Repo) -> None:
    first, path = repo.cycle(lambda path: (write("one")(path), write("x.log")(path)), keep="always")
    write("edit")(path)
    request, place = repo.prepare(earlier=first)
    assert (place.worktree, place.base_commit) == (str(path), first.base_commit)
    assert repo.run("show", f"{BRANCH}:edit") == "edit" and place.taken_up == repo.run("rev-parse", BRANCH)
    assert repo.run("status", "--porcelain", cwd=path) == ""
    assert (path / "x.log").exists(), "what git ignores is there as well"
    assert repo.claim(replace(request, place=place)).claim.reused
    write("two")(path)
    ended = release(replace(request, place=place), repo.folder())
    assert ended.worktree is None and ended.diff_stat == {"files": 3, "insertions": 3, "deletions": 0}


@pytest.mark.parametrize("keep", ["never", *slow("always")])
def test_a_prepare_that_is_done_again_goes_on_with_its_worktree_and_what_was_kept_in_it(
    repo: Repo, keep: KeepPolicy
) -> None:
    before, path = repo.cycle(write("one"), keep=keep)
    earlier, is_kept = replace(before, start=Start("main", "a" * 40)), keep == "always"
    request, first = repo.prepare(earlier=earlier, keep=keep)
    assert first.start == earlier.start, "where the ref of a mirror was"
    if is_kept:
        write("new")(path)  # as if it had been written in between
    folder = repo.root / f"jobs-{repo._jobs}" / "a1-1-prepare"
    another = folder.with_name("a1-1-prepare-s2")
    another.mkdir()
    for place in (prepare(request, folder), prepare(request, another)):
        assert place == (replace(first, taken_up=place.taken_up) if is_kept else first)
        assert (path / "one").exists() and (path / "new").exists() is is_kept
    release(replace(request, place=place), repo.folder())
    assert (path / "new").exists() is is_kept


def test_a_kept_worktree_that_is_on_another_branch_is_refused_and_one_that_was_deleted_is_made_again(
    repo: Repo,
) -> None:
    first, path = repo.cycle(write("one"), keep="always")
    repo.run("switch", "-q", "-c", "else", cwd=path)
    with pytest.raises(SessionrunError, match=f"{path} is not on {BRANCH} any more"):
        repo.prepare(earlier=first)
    assert (path / "one").exists()
    shutil.rmtree(path)
    _, place = repo.prepare(earlier=first)
    assert (place.worktree, (path / "one").read_text()) == (str(path), "one\n")
    assert len(repo.run("worktree", "list").split("\n")) == 2


def test_work_on_a_rescue_branch_has_to_be_merged_first(repo: Repo) -> None:
    place, path = repo.cycle(lambda path: repo.shell(f"git switch -q --detach; {add('astray')}", path))
    assert (place.rescue, place.worktree) == (f"{BRANCH}-rescue", str(path))
    shutil.rmtree(path)
    with pytest.raises(SessionrunError, match=f"merge {BRANCH}-rescue into it"):
        check(repo, place)
    repo.shell(f"git worktree prune; git branch -f {BRANCH} {BRANCH}-rescue", repo.top)
    assert repo.prepare(earlier=place)[1].taken_up == place.commit


@pytest.mark.slow
def test_what_a_setup_leaves_in_a_further_attempt_moves_only_where_it_began(repo: Repo) -> None:
    request, path = repo.begin_work()
    write("lock")(path)
    settled = settle(request, repo.folder())
    write("one")(path)
    first = release(replace(request, place=settled), repo.folder())
    request, place = repo.prepare(earlier=first)
    assert (place.setup_commit, place.taken_up) == (settled.setup_commit, first.commit)
    write("lock2")(path)
    again = settle(replace(request, place=place), repo.folder())
    assert (again.setup_commit, again.taken_up) == (settled.setup_commit, repo.run("rev-parse", BRANCH))
    assert again.taken_up != first.commit
    ended = release(replace(request, place=again), repo.folder())
    assert ended.diff_stat == {"files": 2, "insertions": 2, "deletions": 0}
