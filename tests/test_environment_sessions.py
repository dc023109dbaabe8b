"""Environments in sessions: setup, agent and check work in them; status shows them; they go with the worktree."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, kill_sessions
from python_projects import lay_out_project, make_uv, make_wheels
from stages import begin_repository, commit_all


class Place:
    """A repository with a project, a stand-in for uv, and a cache."""

    def __init__(self, root: Path, sessionrun: Command) -> None:
        self.root = Path(os.path.realpath(root))
        self.command = sessionrun
        self.top = self.root / "repo"
        self.top.mkdir()
        begin_repository(self.top)
        lay_out_project(self.top)
        commit_all(self.top)
        self.log = make_uv(self.root / "bin", make_wheels(self.root / "wheels"))
        self.cache = self.root / "xdg" / "sessionrun" / "environments"

    def run(self, tasks: list[dict[str, Any]], *words: str) -> dict[str, dict[str, Any]]:
        """Run a session in worktrees to its end; its tasks by id."""
        file = self.root / "plan.json"
        file.write_text(json.dumps({"prompts": tasks, "defaults": {"environment": "python"}}))
        self.command.cwd = self.top
        argv = ("--sync", "--json", "--agent", "shell", "--worktree", *words, str(file))
        done = self.command("run", *argv)
        assert done.returncode in (0, 1), done.stderr
        shown = json.loads(done.stdout)
        self.command.sessions.append(shown["session_id"])
        return {task["id"]: task for task in shown["tasks"]}

    def in_use(self) -> list[Path]:
        folder = self.cache / "tasks"
        return list(folder.iterdir()) if folder.exists() else []

    def job(self, task: str, name: str) -> Path:
        return self.command.directory(self.command.sessions[-1]) / "jobs" / task / name


@pytest.fixture
def place(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_place / "xdg"))
    monkeypatch.setenv("PATH", os.pathsep.join((str(own_place / "bin"), os.environ["PATH"])))
    monkeypatch.setenv("PYTHONHOME", "")
    return Place(own_place, sessionrun)


SEEN = "demo > $OUT; pytest >> $OUT; echo $VIRTUAL_ENV >> $OUT; command -v python >> $OUT"


def test_setup_agent_and_check_work_in_the_environment_of_their_task(place: Place) -> None:
    """And neither what it consists of nor what the install compiled in the checkout is work."""
    files = {name: place.root / f"{name}.txt" for name in ("setup", "work", "check", "other")}
    seen = {name: SEEN.replace("$OUT", str(file)) for name, file in files.items()}
    tasks = place.run(
        [
            {"id": "a", "prompt": f"touch new; {seen['work']}", "setup": seen["setup"], "check": seen["check"]},
            {"id": "b", "prompt": seen["other"], "needs": "a"},
            {"id": "c", "prompt": "touch never", "setup": "exit 3", "needs": "a"},
        ]
    )
    assert [task["outcome"] for task in tasks.values()] == ["succeeded", "succeeded", "failed"]
    made = {name: task["environment"] for name, task in tasks.items()}
    for name, task in (("setup", "a"), ("work", "a"), ("check", "a"), ("other", "b")):
        demo, pytest_, virtual, python = files[name].read_text().splitlines()
        env = made[task]["path"]
        assert demo.startswith(f"demo at {place.root}/repo-worktrees/")
        assert demo.endswith(f"-task-{task}/src/demo/__init__.py")
        assert (pytest_, virtual, python) == (f"pytest in {env}", env, f"{env}/bin/python")
    assert [made[name]["cached"] for name in "abc"] == [False, True, True]
    assert len({made[name]["digest"] for name in "abc"}) == 1
    assert made["a"]["choice"] == "editable with [test]"
    assert "editable with [test]" in [step["name"] for step in made["a"]["steps"]]
    assert place.log.read_text().count("venv") == 1
    assert place.in_use() == []
    argv = ["git", "diff", "--name-only", "main", tasks["a"]["branch"]]
    changed = subprocess.run(argv, cwd=place.top, capture_output=True, text=True, check=True)
    assert changed.stdout.split() == ["new"]
    assert [tasks[name]["branch"] for name in "bc"] == [None, None]
    assert tasks["c"]["reason_class"] == "setup_failed"


def test_an_environment_that_cannot_be_made_is_told_from_work_and_setup(place: Place) -> None:
    (place.top / "broken").touch()
    commit_all(place.top, "broken")
    tasks = place.run(
        [
            {"id": "a", "prompt": "touch ran", "setup": "touch ran"},
            {"id": "b", "prompt": "true", "environment": {"kind": "python", "python": "9.99"}},
        ]
    )
    assert [task["reason_class"] for task in tasks.values()] == ["environment_failed", "environment_failed"]
    reason = tasks["a"]["reason"]
    assert reason.startswith(
        "environment_failed: editable and pytest: exit code 1: error: the build of demo failed"
    )
    assert tasks["b"]["reason"].startswith("environment_failed: there is no Python 9.99")
    assert tasks["a"]["branch"] is None  # nothing of the task ran
    assert [step["name"] for step in tasks["a"]["environment"]["steps"]][-1] == "editable and pytest"
    (folder,) = place.job("a", "").glob("a1-*-setup*")
    report = json.loads((folder / "environment.json").read_text())
    assert "the build of demo failed" in (folder / report["steps"][-1]["log"]).read_text()


@pytest.mark.slow
def test_a_kept_worktree_keeps_its_environment_and_clean_takes_both(place: Place) -> None:
    tasks = place.run([{"id": "a", "prompt": "touch new"}], "--keep-worktree", "always")
    (env,) = place.in_use()
    assert str(env) == tasks["a"]["environment"]["path"]
    assert (env / "bin" / "pytest").exists()
    done = place.command("clean", "--worktrees", place.command.sessions[-1])
    assert done.returncode == 0, done.stderr
    assert place.in_use() == []


def test_what_a_killed_session_left_is_found_by_clean(place: Place) -> None:
    place.command.cwd = place.top
    mark = place.root / "works"
    plan = {"prompts": [{"id": "a", "prompt": f"touch {mark}; sleep 600"}], "defaults": {"environment": "python"}}
    session_id = place.command.start(plan, "--worktree")
    place.command.until(session_id, lambda view: mark.exists(), timeout_s=60)
    place.command.kill_chain(session_id)
    (env,) = place.in_use()
    kill_sessions(place.command.results)
    shown = place.command("clean", "--worktrees", "--dry-run", session_id)
    assert str(env) in shown.stdout
    assert env.exists()
    done = place.command("clean", "--worktrees", session_id)
    assert done.returncode == 0, done.stderr
    assert not env.exists()


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ({"environment": "ruby"}, "prompts[0].environment: must be one of python, not"),
        ({"environment": {"kind": "ruby"}}, "prompts[0].environment.kind: must be one of python, not"),
        ({"environment": {"kind": "python", "version": "3"}}, "unknown"),
        ({"environment": "python", "workspace": "none"}, "an environment without a worktree"),
    ],
)
def test_what_cannot_be_is_refused(place: Place, task: dict[str, Any], why: str) -> None:
    file = place.root / "plan.json"
    file.write_text(json.dumps({"prompts": [{"prompt": "true", "workspace": "worktree", **task}]}))
    place.command.cwd = place.top
    done = place.command("run", "--agent", "shell", str(file))
    assert done.returncode == 2
    assert why in done.stderr
