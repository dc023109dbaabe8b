"""Worktrees that tasks deleted, moved or broke, jobs that are killed, and what `clean` says and does then.

Also `clean` of sessions, by id, age, state and number: what goes, what never does, and two of them at once.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calls import Calls, needs_calls
from conftest import Command, eventually, kill_sessions, slow
from stages import git, refs_are_files
from test_cli_worktrees import Project as Cli
from test_cli_worktrees import project as cli
from test_workspaces import Project
from test_worktrees import by_id, project, start, wait
from test_worktrees import finish as finish_in

from sessionrun.client.clean import find_candidates, find_trash, remove_sessions
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import MadeEnvironment
from sessionrun.store import index
from sessionrun.store.seal import SEAL_KEY, seal
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.clean import Claimed, clean_claimed
from sessionrun.worktrees.registration import find_claims
from sessionrun.worktrees.release import park_work, release, settle
from sessionrun.worktrees.request import Claim, find_environment

__all__ = ["cli", "project"]


def leave(project: Project, script: str, *, worked: bool = True) -> Claimed:
    """What a session leaves that died after this script."""
    request, path = project.begin_work()
    claimed = project.claim(request, worked=worked)
    project.shell(script, path)
    return claimed


NEW = "echo new > new"
OWN = "echo own > a.txt; git commit -qam own"
OFF = "git switch -q --detach; echo off > a.txt; git commit -qam off"
DELETED = 'cd ../../repo; git worktree remove --force "$OLDPWD"; git branch -qD main-task-t'


# --- branches and worktrees that the task deleted ---


@pytest.mark.slow
def test_readers_do_not_speak_of_a_branch_that_is_not_there(sessionrun: Command, project: Project) -> None:
    drop = 'cd "$SESSIONRUN_REPOSITORY"; git worktree remove --force "$SESSIONRUN_WORKTREE"; '
    plan = [
        {"id": "gone", "prompt": f"{drop} git branch -q -D $SESSIONRUN_BRANCH"},
        {"id": "good", "prompt": "echo > good"},
        {"id": "lost", "prompt": "echo > new; git add new; git commit -qm own; rm -r $SESSIONRUN_WORKTREE"},
        {"id": "renamed", "prompt": "git branch -m mine; echo > new"},
    ]
    view = finish_in(sessionrun, project, plan)
    tasks = by_id(view)
    gone = tasks["gone"]
    assert (gone["outcome"], gone["branch"], gone["commit"], gone["worktree"]) == ("succeeded", None, None, None)
    remark = "worktree and branch main-task-gone were deleted before it ended: nothing holds its work"
    assert gone["worktree_remark"] == remark and gone["worktree_kept"] is None
    lost = tasks["lost"]
    assert lost["branch"] == "main-task-lost" and lost["commit"] == project.run("rev-parse", "main-task-lost")
    lacks = "its worktree was gone before it ended: what was not committed there is on no branch"
    assert (lost["worktree"], lost["worktree_remark"]) == (None, lacks)
    assert (tasks["renamed"]["branch"], tasks["renamed"]["rescue_branch"]) == (None, "main-task-renamed-rescue")
    said = sessionrun("results", view["session_id"]).stdout
    assert (
        f"sessionrun diff {view['session_id'][:8]} renamed    #" in said and "branch main-task-gone:" not in said
    )
    assert "branch main-task-good: 1 file" in said and "gone changed nothing: " in said
    assert remark in " ".join(said.split()) and lacks in " ".join(said.split())
    assert remark in " ".join(sessionrun("status", view["session_id"]).stdout.split())
    assert "worktree kept: worktree" not in sessionrun("status", view["session_id"]).stdout
    done = sessionrun("diff", view["session_id"])
    assert done.returncode == 0 and "(ID: renamed): main-task-renamed-rescue" in done.stdout
    assert "task 'gone' has no branch" in sessionrun("diff", view["session_id"], "gone").stderr


def test_a_name_that_was_claimed_twice_is_cleaned_once(sessionrun: Command, project: Project) -> None:
    session_id = finish_in(sessionrun, project, [{"id": "t", "prompt": "echo > new"}])["session_id"]
    jobs = sessionrun.directory(session_id) / "jobs" / "t"
    shutil.copytree(jobs / "a1-r1-prepare", jobs / "a1-r1-prepare-2")
    done = sessionrun("clean", "--worktrees")
    assert done.stdout == "kept branch main-task-t: it holds work that is not merged\n"
    git(project.top, "branch", "-D", "main-task-t")
    finish_in(sessionrun, project, [{"id": "t", "prompt": "echo > new"}])
    assert sessionrun("clean", "--worktrees").stdout == done.stdout, "another session has taken the name"


def test_what_a_session_left_goes_although_its_directory_lies_elsewhere(
    sessionrun: Command, project: Project, tmp_path: Path
) -> None:
    session_id = finish_in(sessionrun, project, [{"id": "t", "prompt": "echo > new"}])["session_id"]
    directory = sessionrun.directory(session_id)
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    assert sessionrun("clean", session_id).stdout.endswith(": it is not a directory of yours\n")
    assert (tmp_path / "elsewhere" / "spec.json").exists()
    git(project.top, "merge", "-q", "main-task-t")
    assert sessionrun("clean", session_id, "--worktrees").stdout.startswith("removed branch main-task-t: ")


def test_a_kept_worktree_that_was_removed_is_not_named_any_more(sessionrun: Command, project: Project) -> None:
    view = finish_in(sessionrun, project, [{"id": "t", "prompt": "git switch -q --detach"}])
    session_id, (task,) = view["session_id"], view["tasks"]
    assert task["worktree_kept"]
    git(project.top, "worktree", "remove", task["worktree"])
    shown = sessionrun.status(session_id)["tasks"][0]
    assert (shown["worktree"], shown["worktree_kept"]) == (None, None)
    assert shown == {**task, "worktree": None, "worktree_kept": None}


# --- worktrees that were moved ---


def test_a_moved_worktree_is_that_of_its_own_attempt(project: Project) -> None:
    """Two attempts of a task have the same owner; each is released where it is."""
    first, second = project.prepare(), project.prepare()
    trees = []
    for _, place in (first, second):
        tree = project.root / f"moved to {place.branch}"
        git(project.top, "worktree", "move", place.worktree or "", str(tree))
        project.shell(f"git switch -q --detach; printf {place.branch} > a.txt; git commit -qam off; {NEW}", tree)
        trees.append(tree)
    for (request, place), tree in zip((first, second), trees, strict=True):
        released = release(replace(request, place=place), project.folder())
        assert released.worktree == str(tree)
        assert released.kept == f"HEAD is on no branch, not on {place.branch}"
        assert released.rescue == f"{place.branch}-rescue" and "new" in project.files(released.rescue)
        assert project.show(released.rescue, "a.txt").decode() == place.branch


@pytest.mark.parametrize("ends", ["release", "release after a park", "clean", "clean where nothing worked"])
def test_beside_a_moved_worktree_nothing_is_taken_for_its_environment(project: Project, ends: str) -> None:
    """It goes where it was made: where a user moved the worktree to, what lies there is the user's."""
    request, place = project.prepare()
    first = project.root / f"jobs-{project._jobs}" / "a1-1-prepare"
    claimed, env = project.claim(request, worked=ends == "clean"), Path(find_environment(place.worktree or ""))
    env.mkdir()
    tree = project.root / "services" / "staging"
    users = tree.with_name(".env-staging")
    users.parent.mkdir()
    users.write_text("KEY=1")
    git(project.top, "worktree", "move", place.worktree or "", str(tree))
    if ends.startswith("clean"):
        assert "worktree" in {one.what for one in clean_claimed(claimed, dry_run=False) if one.removed}
    else:
        if ends != "release":
            place = park_work(replace(request, place=place), project.folder())
            assert place.worktree == str(tree)
        job = first.with_name("a1-2-release")
        job.mkdir()
        release(replace(request, place=place), job)
    assert (tree.exists(), env.exists(), users.exists()) == (False, False, True)


