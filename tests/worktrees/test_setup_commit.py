"""What counts as work: not what SETUP leaves, which becomes a commit of its own; and what is no change."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually, kill_sessions
from test_cli_worktrees import Finished, Project, finished, project, stage
from test_workspaces import Project as Repo
from test_worktrees import by_id

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


def test_work_is_counted_from_what_setup_left(ended: Project) -> None:
    session, task = ended.sessions[0], by_id(ended.status(ended.sessions[0]))["a"]
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


def test_what_setups_leave_is_no_change(ended: Project) -> None:
    """Its branch holds no work, so it goes, and `expect_change` says that nothing came out."""
    tasks = by_id(ended.status(ended.sessions[0]))
    idle, undone = tasks["idle"], tasks["undone"]
    assert (idle["reason_class"], idle["branch"], idle["worktree"]) == ("no_change", None, None)
    assert idle["commit"] == idle["base_commit"]
    assert undone["outcome"] == "succeeded", "to undo what setup did is work"
    assert undone["diff_stat"]["files"] == 2
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
    shown = (ended.directory(ended.sessions[0]) / "task-b.txt").read_text().split()
    assert {"f", "from-setup"} <= set(shown), "a dependent begins with work and setup of its need"
    assert "still" not in shown, "a need without work hands on nothing"


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


def test_a_supervisor_that_dies_during_setup_or_work_changes_nothing(project: Project) -> None:
    wait = "touch ../../begun-$SESSIONRUN_TASK; while ! [ -e ../../go ]; do sleep 0.2; done"
    plan = [
        {"id": "a", "prompt": "echo work > f", "setup": [f"{wait}; echo set > s"]},
        {"id": "b", "prompt": wait},
    ]
    session = project.start(plan, "--worktree", "--expect-change")
    eventually(lambda: all((project.cwd.parent / f"begun-{name}").exists() for name in "ab"))
    os.kill(project.supervisor(session), signal.SIGKILL)
    (project.cwd.parent / "go").touch()
    view = project.wait(session)
    reason = "no_change: nothing in its worktree differs from the base commit"
    ends = [(task["outcome"], task["reason"]) for task in view["tasks"]]
    assert ends == [("succeeded", None), ("failed", reason)]
    assert view["tasks"][0]["setup_commit"] is not None
    assert view["tasks"][0]["diff_stat"]["files"] == 1


# --- `expect_change`: a task that ends well and leaves its worktree as it was has failed ---

NOTHING = (
    "true",
    "echo x > x.log",
    "echo x > f; git add f; git commit -qm f; git rm -q f; git commit -qm back",
    "cp a.txt r; rm a.txt; mv r a.txt; touch a.txt",
    "git commit -q --allow-empty -m nothing",
    "echo x > f; git add f; git stash -q; git stash drop -q",
    'rm -rf "$PWD"',
    'cd ../../repo; git worktree remove -f "$OLDPWD"; git branch -qD main-task-t',
)
SOMETHING = (
    "echo x > f",
    "echo x > f; git add f; git commit -qm f",
    "rm a.txt",
    "chmod +x a.txt",
    "echo x > x.log; git add -f x.log",
    "echo x > f; git add f; git commit -qm f; git switch -q --detach HEAD~1",
    "git init -q inner; echo in > inner/f",
)


@pytest.mark.parametrize("script", [*NOTHING, *SOMETHING])
def test_what_is_no_change_and_what_is_one(own_place: Path, script: str) -> None:
    repo = Repo(own_place)
    asked = partial(repo.cycle, keep="on-failure", succeeded=True, expect_change=True)
    place, path = asked(partial(repo.shell, script))
    assert place.changed is (script in SOMETHING)
    if script in NOTHING[:-2]:  # ignored files may show what went wrong; the last two have removed it
        assert (place.kept, path.exists()) == ("worktrees of failed tasks are kept", True)
