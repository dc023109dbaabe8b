"""git that does not come back: PREPARE and RELEASE end in time or by `cancel --now`, and so does their session."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from conftest import Command, eventually
from stages import put_first
from test_rounds import only_task
from test_workspaces import Project

LIMITS = {"workspace_timeout": 10}
WORK = {"id": "a", "prompt": "echo work >made.txt"}


@pytest.fixture
def project(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A repository in which the command is started."""
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    made = Project(own_place)
    sessionrun.cwd = made.top
    return made


def block(project: Project, monkeypatch: pytest.MonkeyPatch, word: str, *, first: str = "") -> Path:
    """Let git, in commands with this word, do what comes `first`, and wait until the file is gone."""
    held = project.root / "held"
    held.touch()
    waits = f"touch {project.root}/waits; while [ -e {held} ]; do sleep 0.1; done"
    put_first(project.root, monkeypatch, f'case " $* " in *" {word} "*) {first} {waits};; esac')
    return held


@pytest.mark.slow
def test_a_prepare_over_its_time_fails_its_task_alone(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(project, monkeypatch, "read-tree")
    session_id = sessionrun.start({"limits": LIMITS, "prompts": [WORK]}, "--worktree")
    task = only_task(sessionrun.wait(session_id))
    assert (task["outcome"], task["reason_class"]) == ("failed", "workspace_failed")
    assert task["reason"] == "workspace_failed: not done after 10 s (workspace_timeout)"
    assert project.run("worktree", "list").count("\n") == 0, "its RELEASE takes back what was begun"
    assert project.run("branch", "--list", "*-task-*") == ""


@pytest.mark.slow
def test_a_release_over_its_time_leaves_worktree_and_outcome(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = block(project, monkeypatch, "write-tree", first="trap '' TERM;")
    session_id = sessionrun.start({"limits": LIMITS, "prompts": [WORK]}, "--worktree")
    view = sessionrun.wait(session_id)
    task = only_task(view)
    assert (view["outcome"], task["outcome"]) == ("succeeded", "succeeded")
    assert task["worktree_kept"] == "release_failed: not done after 10 s (workspace_timeout)"
    assert Path(task["worktree"], "made.txt").read_text() == "work\n"
    assert "release_failed: not done after 10 s" in sessionrun("results", session_id).stdout
    held.unlink()
    done = sessionrun("clean", "--worktrees", session_id)
    assert done.returncode == 0, done.stderr
    assert project.run("show", "main-task-a:made.txt") == "work"


def test_cancel_now_ends_a_release_and_cancel_does_not(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(project, monkeypatch, "write-tree")
    session_id = sessionrun.start({"prompts": [WORK]}, "--worktree")
    eventually((project.root / "waits").exists)
    view = sessionrun.until(
        session_id, lambda view: only_task(view)["phase"] == "releasing" and only_task(view)["pid"]
    )
    release = psutil.Process(only_task(view)["pid"])
    done = sessionrun("cancel", session_id, "--timeout", "0")
    assert done.returncode == 0, done.stderr
    sessionrun.until(session_id, lambda view: not list((sessionrun.directory(session_id) / "requests").iterdir()))
    assert release.is_running()
    done = sessionrun("cancel", session_id, "--now")
    assert done.returncode == 0, done.stderr
    view = sessionrun.wait(session_id)
    task = only_task(view)
    assert (view["status"], task["outcome"]) == ("cancelled", "succeeded")
    assert task["worktree_kept"] == "cancelled: on request"
    assert Path(task["worktree"], "made.txt").read_text() == "work\n"
    eventually(lambda: not release.is_running())