def test_an_environment_goes_whose_worktree_was_deleted_by_hand(project: Project) -> None:
    request, path = project.begin_work()
    env = Path(find_environment(path))
    env.mkdir()
    git(project.top, "worktree", "remove", str(path))
    for dry_run in (True, False):
        first, *_ = clean_claimed(project.claim(request), dry_run=dry_run)
        assert (first.what, first.removed, env.exists()) == ("worktree", True, dry_run)


@pytest.mark.parametrize("made", [False, True])
def test_an_attempt_that_goes_on_in_a_moved_worktree_takes_no_more_than_it_made(
    project: Project, made: bool
) -> None:
    request, place = project.prepare()
    tree = project.root / "services" / "staging"
    beside = tree.with_name(".env-staging")
    beside.mkdir(parents=True)
    git(project.top, "worktree", "move", place.worktree or "", str(tree))
    _, again = project.prepare(earlier=place)
    assert again.worktree == str(tree)
    if made:
        again = replace(again, environment=MadeEnvironment("d", cached=True, path=str(beside)))
    released = release(replace(request, place=again), project.folder())
    assert (released.worktree, tree.exists(), beside.exists()) == (None, False, not made)


def test_the_environment_of_a_later_task_of_that_name_stays(project: Project) -> None:
    request, place = project.prepare()
    git(project.top, "worktree", "move", place.worktree or "", str(project.root / "moved"))
    (project.root / "repo-worktrees").mkdir(exist_ok=True)
    branch = project.run("branch", "--show-current", cwd=project.root / "moved")
    _, later = project.prepare("u", directory=branch)
    assert later.worktree == place.worktree
    env = Path(find_environment(later.worktree or ""))
    env.mkdir()
    assert release(replace(request, place=place), project.folder()).worktree is None
    assert env.exists()


