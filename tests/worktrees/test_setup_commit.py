"""What SETUP leaves in a worktree becomes a commit of its own, and does not count as work; on real git."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from conftest import eventually, kill_sessions
from test_cli_worktrees import Finished, Project, finished, project, stage

__all__ = ["finished", "project", "stage"]

SETUP = ["echo set > from-setup", "echo more >> README", "echo x > x.log"]


def subjects(project: Project, commit: str) -> list[str]:
    return project.git("log", "--format=%s", "--first-parent", commit).split("\n")


PLAN: list[dict[str, Any]] = [
    {"id": "a", "prompt": "git status --short; echo work > f", "setup": SETUP},
    {"id": "idle", "prompt": "true", "setup": SETUP, "expect_change": True},
    {
        "id": "undone",
        "prompt": "rm from-setup; git checkout -q HEAD~1 README",
        "setup": SETUP,
        "expect_change": True,
    },
    {"id": "still", "prompt": "true", "setup": ["echo set > still"]},
    {"id": "late", "prompt": "true", "setup": ["echo left > left; exec sleep 600"], "setup_timeout": "0.5s"},
    {"id": "b", "prompt": "ls", "needs": ["a", "still"]},
]
SETUPS = {
    "nothing": "echo x > x.log",
    "commits": "echo a > a; git add a; git commit -qm own; echo b > b",
    "leaves": "echo a > a; git switch -q --detach",
    "fails": "echo left > left; exit 3",
    "shot": "echo left > left; kill -KILL $$",
    "spoils": "export GIT_DIR=/nowhere PATH=/nowhere PYTHONPATH=/nowhere; cd /; set -o nounset",
}
"""What leaves nothing, a commit of its own, another branch; what fails, and what spoils its shell."""


@pytest.fixture
def ended(finished: Finished) -> Project:
    """All tasks have ended, in `sessions[0]`."""
    return finished(
        PLAN + [{"id": name, "prompt": "echo work > f", "setup": [text]} for name, text in SETUPS.items()]
    )


def tasks_of(project: Project) -> dict[str, Any]:
    return {task["id"]: task for task in project.status(project.sessions[0])["tasks"]}


def test_work_is_counted_from_what_setup_left(ended: Project) -> None:
    session, task = ended.sessions[0], tasks_of(ended)["a"]
    folder = ended.directory(session)
    assert task["diff_stat"] == {"files": 1, "insertions": 1, "deletions": 0}
    patch = (folder / "jobs" / "a" / "a1-diff.patch").read_text()
    assert "+work" in patch and "from-setup" not in patch and "README" not in patch
    assert (folder / "task-a.txt").read_text() == "", "the agent begins with a clean worktree"
    assert subjects(ended, task["commit"])[:2] == ["Work of task a", "Setup of task a"]
    assert ended.git("rev-parse", f"{task['commit']}~1") == task["setup_commit"]
    assert ended.git("rev-parse", f"{task['commit']}~2") == task["base_commit"]
    named = ended.git("diff", "--name-only", task["base_commit"], task["setup_commit"]).split("\n")
    assert named == ["README", "from-setup"], "and what git ignores is in no commit"
    assert "from-setup" not in ended("diff", session, "a").stdout


def test_setup_alone_is_no_change(ended: Project) -> None:
    """Its branch holds no work, so it goes, and `expect_change` says that nothing came out."""
    tasks = tasks_of(ended)
    idle, undone = tasks["idle"], tasks["undone"]
    assert (idle["reason_class"], idle["branch"], idle["worktree"]) == ("no_change", None, None)
    assert idle["commit"] == idle["base_commit"]
    assert undone["outcome"] == "succeeded", "to undo what setup did is work"
    assert undone["diff_stat"]["files"] == 2


def test_what_setups_leave(ended: Project) -> None:
    tasks = tasks_of(ended)
    assert tasks["nothing"]["setup_commit"] is None
    assert subjects(ended, tasks["nothing"]["commit"])[:2] == ["Work of task nothing", "first"]
    assert subjects(ended, tasks["commits"]["commit"])[:3] == [
        "Work of task commits",
        "Setup of task commits",
        "own",
    ]
    assert tasks["commits"]["diff_stat"]["files"] == 1
    assert tasks["leaves"]["setup_commit"] is None, "what is not on the task's branch is left for RELEASE to name"
    assert "HEAD is on no branch" in tasks["leaves"]["worktree_kept"]
    for name, code in (("fails", 3), ("shot", 137)):
        assert (tasks[name]["outcome"], tasks[name]["reason_class"]) == ("failed", "setup_failed")
        assert f"exit code {code}" in tasks[name]["reason"]
    assert tasks["late"]["reason_class"] == "setup_timeout", tasks["late"]["reason"]
    for name in ("fails", "shot", "late"):
        assert tasks[name]["branch"] is None and tasks[name]["diff_stat"]["files"] == 0, "no work has begun"
        assert tasks[name]["commit"] == tasks[name]["base_commit"]
    assert (tasks["spoils"]["outcome"], tasks["spoils"]["setup_commit"]) == ("succeeded", None)


def test_a_dependent_begins_with_work_and_setup_of_its_need(ended: Project) -> None:
    shown = (ended.directory(ended.sessions[0]) / "task-b.txt").read_text().split()
    assert {"f", "from-setup"} <= set(shown)
    assert "still" not in shown, "a need without work hands on nothing"


@pytest.mark.slow
def test_a_supervisor_that_dies_during_setup_changes_nothing(project: Project) -> None:
    wait = "touch ../../begun; while ! [ -e ../../go ]; do sleep 0.2; done; echo set > s"
    session = project.start([{"id": "a", "prompt": "echo work > f", "setup": [wait]}], "--worktree")
    eventually((project.cwd.parent / "begun").exists)
    os.kill(project.supervisor(session), signal.SIGKILL)
    (project.cwd.parent / "go").touch()
    task = project.wait(session)["tasks"][0]
    assert task["setup_commit"] is not None
    assert task["diff_stat"]["files"] == 1


@pytest.mark.slow
def test_clean_knows_what_setup_left_after_a_crash(project: Project) -> None:
    """All processes die in WORK, which has changed nothing: the branch of setup alone is not needed."""
    wait = "touch ../../begun; exec sleep 600"
    session = project.start([{"id": "a", "prompt": wait, "setup": ["echo set > s"]}], "--worktree")
    eventually((project.cwd.parent / "begun").exists)
    kill_sessions(project.results)
    done = project("clean", "--worktrees", session)
    assert done.returncode == 0, done.stderr
    assert project.git("for-each-ref", "refs/heads/main-task-a") == ""
