"""`precache` builds the environments that a run asks for, each once, and leaves nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from python_projects import PythonPlace, lay_out_project
from stages import commit_all, git

USES_TAGS = "[options]\nsetup_requires = setuptools_scm\n"


class Place(PythonPlace):
    """One whose project has its tag as its version."""

    def __init__(self, root: Path, command: Command) -> None:
        super().__init__(root, command, "cache", "inner", USES_TAGS)
        self.git("tag", "v1")
        self.environments = self.cache / "environments"

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
def place(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("SESSIONRUN_CACHE_DIR", str(own_place / "cache"))
    monkeypatch.setenv("PATH", os.pathsep.join((str(own_place / "bin"), os.environ["PATH"])))
    return Place(own_place, sessionrun)


@pytest.mark.slow
def test_what_precache_builds_is_what_a_run_asks_for(place: Place) -> None:
    plan = place.write({"id": "a", "prompt": "demo"}, {"id": "b", "prompt": "pytest"})
    done = place.command("precache", plan)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 of 1 repositories are in the cache\n1 of 1 environments are in the cache\n"
    lines = done.stderr.splitlines()
    assert "building the environment of task a and 1 more" in lines
    assert lines[-1].startswith("built the environment of task a and 1 more in ")
    assert (place.builds(), len(place.entries()), place.left()) == (1, 1, [])
    status = place.require(plan)
    assert [(task["outcome"], task["reason"]) for task in status["tasks"]] == [("succeeded", None)] * 2
    made = [task["environment"] for task in status["tasks"]]
    assert [(one["digest"], one["cached"]) for one in made] == [(place.entries()[0], True)] * 2
    assert place.builds() == 1
    (record,) = place.command.load("precache", plan)["repositories"]
    (environment,) = record["environments"]
    assert (environment["digest"], environment["cached"]) == (place.entries()[0], True)
    assert (environment["tasks"], environment["error"], environment["log"]) == (["a", "b"], None, None)
    assert environment["path"] == str(place.environments / place.entries()[0])
    assert place.builds() == 1


@pytest.mark.slow
def test_a_build_for_each_digest_and_none_without_the_wish(place: Place) -> None:
    """Two commits of which the second changes what counts, and a third that does not."""
    first = place.git("rev-parse", "HEAD")
    (place.top / "inner" / "pyproject.toml").open("a").write("\n# changed\n")
    commit_all(place.top, "second")
    (place.top / "README").write_text("words\n")
    commit_all(place.top, "third")
    refs = {"a": first, "b": place.git("rev-parse", "HEAD~1"), "c": "main"}
    plan = place.write(*({"id": name, "prompt": "true", "ref": ref} for name, ref in refs.items()))
    done = place.command("precache", "--no-environments", "--json", plan)
    assert (done.returncode, json.loads(done.stdout)["repositories"][0]["environments"], place.builds()) == (
        0,
        [],
        0,
    )
    (limited,) = place.command.load("precache", "--limit", "1", plan)["repositories"]
    assert ([one["tasks"] for one in limited["environments"]], place.builds()) == ([["a"]], 1)
    (record,) = place.command.load("precache", plan)["repositories"]
    built = [(one["tasks"], one["cached"]) for one in record["environments"]]
    assert built == [(["a"], True), (["b", "c"], False)]
    assert (place.builds(), place.left()) == (2, [])


@pytest.mark.slow
def test_worktrees_of_the_repository_where_a_session_begins(place: Place) -> None:
    """What `.worktreeinclude` brings counts, too."""
    place.command.cwd = place.top
    (place.top / ".worktreeinclude").write_text("inner/uv.lock\n")
    (place.top / ".gitignore").write_text("uv.lock\n")
    commit_all(place.top, "rules")
    (place.top / "inner" / "requirements.txt").write_text("")
    (place.top / "inner" / "uv.lock").write_text("[]\n")
    plan = place.root / "here.json"
    tasks = [{"id": "a", "prompt": "demo", "workspace": "worktree", "cwd": "repo/inner"}]
    plan.write_text(json.dumps({"prompts": tasks, "defaults": {"environment": "python"}}))
    (refused,) = place.require(str(plan))["tasks"]
    assert refused["reason_class"] == "environment_failed" and "and nothing may be built" in refused["reason"]
    (record,) = place.command.load("precache", str(plan))["repositories"]
    assert (record["repo"], record["mirror"], record["refs"]) == (
        str(place.top),
        None,
        [{"ref": "main", "commit": place.git("rev-parse", "HEAD")}],
    )
    (task,) = place.require(str(plan))["tasks"]
    assert (task["outcome"], task["environment"]["digest"]) == ("succeeded", record["environments"][0]["digest"])
    assert place.git("status", "--porcelain") == "?? inner/requirements.txt"
    assert place.git("branch", "--format=%(refname:short)") == "main"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Temporary files lie on another file system than the cache, where there is one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as made:
        monkeypatch.setenv("TMPDIR", made)
        yield Path(made)


@pytest.mark.slow
def test_a_build_that_fails_is_one_line_with_the_place_of_its_log(place: Place, memory: Path) -> None:
    (place.top / "inner" / "broken").touch()
    commit_all(place.top, "broken")
    commit = place.git("rev-parse", "HEAD")
    place.git("commit", "-q", "--allow-empty", "-m", "the same files")
    plan = place.write({"id": "a", "prompt": "true", "ref": commit}, {"id": "b", "prompt": "true"})
    done = place.command("precache", plan)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1] == "0 of 1 environments are in the cache"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert "editable and pytest: exit code 1: RuntimeError: the build of demo failed" in line
    kept = Path(line.rpartition(", see ")[2])
    assert "the build of demo failed" in (kept / "environment.log").read_text()
    assert (place.builds(), place.left(), list(memory.iterdir())) == (1, [kept.name], [])
    (gone,) = [one for one in place.command.load("clean", "--cache")["findings"] if one["name"] == str(kept)]
    assert gone["removed"]
    plan = place.write({"id": "a", "prompt": "true", "environment": {"kind": "python", "python": "9.99"}})
    done = place.command("precache", "--json", plan)
    (environment,) = json.loads(done.stdout)["repositories"][0]["environments"]
    assert (done.returncode, environment["digest"], environment["error"]) == (1, None, "there is no Python 9.99")


def test_a_repository_that_fails_builds_nothing(place: Place) -> None:
    plan = place.write({"id": "a", "prompt": "true", "ref": "nope"})
    done = place.command("precache", "--json", plan)
    (record,) = json.loads(done.stdout)["repositories"]
    assert (done.returncode, record["environments"], place.builds()) == (1, [], 0)


@pytest.mark.slow
def test_a_precache_that_is_broken_off_leaves_nothing_that_is_trusted(place: Place) -> None:
    """By Ctrl+C in the middle of a build; the next one builds anew, and clears away."""
    hold = place.root / "hold"
    program = place.root / "bin" / "uv"
    whole = program.read_text()
    program.write_text(whole.replace("exec ", f'[ "$1" != pip ] || {{ touch {hold}; exec sleep 600; }}\nexec ', 1))
    plan = place.write({"id": "a", "prompt": "true"})
    process = place.command.popen("precache", plan, stderr=subprocess.DEVNULL)
    eventually(hold.exists)
    assert place.entries()[0].startswith(".new-")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    program.write_text(whole)
    assert [name for name in place.entries() if len(name) == 40] == []
    assert place.command("precache", plan).returncode == 0
    assert (len(place.entries()), place.left()) == (1, [])
    assert place.require(plan)["tasks"][0]["outcome"] == "succeeded"


PATCH = """\
diff --git a/test_new.py b/test_new.py
new file mode 100644
--- /dev/null
+++ b/test_new.py
@@ -0,0 +1 @@
+def test_new(): pass
"""


@pytest.mark.slow
def test_the_clean_room_of_hidden_tests_finds_its_environment(place: Place) -> None:
    """Their patch adds a module beside the project; tags of the mirror are not in the task's repository."""
    lay_out_project(place.top)
    (place.top / "setup.cfg").write_text(USES_TAGS)
    commit_all(place.top, "at the top")
    place.git("tag", "v2")
    instance = {
        "instance_id": "own__one-1",
        "repo": str(place.top),
        "base_commit": place.git("rev-parse", "HEAD"),
        "problem_statement": "true",
        "patch": "",
        "test_patch": PATCH,
        "FAIL_TO_PASS": ["test_new.py::test_new"],
        "PASS_TO_PASS": [],
    }
    (place.root / "instances.jsonl").write_text(json.dumps(instance) + "\n")
    (place.root / "template").write_text("{problem_statement}\n")
    # for precache and run: the wheels of the test are hidden inside of walls
    (place.command.cwd / "sessionrun.toml").write_text('[sandbox]\npolicy = "none"\n')
    words = ("--cache-dir", str(place.cache), "--from", "swebench")
    (record,) = place.command.load("precache", *words, "instances.jsonl")["repositories"]
    digests = [one["digest"] for one in record["environments"]]
    assert (len(set(digests)), place.builds(), place.left()) == (2, 2, [])
    options = ("--prompt-template", "template", "--run-name", "r", "--require-cache", "--agent", "shell", "--sync")
    done = place.command("run", "--json", *words, *options, "instances.jsonl")
    shown = json.loads(done.stdout)
    assert shown["tasks"][0]["environment"]["digest"] == digests[0], shown["tasks"][0]["reason"]
    (report,) = place.root.glob("**/*-prove*/environment.json")
    found = json.loads(report.read_text())
    assert (found["problem"], found["made"]["digest"], found["made"]["cached"]) == (None, digests[1], True)
    assert place.builds() == 2
