"""Environments in sessions: setup, agent and check work in them; status shows them; they go with the worktree."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, kill_sessions
from python_projects import PythonPlace
from stages import commit_all


class Place(PythonPlace):
    """One in which sessions run in worktrees."""

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
        return list(self.top.with_name("repo-worktrees").glob(".env-*"))

    def job(self, task: str, name: str) -> Path:
        return self.command.directory(self.command.sessions[-1]) / "jobs" / task / name


@pytest.fixture
def place(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_place / "xdg"))
    monkeypatch.setenv("PATH", os.pathsep.join((str(own_place / "bin"), os.environ["PATH"])))
    monkeypatch.delenv("PYTHONHOME", raising=False)
    return Place(own_place, sessionrun, "xdg/sessionrun/environments")


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
    assert place.builds() == 1
    assert place.in_use() == []
    argv = ["git", "diff", "--name-only", "main", tasks["a"]["branch"]]
    changed = subprocess.run(argv, cwd=place.top, capture_output=True, text=True, check=True)
    assert changed.stdout.split() == ["new"]
    assert [tasks[name]["branch"] for name in "bc"] == [None, None]
    assert tasks["c"]["reason_class"] == "setup_failed"


@pytest.mark.parametrize("into", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_uv_nothing_starts(place: Place, monkeypatch: pytest.MonkeyPatch, *, into: bool) -> None:
    """Not at the launch, nor is such a task added."""
    place.command.cwd = place.top
    first = {"prompts": [{"prompt": "sleep 600", "environment": "python"}]}
    session_id = place.command.start(first, "--worktree") if into else None
    words = ("--into", session_id) if session_id else ("--agent", "shell")
    folders = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(name for name in folders if not Path(name, "uv").exists()))
    plan = place.root / "plan.json"
    plan.write_text(json.dumps({"prompts": [{"id": "a", "prompt": "true", "environment": "python"}]}))
    done = place.command("run", "--worktree", *words, str(plan))
    said = "environment of task a: it is made by uv, which is not on PATH: pip install uv\n"
    assert (done.returncode, done.stderr.endswith(said)) == (2, True), done.stderr
    assert len(list(place.command.results.glob("session-*"))) == int(into)


@pytest.mark.slow
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
        "environment_failed: editable and pytest: exit code 1: RuntimeError: the build of demo failed"
    )
    assert tasks["b"]["reason"].startswith("environment_failed: there is no Python 9.99")
    assert tasks["a"]["branch"] is None  # nothing of the task ran
    assert [step["name"] for step in tasks["a"]["environment"]["steps"]][-1] == "editable and pytest"
    (folder,) = place.job("a", "").glob("a1-*-setup*")
    report = json.loads((folder / "environment.json").read_text())
    assert report["made"]["steps"][-1]["name"] == "editable and pytest"
    assert "the build of demo failed" in (folder / "environment.log").read_text()


@pytest.mark.slow
def test_gates_run_in_an_environment_of_what_they_try(place: Place) -> None:
    """By itself, and with `merge`; it is no task's, goes after the gates, and what has none does not land."""
    seen = place.root / "gate.txt"
    gate = ("--gate", SEEN.replace("$OUT", str(seen)))
    bad = {"id": "bad", "prompt": "touch broken; echo '# new' >>pyproject.toml", "needs": "a", "base": "session"}
    tasks = place.run([{"id": "a", "prompt": "touch new"}, bad], "--land", *gate)
    assert tasks["a"]["landing"]["status"] == "landed", tasks["a"]["landing"]
    landing = tasks["bad"]["landing"]
    assert (landing["status"], landing["reason_class"]) == ("bounced", "gate_red")
    assert "its environment: editable and pytest: exit code 1" in landing["reason"]
    assert "the build of demo failed" in Path(landing["output"]).read_text()
    other = place.run([{"id": "b", "prompt": "touch newer"}])
    assert place.in_use() == []
    first = seen.read_text().splitlines()
    done = place.command("merge", place.command.sessions[-1], "--json", *gate)
    assert done.returncode == 0, done.stderr
    assert [task["status"] for task in json.loads(done.stdout)["tasks"]] == ["landed"]
    for demo, pytest_, virtual, python in (first, seen.read_text().splitlines()):
        assert demo.startswith(f"demo at {place.root}/repo-worktrees/.gate-")
        assert (pytest_, python) == (f"pytest in {virtual}", f"{virtual}/bin/python")
        assert virtual not in (tasks["a"]["environment"]["path"], other["b"]["environment"]["path"])
    assert place.in_use() == []


@pytest.mark.slow
def test_clean_takes_an_environment_with_its_worktree(place: Place) -> None:
    """One that was kept, one that a killed session left, and one of which the worktree was deleted by hand."""
    tasks = place.run([{"id": "a", "prompt": "touch new"}], "--keep-worktree", "always")
    (kept,) = place.in_use()
    assert str(kept) == tasks["a"]["environment"]["path"] and (kept / "bin" / "pytest").exists()
    mark = place.root / "works"
    plan = {"prompts": [{"id": "a", "prompt": f"touch {mark}; sleep 600"}], "defaults": {"environment": "python"}}
    session_id = place.command.start(plan, "--worktree")
    place.command.until(session_id, lambda view: mark.exists(), timeout_s=60)
    place.command.kill_chain(session_id)
    kill_sessions(place.command.results)
    (left,) = set(place.in_use()) - {kept}
    again = place.command.sessions[0]
    for env, session in ((left, session_id), (kept, again), (kept, again)):
        shown = place.command("clean", "--worktrees", "--dry-run", session)
        assert "would remove worktree" in shown.stdout and env.exists()
        done = place.command("clean", "--worktrees", session)
        assert done.returncode == 0 and not env.exists(), done.stderr
        kept.mkdir(parents=True, exist_ok=True)  # for the last time


# --- proof ---

PATCHED = "grep -rl 'pytest in' $VIRTUAL_ENV/lib | xargs sed -i 's/pytest in/patched/'"
"""Edits a dependency where it is installed for the task."""


@pytest.mark.slow
def test_a_proof_has_environments_of_its_own(place: Place) -> None:
    """What the agent did to its own environment, also a git of its own in it, counts for nothing."""
    planted = "printf '#!/bin/sh\\nexit 1\\n' > $VIRTUAL_ENV/bin/git; chmod +x $VIRTUAL_ENV/bin/git"
    patches = {"check": "pytest | grep -q patched", "prove": True}
    works = {"check": {"commands": "grep -q good answer && pytest && demo", "prove": True}}
    tasks = place.run(
        [
            {"id": "patches", "prompt": f"{PATCHED}; echo good > answer", **patches},
            {"id": "works", "prompt": f"echo good > answer; {PATCHED}; {planted}", **works},
        ]
    )
    assert {name: (task["outcome"], task["proof"]) for name, task in tasks.items()} == {
        "patches": ("failed", "unproved"),
        "works": ("succeeded", "proved"),
    }
    assert place.in_use() == []
    (folder,) = place.job("works", "").glob("a1-*-prove*")
    reports = [json.loads(path.read_text()) for path in folder.glob("*-environment/environment.json")]
    assert reports and all(report["made"]["cached"] for report in reports)
    assert "pytest in " in (folder / "result.txt").read_text(), "not the patched one"
