"""LAND: the work of a session lands by itself while the session runs."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter

import orjson
import pytest
from conftest import eventually, kill_sessions
from test_cli_merge import ENDS, GATE, PLAN
from test_cli_worktrees import Project, project

from sessionrun.store.logs import fold_ledger, read_log

__all__ = ["project"]

THREE = [{"id": name, "prompt": f"echo {name} > {name}.txt"} for name in ("one", "two", "three")]


def landings_of(project: Project, session_id: str) -> dict[str, tuple[str, str | None] | None]:
    """By task, where its work stands, and the word for why."""
    landings = {task["id"]: task["landing"] for task in project.load("status", session_id)["tasks"]}
    return {name: one and (one["status"], one["reason_class"]) for name, one in landings.items()}


def count_merges(project: Project) -> dict[str, int]:
    """How often the work of each task was merged, by the task's id."""
    lines = project.git("log", "--format=%s", "--grep=^Merge task", "main").split("\n")
    return Counter(line.removeprefix("Merge task ").partition(":")[0] for line in lines)


def assert_clean(project: Project) -> None:
    """No lock is left, and the user's work tree is as the branch is."""
    assert project.git("status", "--porcelain") == ""
    locks = [path.name for path in (project.cwd / ".git").rglob("*.lock")]
    assert [name for name in locks if not name.startswith("sessionrun")] == []


def test_three_tasks_land_by_themselves(project: Project) -> None:
    (project.cwd / "Makefile").write_text("check:\n\t@! grep -qs BAD *.txt\n")
    project.git("add", "Makefile")
    project.git("commit", "-q", "-m", "Gate")
    session_id = project.finish({"land": {"into": "main", "gates": ["make check"]}, "prompts": THREE})
    status = project.load("status", session_id)
    assert status["outcome"] == "succeeded"
    assert landings_of(project, session_id) == dict.fromkeys(("one", "two", "three"), ("landed", None))
    assert [(project.cwd / f"{name}.txt").read_text() for name in ("one", "two")] == ["one\n", "two\n"]
    assert_clean(project)
    assert count_merges(project) == {"one": 1, "two": 1, "three": 1}
    commits = {task["landing"]["commit"] for task in status["tasks"]}
    assert commits <= set(project.git("rev-list", "--first-parent", "main").split("\n"))
    events = [orjson.loads(one) for one in read_log(project.directory(session_id) / "journal").payloads]
    assert [event["task"] for event in events if event["ev"] == "WorkLanded"] != []
    claimed = [event["key"] for event in events if event["ev"] == "JobClaimed" and "/land/" in event["key"]]
    assert [key.rpartition("/")[2] for key in claimed] == [str(n) for n in range(1, len(claimed) + 1)]


@pytest.mark.slow
def test_conflict_red_and_those_that_need_them(project: Project) -> None:
    session_id = project.finish({"land": {"gates": GATE}, "prompts": PLAN, "max_parallel": 1})
    assert project.load("status", session_id)["outcome"] == "failed"
    assert landings_of(project, session_id) == {**ENDS, "idle": None, "fails": None}
    shown, told = project("status", session_id).stdout, project("explain", session_id, "bad").stdout
    results = project("results", session_id).stdout
    short = session_id[:8]
    assert results.endswith(
        f"\nNext:\n  sessionrun merge {short} bad clash    # after the work is mended on its branch\n"
        f"  sessionrun retry {short} --failed\n"
        f"  sessionrun diff {short} fails    # what is not to land unseen\n"
    )
    assert re.search(
        r"^. bounced +clash .*\n    it conflicts with main in one.txt, which one changed$", shown, re.MULTILINE
    )
    assert re.search(r"^. bounced +bad .*\n    gate failed, exit code 1: ", shown, re.MULTILINE)
    assert " bounced: gate failed, " in told
    assert project("wait", session_id).returncode == 1
    assert "\nLanding: 2 bounced, 2 landed, 1 waiting\n" in project("explain", session_id).stdout
    assert [path for path in project.directory(session_id).rglob("*") if path.stat().st_mode & 0o077] == []
    assert not (project.cwd / "bad.txt").exists() and not (project.cwd / "set.txt").exists()
    assert_clean(project)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["retry", "merge"])
