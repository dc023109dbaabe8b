"""git that does not come back: PREPARE and RELEASE end in time or by `cancel --now`, and so does their session."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest
from conftest import Command, eventually
from test_rounds import only_task
from test_workspaces import Project

from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input

LIMITS = {"workspace_timeout": 10}
WORK = {"id": "a", "prompt": "echo work >made.txt"}


SCRIPT = """#!/bin/sh
wait_here() {{ mktemp {0}/waits-XXXXXX >&2; while [ -e {0}/word ]; do sleep 0.1; done; }}
[ -e {0}/deaf ] && trap "" TERM
if [ -e {0}/word ]; then
    read -r word <{0}/word
    for one in "$@"; do [ "$one" = "$word" ] && wait_here; done
fi
exec {1} "$@"
"""


class SlowGit:
    """A `git` first on the PATH, that waits in one of its commands until it is told to go on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        (folder / "git").write_text(SCRIPT.format(folder, shutil.which("git")))
        (folder / "git").chmod(0o755)

    def block(self, word: str, *, deaf: bool = False) -> None:
        """From now on a command with this word does not come back, and ignores TERM if it is `deaf`."""
        (self._folder / "word").write_text(f"{word}\n")
        if deaf:
            (self._folder / "deaf").touch()

    def free(self) -> None:
        """From now on none waits any more."""
        (self._folder / "word").unlink()

    def await_one(self) -> None:
        """Until one waits that did not yet."""
        eventually(lambda: list(self._folder.glob("waits-*")))
        next(self._folder.glob("waits-*")).unlink()


@pytest.fixture
def slow(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> SlowGit:
    """It, on the PATH of all that the test starts."""
    made = SlowGit(own_place / "bin")
    monkeypatch.setenv("PATH", f"{own_place / 'bin'}:{os.environ['PATH']}")
    return made


@pytest.fixture
def project(own_place: Path, slow: SlowGit, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A repository in which the command is started."""
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    made = Project(own_place)
    sessionrun.cwd = made.top
    return made


@pytest.mark.slow
def test_a_prepare_over_its_time_fails_its_task_alone(
    sessionrun: Command, project: Project, slow: SlowGit
) -> None:
    slow.block("read-tree")
    session_id = sessionrun.start({"limits": LIMITS, "prompts": [WORK]}, "--worktree")
    task = only_task(sessionrun.wait(session_id))
    assert (task["outcome"], task["reason_class"]) == ("failed", "workspace_failed")
    assert task["reason"] == "workspace_failed: not done after 10 s (workspace_timeout)"
    assert project.run("worktree", "list").count("\n") == 0, "its RELEASE takes back what was begun"
    assert project.run("branch", "--list", "*-task-*") == ""


@pytest.mark.slow
def test_a_release_over_its_time_leaves_worktree_and_outcome(
    sessionrun: Command, project: Project, slow: SlowGit
) -> None:
    slow.block("write-tree", deaf=True)
    session_id = sessionrun.start({"limits": LIMITS, "prompts": [WORK]}, "--worktree")
    view = sessionrun.wait(session_id)
    task = only_task(view)
    assert (view["outcome"], task["outcome"]) == ("succeeded", "succeeded")
    assert task["worktree_kept"] == "release_failed: not done after 10 s (workspace_timeout)"
    assert Path(task["worktree"], "made.txt").read_text() == "work\n"
    assert "release_failed: not done after 10 s" in sessionrun("results", session_id).stdout
    slow.free()
    done = sessionrun("clean", "--worktrees", session_id)
    assert done.returncode == 0, done.stderr
    assert project.run("show", "main-task-a:made.txt") == "work"


def test_cancel_now_ends_a_release_and_cancel_does_not(
    sessionrun: Command, project: Project, slow: SlowGit
) -> None:
    slow.block("write-tree")
    session_id = sessionrun.start({"prompts": [WORK]}, "--worktree")
    slow.await_one()
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


@pytest.mark.parametrize(
    ("plan", "config", "limit"),
    [(None, None, 600), (None, 0, None), (90, 0, 90), (0, 90, None), (None, '"1.5m"', 90)],
)
def test_which_limit_wins(
    plan: float | None, config: float | str | None, limit: float | None, own_place: Path
) -> None:
    if config is not None:
        (own_place / "sessionrun.toml").write_text(f"workspace_timeout = {config}\n")
    planned = plan_input({"prompts": ["true"], "limits": {"workspace_timeout": plan}}, {"agent": "shell"})
    assert isinstance(planned, Planned)
    assert planned.spec.limits.workspace_timeout_s == limit