def test_claims_are_read_in_the_order_of_their_attempts(project: Project) -> None:
    """The newest says where a task goes on; as texts, a10 is before a2."""
    project.prepare()
    first = project.root / f"jobs-{project._jobs}" / "a1-1-prepare"
    for attempt in (10, 2):
        shutil.copytree(first, first.with_name(f"a{attempt}-1-prepare"))
    names = [job.name.partition("-")[0] for job, _ in find_claims(first.parent)]
    assert names == ["a1", "a2", "a10"]


# --- worktrees that are none any more ---


def test_worktrees_whose_links_were_swapped_are_kept(project: Project) -> None:
    """Each would be parked as what the other began with; the reason says how to mend it."""
    both = [project.prepare(name) for name in ("one", "two")]
    links = [Path(place.worktree or "") / ".git" for _, place in both]
    contents = [link.read_text() for link in links]
    for (_, place), link, content in zip(both, links, reversed(contents), strict=True):
        (link.parent / "new").write_text(place.branch or "")
        link.write_text(content)
    for request, place in both:
        with pytest.raises(SessionrunError, match=r"git worktree repair in the repository.*is not a worktree of"):
            release(replace(request, place=place), project.folder())
        claim = Claim(place.branch or "", place.worktree or "", place.base_commit or "")
        claimed = Claimed.of(request, claim, project.folder(), worked=True)
        (finding,) = clean_claimed(claimed, dry_run=False)
        assert not finding.removed and "is not a worktree of" in finding.why
    assert all((link.parent / "new").exists() for link in links)
    for link in links:
        link.unlink()
    git(project.top, "worktree", "repair")
    for (request, place), name in zip(both, ("one", "two"), strict=True):
        assert release(replace(request, place=place), project.folder()).kept is None
        assert project.show(f"main-task-{name}", "new").decode() == f"main-task-{name}"


# --- jobs that are killed ---