def test_a_dirty_target_holds_until_it_is_mended(project: Project, verb: str) -> None:
    (project.cwd / "one.txt").write_text("mine\n")
    session_id = project.finish({"land": True, "prompts": THREE[:1]})
    assert landings_of(project, session_id) == {"one": ("held", "checkout_untracked")}
    shown = project.load("status", session_id)
    assert shown["outcome"] == "failed"
    assert shown["tasks"][0]["landing"]["mend"].endswith(f"; then sessionrun retry {session_id}")
    assert project("wait", session_id).returncode == 1
    (project.cwd / "one.txt").unlink()
    done = project(verb, session_id)
    assert (done.returncode, verb == "merge" or done.stdout == f"{session_id[:8]}: retrying 1 task\n") == (0, True)
    assert project("wait", session_id).returncode == 0, "a later merge is what all verbs tell"
    assert landings_of(project, session_id) == {"one": ("landed", None)}
    assert (project.load("status", session_id)["outcome"] == "succeeded") == (verb == "retry")
    assert count_merges(project) == {"one": 1}
    assert project.load("status", session_id)["tasks"][0]["attempt"] == 1
    assert_clean(project)


def begin(project: Project, tasks: int = 3) -> str:
    """A session whose gate waits for the file `go`."""
    gate = f"touch {project.cwd.parent}/began; while ! [ -e {project.cwd.parent}/go ]; do sleep 0.05; done"
    plan = {"land": {"gates": [gate]}, "prompts": THREE[:tasks], "max_parallel": 1}
    session_id = project.start(plan, "--worktree")
    eventually(lambda: (project.cwd.parent / "began").exists())
    return session_id


def find_land_pid(project: Project, session_id: str) -> int:
    """The process of the LAND that runs."""
    ledger = fold_ledger(read_log(project.directory(session_id) / "ledger").payloads)
    jobs = [job for key, job in ledger.jobs.items() if "/land/" in key and job.pid and job.wait_status is None]
    return jobs[-1].pid or 0


@pytest.mark.slow
@pytest.mark.parametrize("all_of_them", [False, True], ids=["the landing", "all"])
def test_what_is_killed_is_followed_by_another_landing(project: Project, all_of_them: bool) -> None:
    session_id = begin(project)
    if all_of_them:
        kill_sessions(project.results)
    else:
        os.kill(find_land_pid(project, session_id), signal.SIGKILL)
    (project.cwd.parent / "go").touch()
    assert not all_of_them or project("resume", session_id).returncode == 0
    project.wait(session_id)
    assert landings_of(project, session_id) == dict.fromkeys(("one", "two", "three"), ("landed", None))
    assert count_merges(project) == {"one": 1, "two": 1, "three": 1}
    assert_clean(project)


@pytest.mark.slow
@pytest.mark.parametrize("now", [("--now",), ()], ids=str)
def test_cancel_leaves_the_branch_whole(project: Project, now: tuple[str, ...]) -> None:
    session_id = begin(project, tasks=1)
    before = project.git("rev-parse", "main")
    assert project("cancel", session_id, *now).returncode == 0
    status = project.load("status", session_id)
    assert status["status"] == "cancelled"
    assert landings_of(project, session_id) == {"one": ("held", "cancelled")}
    assert project.git("rev-parse", "main") == before
    assert_clean(project)
    merged = project.load("merge", session_id)
    assert [task["status"] for task in merged["tasks"]] == ["landed"]


@pytest.mark.slow
def test_a_held_session_lands_when_it_is_released(project: Project) -> None:
    go = project.cwd.parent / "go"
    prompt = f"echo one > one.txt; while ! [ -e {go} ]; do sleep 0.05; done"
    session_id = project.start({"prompts": [{"id": "one", "prompt": prompt}]}, "--worktree", "--land")
    project.until(session_id, lambda view: view["tasks"][0]["phase"] == "running")
    assert project("hold", session_id).returncode == 0
    go.touch()
    project.until(session_id, lambda view: view["tasks"][0]["status"] == "completed")
    assert landings_of(project, session_id) == {"one": ("ready", None)}
    assert not (project.cwd / "one.txt").exists()
    told = "its work is number 1 of 1 to land on main, held: on request"
    assert told in project("explain", session_id, "one").stdout
    assert project("release", session_id).returncode == 0
    project.wait(session_id)
    assert landings_of(project, session_id) == {"one": ("landed", None)}


def test_a_preview_says_where_it_lands(project: Project) -> None:
    plan = orjson.dumps({"land": {"gates": ["make check", "true"]}, "prompts": ["true"]})
    shown = project("run", "--dry-run", "--worktree", "--agent", "shell", stdin=plan).stdout
    assert "\nLands: on main, if they pass `make check` and `true`\n" in shown
