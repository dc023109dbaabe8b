"""Environments in sessions: setup, agent and check work in them, and they go with the worktree.

`precache` builds those that a run asks for ahead, each once, and leaves nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from python_projects import lay_out_project, make_uv, make_wheels
from stages import commit_all, git, make_repository_of


class Place:
    """A repository with the project in a directory of it, and a uv without a network."""

    def __init__(self, root: Path, command: Command, monkeypatch: pytest.MonkeyPatch, inner: str = ".") -> None:
        self.root = Path(os.path.realpath(root))
        self.command, self.top = command, self.root / "repo"
        lay_out_project(self.top / inner)
        make_repository_of(self.top, {})
        self.log = make_uv(self.root / "bin", make_wheels(self.root / "wheels"))
        monkeypatch.setenv("PATH", os.pathsep.join((str(self.root / "bin"), os.environ["PATH"])))

    def builds(self) -> int:
        return self.log.read_text().count("venv")

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
    monkeypatch.delenv("PYTHONHOME", raising=False)
    return Place(own_place, sessionrun, monkeypatch)


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


# --- built ahead ---

USES_TAGS = "[options]\nsetup_requires = setuptools_scm\n"


class Ahead(Place):
    """One whose project lies in a directory, and has its tag as its version."""

    def __init__(self, root: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, command, monkeypatch, "inner")
        (self.top / "inner" / "setup.cfg").write_text(USES_TAGS)
        commit_all(self.top, "uses tags")
        self.git("tag", "v1")
        self.cache = self.root / "cache"
        self.environments = self.cache / "environments"
        monkeypatch.setenv("SESSIONRUN_CACHE_DIR", str(self.cache))

    def git(self, *argv: str) -> str:
        return git(self.top, *argv)

    def write(self, *tasks: dict[str, Any], name: str = "plan.json") -> str:
        """A plan whose tasks are in mirrors of the repository, and want environments."""
        defaults = {"environment": "python", "repo": "./repo", "cwd": "inner"}
        (self.root / name).write_text(json.dumps({"prompts": tasks, "defaults": defaults}))
        return str(self.root / name)

    def entries(self) -> list[str]:
        return sorted(path.name for path in self.environments.iterdir() if path.is_dir())

    def left(self) -> list[str]:
        """What is in the cache beside mirrors, entries and locks."""
        names = [path.name for path in self.environments.iterdir()] if self.environments.exists() else []
        return sorted(name for name in names if len(name) != 40 and not name.endswith(".lock"))

    def require(self, plan: str, *words: str) -> dict[str, Any]:
        """Run a plan of which all has to be in the cache; its status."""
        done = self.command.to_end("run", "-q", "--agent", "shell", "--require-cache", *words, plan)
        assert done.returncode == 0, done.stderr
        return self.command.status(done.stdout.strip())


@pytest.fixture
def ahead(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Ahead:
    return Ahead(own_place, sessionrun, monkeypatch)


@pytest.mark.slow
def test_what_precache_builds_is_what_a_run_asks_for(ahead: Ahead) -> None:
    plan = ahead.write({"id": "a", "prompt": "demo"}, {"id": "b", "prompt": "pytest"})
    done = ahead.command("precache", plan)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 of 1 repositories are in the cache\n1 of 1 environments are in the cache\n"
    lines = done.stderr.splitlines()
    assert lines[0] == f"fetching {ahead.top} (1 ref)" and lines[1].startswith(f"fetched {ahead.top} (1 ref) in ")
    assert "building the environment of task a and 1 more" in lines
    assert lines[-1].startswith("built the environment of task a and 1 more in ")
    assert (ahead.builds(), len(ahead.entries()), ahead.left()) == (1, 1, [])
    status = ahead.require(plan)
    assert [(task["outcome"], task["reason"]) for task in status["tasks"]] == [("succeeded", None)] * 2
    made = [task["environment"] for task in status["tasks"]]
    assert [(one["digest"], one["cached"]) for one in made] == [(ahead.entries()[0], True)] * 2
    assert ahead.builds() == 1
    (record,) = ahead.command.load("precache", plan)["repositories"]
    (environment,) = record["environments"]
    assert (environment["digest"], environment["cached"]) == (ahead.entries()[0], True)
    assert (environment["tasks"], environment["error"], environment["log"]) == (["a", "b"], None, None)
    assert environment["path"] == str(ahead.environments / ahead.entries()[0])
    assert ahead.builds() == 1


@pytest.mark.slow
def test_a_build_for_each_digest_and_none_without_the_wish(ahead: Ahead) -> None:
    """Two commits of which the second changes what counts, and a third that does not."""
    first = ahead.git("rev-parse", "HEAD")
    (ahead.top / "inner" / "pyproject.toml").open("a").write("\n# changed\n")
    commit_all(ahead.top, "second")
    (ahead.top / "README").write_text("words\n")
    commit_all(ahead.top, "third")
    refs = {"a": first, "b": ahead.git("rev-parse", "HEAD~1"), "c": "main"}
    plan = ahead.write(*({"id": name, "prompt": "true", "ref": ref} for name, ref in refs.items()))
    done = ahead.command("precache", "--no-environments", "--json", plan)
    assert (done.returncode, ahead.builds()) == (0, 0)
    assert json.loads(done.stdout)["repositories"][0]["environments"] == []
    (limited,) = ahead.command.load("precache", "--limit", "1", plan)["repositories"]
    assert ([one["tasks"] for one in limited["environments"]], ahead.builds()) == ([["a"]], 1)
    (record,) = ahead.command.load("precache", plan)["repositories"]
    built = [(one["tasks"], one["cached"]) for one in record["environments"]]
    assert built == [(["a"], True), (["b", "c"], False)]
    assert (ahead.builds(), ahead.left()) == (2, [])


@pytest.mark.slow
def test_worktrees_of_the_repository_where_a_session_begins(ahead: Ahead) -> None:
    """What `.worktreeinclude` brings counts, too."""
    ahead.command.cwd = ahead.top
    (ahead.top / ".worktreeinclude").write_text("inner/uv.lock\n")
    (ahead.top / ".gitignore").write_text("uv.lock\n")
    commit_all(ahead.top, "rules")
    (ahead.top / "inner" / "requirements.txt").write_text("")
    (ahead.top / "inner" / "uv.lock").write_text("[]\n")
    plan = ahead.root / "here.json"
    tasks = [{"id": "a", "prompt": "demo", "workspace": "worktree", "cwd": "repo/inner"}]
    plan.write_text(json.dumps({"prompts": tasks, "defaults": {"environment": "python"}}))
    (refused,) = ahead.require(str(plan))["tasks"]
    assert refused["reason_class"] == "environment_failed" and "and nothing may be built" in refused["reason"]
    (record,) = ahead.command.load("precache", str(plan))["repositories"]
    assert (record["repo"], record["mirror"], record["refs"]) == (
        str(ahead.top),
        None,
        [{"ref": "main", "commit": ahead.git("rev-parse", "HEAD")}],
    )
    (task,) = ahead.require(str(plan))["tasks"]
    assert (task["outcome"], task["environment"]["digest"]) == ("succeeded", record["environments"][0]["digest"])
    assert ahead.git("status", "--porcelain") == "?? inner/requirements.txt"
    assert ahead.git("branch", "--format=%(refname:short)") == "main"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Temporary files lie on another file system than the cache, where there is one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as made:
        monkeypatch.setenv("TMPDIR", made)
        yield Path(made)


@pytest.mark.slow
def test_a_build_that_fails_is_one_line_with_the_place_of_its_log(ahead: Ahead, memory: Path) -> None:
    (ahead.top / "inner" / "broken").touch()
    commit_all(ahead.top, "broken")
    commit = ahead.git("rev-parse", "HEAD")
    ahead.git("commit", "-q", "--allow-empty", "-m", "the same files")
    plan = ahead.write({"id": "a", "prompt": "true", "ref": commit}, {"id": "b", "prompt": "true"})
    done = ahead.command("precache", plan)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1] == "0 of 1 environments are in the cache"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert "editable and pytest: exit code 1: RuntimeError: the build of demo failed" in line
    kept = Path(line.rpartition(", see ")[2])
    assert "the build of demo failed" in (kept / "environment.log").read_text()
    assert (ahead.builds(), ahead.left(), list(memory.iterdir())) == (1, [kept.name], [])
    (gone,) = [one for one in ahead.command.load("clean", "--cache")["findings"] if one["name"] == str(kept)]
    assert gone["removed"]
    plan = ahead.write({"id": "a", "prompt": "true", "environment": {"kind": "python", "python": "9.99"}})
    done = ahead.command("precache", "--json", plan)
    (environment,) = json.loads(done.stdout)["repositories"][0]["environments"]
    assert (done.returncode, environment["digest"], environment["error"]) == (1, None, "there is no Python 9.99")


def test_a_repository_that_fails_builds_nothing(ahead: Ahead) -> None:
    plan = ahead.write({"id": "a", "prompt": "true", "ref": "nope"})
    done = ahead.command("precache", "--json", plan)
    (record,) = json.loads(done.stdout)["repositories"]
    assert (done.returncode, record["environments"], ahead.builds()) == (1, [], 0)


PATCH = """\
diff --git a/test_new.py b/test_new.py
new file mode 100644
--- /dev/null
+++ b/test_new.py
@@ -0,0 +1 @@
+def test_new(): pass
"""


@pytest.mark.slow
def test_the_clean_room_of_hidden_tests_finds_its_environment(ahead: Ahead) -> None:
    """Their patch adds a module beside the project; tags of the mirror are not in the task's repository."""
    lay_out_project(ahead.top)
    (ahead.top / "setup.cfg").write_text(USES_TAGS)
    commit_all(ahead.top, "at the top")
    ahead.git("tag", "v2")
    instance = {
        "instance_id": "own__one-1",
        "repo": str(ahead.top),
        "base_commit": ahead.git("rev-parse", "HEAD"),
        "problem_statement": "true",
        "patch": "",
        "test_patch": PATCH,
        "FAIL_TO_PASS": ["test_new.py::test_new"],
        "PASS_TO_PASS": [],
    }
    (ahead.root / "instances.jsonl").write_text(json.dumps(instance) + "\n")
    (ahead.root / "template").write_text("{problem_statement}\n")
    # for precache and run: the wheels of the test are hidden inside of walls
    (ahead.command.cwd / "sessionrun.toml").write_text('[sandbox]\npolicy = "none"\n')
    words = ("--cache-dir", str(ahead.cache), "--from", "swebench")
    (record,) = ahead.command.load("precache", *words, "instances.jsonl")["repositories"]
    digests = [one["digest"] for one in record["environments"]]
    assert (len(set(digests)), ahead.builds(), ahead.left()) == (2, 2, [])
    options = ("--prompt-template", "template", "--run-name", "r", "--require-cache", "--agent", "shell", "--sync")
    done = ahead.command("run", "--json", *words, *options, "instances.jsonl")
    shown = json.loads(done.stdout)
    assert shown["tasks"][0]["environment"]["digest"] == digests[0], shown["tasks"][0]["reason"]
    (report,) = ahead.root.glob("**/*-prove*/environment.json")
    found = json.loads(report.read_text())
    assert (found["problem"], found["made"]["digest"], found["made"]["cached"]) == (None, digests[1], True)
    assert ahead.builds() == 2