@needs_calls
@pytest.mark.parametrize("phase", ["prepare", *slow("release")])
def test_a_job_that_is_killed_runs_again(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Its group is, as by a machine without memory."""
    calls = Calls(project.root / "calls", *(f"{phase}+:change:{at}:all" for at in (10, 20)))
    calls.watch(monkeypatch)
    session_id = start(sessionrun, project, [{"id": "t", "prompt": "cat a.txt; echo two > new"}], "--worktree")
    task = by_id(wait(sessionrun, session_id))["t"]
    assert (task["outcome"], task["worktree_kept"], task["worktree"]) == ("succeeded", None, None), task["reason"]
    assert project.show("main-task-t", "new") == b"two\n"
    assert (sessionrun.directory(session_id) / "task-t.txt").read_text() == "a\n"
    assert calls.has_hit() == [True, True]


# --- what is in the way ---


@refs_are_files
def test_a_stale_lock_of_packed_refs_stops_no_task(project: Project) -> None:
    project.run("pack-refs", "--all")
    lock = project.top / ".git" / "packed-refs.lock"
    lock.touch()
    _, path = project.cycle(lambda path: (path / "new").write_text("new"))
    assert "new" in project.files("main-task-t") and not path.exists()
    request, path = project.begin_work("idle")
    (kept,) = [one for one in clean_claimed(project.claim(request), dry_run=False) if not one.removed]
    assert (kept.name, path.exists()) == ("main-task-idle", False) and "packed-refs.lock" in kept.why
    lock.unlink()
    assert [one.removed for one in clean_claimed(project.claim(request), dry_run=False)] == [True]


@pytest.mark.slow
def test_two_cleans_at_once_do_it_once(sessionrun: Command, project: Project) -> None:
    ready = project.root / "ready"
    plan = [{"id": f"t{n}", "prompt": f"echo {n} > new; touch {ready}{n}; exec sleep 600"} for n in range(3)]
    start(sessionrun, project, plan, "--worktree")
    eventually(lambda: all(Path(f"{ready}{n}").exists() for n in range(3)))
    kill_sessions(sessionrun.results)
    cleans = [sessionrun.popen("clean", "--worktrees", stdout=-1, stderr=-1) for _ in range(3)]
    outputs = [process.communicate() for process in cleans]
    assert [process.returncode for process in cleans] == [0, 0, 0]
    assert [errors for _, errors in outputs] == [b"", b"", b""]
    lines = b"".join(output for output, _ in outputs).decode().splitlines()
    removed = [line for line in lines if line.startswith("removed worktree")]
    assert len(removed) == 3 and not any("kept worktree" in line for line in lines)
    branches = project.run("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/main-*").split()
    assert branches == [f"main-task-t{n}" for n in range(3)]
    assert all("new" in project.files(branch) for branch in branches)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_half_made_worktree_does_not_stop_clean(project: Project, dry_run: bool) -> None:
    claimed = leave(project, NEW)
    project.run("worktree", "add", "-q", "-b", "other", str(project.root / "other"))
    admin = project.top / ".git/worktrees/main-task-dead"
    admin.mkdir()
    (admin / "locked").write_text("initializing\n")
    (admin / "gitdir").write_text(f"{project.root}/repo-worktrees/main-task-dead/.git\n")
    (admin / "commondir").write_text("")
    found = list(clean_claimed(claimed, dry_run=dry_run))
    assert [(finding.what, finding.removed) for finding in found] == [("worktree", True), ("branch", dry_run)]
    words = "it is empty: nothing was committed on it, unless its worktree holds more"
    assert found[1].why == (words if dry_run else "it holds work that is not merged")
    assert admin.is_dir()  # another claim's


def test_clean_knows_what_setup_left(project: Project) -> None:
    """Its branch alone is not needed, where the work has changed nothing."""
    request, path = project.begin_work()
    project.shell(NEW, path)
    job = project.root / f"jobs-{project._jobs}" / "a1-2-setup"
    job.mkdir()
    assert settle(request, job).setup_commit == project.run("rev-parse", "main-task-t")
    assert [one.removed for one in clean_claimed(project.claim(request), dry_run=False)] == [True, True]


@refs_are_files
@pytest.mark.parametrize(("age_s", "dry_run"), [(60, False), (60, True), (0, False)])
def test_the_lock_of_a_branch_that_a_killed_git_was_about_to_make_goes(
    project: Project, age_s: int, dry_run: bool
) -> None:
    claimed = leave(project, f"{OWN}; {DELETED}", worked=False)
    lock = project.top / ".git/refs/heads/main-task-t.lock"
    lock.touch()
    made = time.time() - age_s
    os.utime(lock, (made, made))
    assert list(clean_claimed(claimed, dry_run=dry_run)) == []
    assert lock.exists() is (dry_run or age_s == 0)


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["300m"], indirect=True)
def test_a_release_on_a_full_disk_keeps_the_work(sessionrun: Command, project: Project, small_disk: Path) -> None:
    shutil.copytree(project.top, small_disk / "repo", symlinks=True)
    fill = f"head -c 1M /dev/urandom > new; cat /dev/zero > {small_disk}/filler 2>/dev/null; true"
    plan = [{"id": "t", "prompt": fill}]
    task = by_id(finish_in(sessionrun, project, plan, cwd=small_disk / "repo"))["t"]
    assert task["outcome"] == "succeeded" and task["commit"] is None
    assert task["worktree_kept"].startswith("release_failed: ") and "\n" not in task["worktree_kept"]
    assert (Path(task["worktree"]) / "new").stat().st_size == 2**20
    blob = git(Path(task["worktree"]), "hash-object", "new")
    done = sessionrun("clean", "--worktrees")
    assert done.returncode == 0 and "kept worktree" in done.stdout
    (small_disk / "filler").unlink()
    done = sessionrun("clean", "--worktrees")
    assert "removed worktree" in done.stdout, done.stdout
    assert git(small_disk / "repo", "rev-parse", "main-task-t:new") == blob


# --- what goes, and what a dry run says of it ---


CONFLICT = """
git switch -qc side; echo side > a.txt; git commit -qam side
git switch -q -; echo ours > a.txt; git commit -qam ours; ! git merge -q side
"""
SITUATIONS: dict[str, tuple[str, str, str]] = {
    # what was done, and what goes if that was a task, and if not: capitals go, of worktree, branch, rescue branch
    "nothing": ("true", "WB", "WB"),
    "work": (NEW, "Wb", "WB"),
    "a commit": (OWN, "Wb", "Wb"),
    "off its branch": (OFF, "w", "WB"),
    "renamed branch": (f"git branch -m mine; {NEW}", "w", "W"),
    "deleted branch": (f"{NEW}; git update-ref -d refs/heads/main-task-t", "Wb", "W"),
    "unmerged": (CONFLICT, "w", "Wb"),
    "nested": ("git init -q inner; echo f > inner/f", "w", "WB"),
    "locked": ('git worktree lock "$PWD"', "w", "WB"),
    "directory gone": (f'{OWN}; rm -r "$PWD"', "Wb", "Wb"),
    "directory gone, off its branch": (f'{OFF}; rm -r "$PWD"', "WBr", "WB"),
    "removed": (f"{OWN}; {DELETED}", "", ""),
    "moved": ('git worktree move "$PWD" "$PWD-moved"', "WB", "WB"),
    "no link": ("rm .git", "w", "b"),
    "merged": (f"{OWN}; git -C ../../repo merge -q --ff-only main-task-t", "WB", "WB"),
}
FAST = ("nothing", "work", "unmerged", "directory gone, off its branch", "removed")


@pytest.mark.parametrize("name", [*FAST, *slow(*(name for name in SITUATIONS if name not in FAST))])
@pytest.mark.parametrize("worked", [True, False])
def test_what_goes_and_what_a_dry_run_says_goes_at_most(project: Project, name: str, worked: bool) -> None:
    script, *expected = SITUATIONS[name]
    claimed = leave(project, script, worked=worked)
    everything = _all_files(project.root)
    foreseen = list(clean_claimed(claimed, dry_run=True))
    assert _all_files(project.root) == everything
    done = list(clean_claimed(claimed, dry_run=False))
    letters = [("r" if "-rescue" in one.name else one.what[0], one.removed) for one in done]
    assert "".join(letter.upper() if gone else letter for letter, gone in letters) == expected[not worked]
    branches = project.run("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split()
    for one in done:
        there = one.name in branches if one.what == "branch" else Path(one.name).exists()
        assert there is not one.removed, one
    assert {each.name for each in done if each.removed} <= {each.name for each in foreseen if each.removed}


def _all_files(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path): path.read_bytes() for path in files}


def test_clean_removes_the_books_of_worktrees_when_they_are_empty(project: Project) -> None:
    """A crash may come between the end of the last worktree's entry and that of the directory of all entries."""
    claimed = leave(project, NEW)
    assert [finding.removed for finding in clean_claimed(claimed, dry_run=False)] == [True, False]
    books = project.top / ".git" / "worktrees"
    books.mkdir()
    list(clean_claimed(claimed, dry_run=True))
    assert books.exists()
    list(clean_claimed(claimed, dry_run=False))
    assert not books.exists()


# --- sessions ---

STRAYS = "setsid sh -c 'echo $$ >away; exec sleep 600' & exec env -i sleep 600"
"""A task of two processes: one in a group of its own, with its job's marker, and one in its group, without."""


def read_stray(sessionrun: Command) -> int:
    """The pid of the process of `STRAYS` that left the group."""
    away = sessionrun.cwd / "away"
    return int(eventually(lambda: away.exists() and away.read_text()))


def finish(sessionrun: Command, plan: object = None) -> str:
    return sessionrun.finished(plan or {"prompts": ["true"]})


def interrupt(sessionrun: Command, prompt: str = "sleep 600") -> tuple[str, int]:
    """A session whose processes but the task were killed, and the pid of its task."""
    session_id = sessionrun.start({"prompts": [prompt]})
    view = sessionrun.until(session_id, lambda view: view["tasks"][0]["pid"])
    sessionrun.kill_chain(session_id)
    return session_id, int(view["tasks"][0]["pid"])


def reseal(record: dict[str, Any]) -> bytes:
    """The bytes of status.json or summary, as their writer would have made them."""
    return seal({key: value for key, value in record.items() if key != SEAL_KEY})


def make_older(sessionrun: Command, session_id: str, ended_at: str) -> None:
    """Move a session's end into the past, for all readers."""
    for name in ("status.json", "summary"):
        path = sessionrun.directory(session_id) / name
        record = json.loads(path.read_bytes())
        path.write_bytes(reseal({**record, "ended_at": ended_at}))


def left(sessionrun: Command) -> set[str]:
    return {path.name.removeprefix("session-") for path in sessionrun.results.glob("session-*")}


# --- sessions that go ---


def test_by_id_with_a_dry_run_first(sessionrun: Command) -> None:
    session_id, other = finish(sessionrun), finish(sessionrun)
    path = sessionrun.directory(session_id)
    assert sessionrun("clean", session_id, "--dry-run").stdout == (
        f"would remove session {path}: completed, nothing needs it\n"
    )
    assert left(sessionrun) == {session_id, other}
    (record,) = sessionrun.load("clean", session_id[:8])["findings"]
    assert (record["name"], record["removed"], record["would_remove"]) == (str(path), True, None)
    assert sorted(os.listdir(sessionrun.results)) == [".gitignore", f"session-{other}"]
    assert sessionrun("status", session_id).returncode == 2


def test_by_age_and_number(sessionrun: Command) -> None:
    ids = [finish(sessionrun) for _ in range(4)]
    ids.insert(1, cancelled := sessionrun.start({"prompts": ["sleep 600"]}))
    sessionrun("cancel", cancelled)
    eventually(lambda: not SessionDir(sessionrun.directory(cancelled)).is_alive())
    for number, session_id in enumerate(ids[:4]):
        make_older(sessionrun, session_id, f"2020-01-0{number + 1}T00:00:00.000Z")

    def clean(*words: str) -> list[str]:
        return [one["session_id"] for one in sessionrun.load("clean", *words)["findings"]]

    assert clean("--older-than", "1d", "--dry-run") == ids[:4]
    assert clean("--older-than", "1d", "--keep", "2", "--dry-run") == ids[:3]
    assert clean("--state", "completed", "--older-than", "1d", "--keep", "2", "--dry-run") == [ids[0], ids[2]]
    assert clean("--state", "cancelled", "--keep", "1") == []
    assert clean("--state", "cancelled", "--older-than", "1d") == [cancelled]
    assert clean("--older-than", "1d", "--keep", "2") == [ids[0], ids[2]]
    assert left(sessionrun) == set(ids[3:])
    assert clean("--keep", "1") == [ids[3]]
    assert sessionrun("clean", "--keep", "1").stdout == "Nothing to clean.\n"


# --- sessions that stay ---


def test_a_running_session_stays(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": ["sleep 600"]})
    assert sessionrun.load("clean", session_id)["findings"][0]["why"] == "it is running"
    assert (
        sessionrun("clean", "--older-than", "0", "--state", "interrupted,completed").stdout
        == "Nothing to clean.\n"
    )
    assert sessionrun("clean", "--worktrees").stdout == "Nothing to clean.\n"
    said = sessionrun("clean", "--worktrees", session_id).stdout
    assert said == f"kept session {sessionrun.directory(session_id)}: it is running\n"
    assert sessionrun.status(session_id)["status"] == "running"


@pytest.mark.parametrize("name", ["lock", "keeper.lock", "root.lock"])
def test_an_ended_session_of_which_a_process_lives_stays(sessionrun: Command, name: str) -> None:
    session_id = finish(sessionrun)
    fd = SessionDir(sessionrun.directory(session_id)).hold_lock(name)
    for words in (["--dry-run"], []):
        (record,) = sessionrun.load("clean", session_id, *words)["findings"]
        assert (record["removed"], record["why"].startswith("a process of it lives")) == (False, True)
    os.close(fd)
    assert sessionrun.load("clean", session_id)["findings"][0]["removed"]


def test_an_interrupted_session_stays_unless_it_is_meant(sessionrun: Command) -> None:
    """A process without the marker is known by the ledger, one that left its group by its marker."""
    session_id, pid = interrupt(sessionrun, STRAYS)
    away = read_stray(sessionrun)
    assert sessionrun("clean", "--older-than", "0").stdout == "Nothing to clean.\n"
    why = sessionrun.load("clean", session_id)["findings"][0]["why"]
    assert why == "it is interrupted; --state interrupted removes it too"
    why = sessionrun.load("clean", session_id, "--state", "interrupted")["findings"][0]["why"]
    assert why == f"processes of its jobs still live: {', '.join(sorted([str(pid), str(away)]))}"
    os.killpg(pid, signal.SIGKILL)
    os.kill(away, signal.SIGKILL)
    sessionrun.until(session_id, lambda view: not view["running"])
    assert sessionrun.load("clean", session_id, "--state", "interrupted")["findings"][0]["removed"]


def test_a_session_that_went_on_meanwhile_stays(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = finish(sessionrun)
    session = SessionDir(sessionrun.directory(session_id))
    found = find_candidates([session])
    with session.journal_path.open("ab") as stream:
        stream.write(b"x")
    (removal,) = remove_sessions(found, worktrees=False, dry_run=False)
    assert (removal.removed, removal.why) == (False, "it went on just now")

    def fail(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", "from", None, "to")

    monkeypatch.setattr(os, "rename", fail)
    (removal,) = remove_sessions(find_candidates([session]), worktrees=False, dry_run=False)
    assert (removal.removed, removal.why) == (False, "it cannot be removed: Operation not permitted")


def test_a_session_that_cannot_be_read_stays(sessionrun: Command) -> None:
    session_id = finish(sessionrun)
    (sessionrun.directory(session_id) / "spec.json").write_text("{")
    done = sessionrun("clean", "--older-than", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "spec.json is damaged" in done.stdout
    assert left(sessionrun) == {session_id}


# --- sessions with worktrees ---


@pytest.mark.slow
def test_a_session_whose_claims_are_needed_stays(cli: Cli) -> None:
    session = cli.finish({"prompts": [{"id": "a", "prompt": "echo work > work"}, {"id": "b", "prompt": "true"}]})
    eventually(lambda: not SessionDir(cli.directory(session)).is_alive())
    (record,) = cli.load("clean", session)["findings"]
    assert not record["removed"]
    assert "main-task-a" in record["why"]
    cli.git("branch", "main-task-b")  # as a version before this one left it
    words = ("clean", session, "--worktrees", "--older-than", "0")
    records = cli.load(*words)["findings"]
    assert (records[-1]["what"], records[-1]["removed"]) == ("session", False)
    assert "main-task-a" in records[-1]["why"]
    assert "main-task-b" not in records[-1]["why"]
    assert cli.branches() == ["main", "main-task-a"]
    cli.git("merge", "-q", "main-task-a")
    (record,) = cli.load("clean", session)["findings"]
    assert (record["removed"], "main-task-a" in record["why"]) == (False, True), "it is merged, and not empty"
    records = cli.load(*words)["findings"]
    assert [(one["what"], one["removed"]) for one in records] == [("branch", True), ("session", True)]
    assert cli.branches() == ["main"]
    assert left(cli) == set()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--keep", "0"), ("--worktrees",), ("--keep", "0", "--worktrees")])
def test_a_dry_run_lists_what_a_real_run_removes(cli: Cli, words: tuple[str, ...]) -> None:
    plan = {"prompts": [{"id": "a", "prompt": "echo work > work"}, {"id": "b", "prompt": "true"}]}
    sessions = [cli.finish(plan) for _ in range(2)]
    sessions.append(cli.finish({"prompts": [{"id": "b", "prompt": "true"}]}))
    eventually(lambda: not any(SessionDir(cli.directory(session)).is_alive() for session in sessions))
    cli.git("branch", "main-task-b")  # as a version before this one left it; each session may have claimed it
    cli.git("merge", "-q", "main-task-a")
    for name in (f".trash-session-{uuid.uuid4()}", f"session-{uuid.uuid4()}"):
        (cli.results / name).mkdir()
    (cli.results / name / "root.lock").touch()  # a launcher was killed here
    before = cli.branches()
    foreseen = cli.load("clean", *words, "--dry-run")["findings"]
    assert cli.branches() == before and not any(record["removed"] for record in foreseen)
    done = cli.load("clean", *words)["findings"]
    listed = [(record["what"], record["name"]) for record in foreseen if record["would_remove"]]
    assert sorted(listed) == sorted((record["what"], record["name"]) for record in done if record["removed"])
    assert len(set(listed)) == len(listed) and ("branch", "main-task-b") in listed
    gone = set(before) - set(cli.branches())
    assert gone == {name for what, name in listed if what == "branch"}
    assert [path.name for path in cli.results.iterdir() if str(path) in {name for _, name in listed}] == []


@pytest.mark.slow
def test_a_session_whose_repository_is_gone_goes(cli: Cli) -> None:
    session = cli.finish({"prompts": [{"id": "a", "prompt": "echo work > work"}]})
    eventually(lambda: not SessionDir(cli.directory(session)).is_alive())
    cli.git("rev-parse", "main-task-a")
    cli.cwd.rename(cli.cwd.with_name("moved"))
    done = subprocess.run([*cli.argv, "clean", session], cwd=cli.cwd.parent, capture_output=True, text=True)
    assert (done.returncode, left(cli)) == (0, set()), done.stderr


# --- crashes, and others at the same ---


def test_trash_of_a_removal_that_was_broken_off_is_swept(sessionrun: Command) -> None:
    session_id = finish(sessionrun)
    trash = sessionrun.results / f".trash-session-{uuid.uuid4()}"
    trash.mkdir()
    (trash / "journal").write_text("")
    for name in (".trash-other", ".trash-session-x", f"trash-session-{uuid.uuid4()}"):
        (sessionrun.results / name).mkdir()
    (sessionrun.results / f".trash-session-{uuid.uuid4()}").symlink_to(sessionrun.directory(session_id))
    assert find_trash(sessionrun.results) == [trash]
    foreseen = sessionrun("clean", "--keep", "9", "--dry-run").stdout
    assert foreseen == f"would remove trash {trash}: its removal was broken off\n"
    assert trash.exists()
    assert sessionrun("clean", "--keep", "9").stdout == foreseen.replace("would remove", "removed")
    assert not trash.exists()
    assert len(os.listdir(sessionrun.results)) == 6
    assert left(sessionrun) == {session_id}


def test_two_at_once(sessionrun: Command) -> None:
    ids = {
        finish(sessionrun, {"prompts": [{"id": f"t{n}", "prompt": "true"} for n in range(5)]}) for _ in range(6)
    }
    words = ("clean", "--older-than", "0", "--json")
    both = [sessionrun.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    removed: list[dict[str, Any]] = []
    for one in both:
        stdout, stderr = one.communicate(timeout=60)
        assert (one.returncode, stderr) == (0, b"")
        # what one of them is about to delete, another one may take for trash, and help
        removed += [one for one in json.loads(stdout)["findings"] if one["removed"] and one["what"] == "session"]
    assert sorted(record["session_id"] for record in removed) == sorted(ids)
    assert not sessionrun.results.exists(), "nothing of ours stays in the user's directory"
    assert index.sessions() == []
