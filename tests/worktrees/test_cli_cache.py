"""What is in the cache, as a user sees it: tasks with repositories of their own, and with environments.

Setup, agent and check work in an environment, and it goes with the worktree.  `precache` fetches mirrors, and
builds environments ahead, each once, and leaves nothing else.  `clean --cache` takes away what nothing needs.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from python_projects import lay_out_project, make_uv, make_wheels
from stages import commit_all, git, make_program, make_repository_of

from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.git.mirrors import locate_mirror
from sessionrun.store.trees import lock_path


class Place:
    """Two repositories, each with its kind of names of objects, and the command in a directory that is in none."""

    def __init__(self, root: Path, command: Command) -> None:
        self.root = root
        self.command = command
        self.cache = root / "cache"
        for name, names in (("one", "sha1"), ("two", "sha256")):
            make_repository_of(root / name, {"sub/name.txt": f"{name}\n"}, names)

    def write(self, plan: object) -> str:
        (self.root / "plan.json").write_text(json.dumps(plan))
        return "plan.json"

    def run(self, plan: object, *words: str) -> dict[str, Any]:
        """Run a plan on scripts to its end; its status."""
        done = self.command.to_end("run", "-q", "--agent", "shell", *words, self.write(plan))
        assert done.returncode == 0, done.stderr
        return self.command.status(done.stdout.strip())

    def mirror(self, name: str) -> Path:
        return locate_mirror(self.cache, str(self.root / name))


@pytest.fixture
def place(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("SESSIONRUN_CACHE_DIR", str(own_place / "cache"))
    return Place(own_place, sessionrun)


def outcomes(status: Mapping[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {task["id"]: (task["outcome"], task["reason_class"]) for task in status["tasks"]}


TWO = {
    "prompts": [
        {"id": "a", "prompt": "cat sub/name.txt; echo new > new.txt", "repo": "./one"},
        {"id": "b", "prompt": "cat name.txt; echo more >> name.txt", "repo": "./two", "ref": "main", "cwd": "sub"},
        {"id": "c", "prompt": "cat new.txt; echo 3 > 3", "repo": "./one", "needs": ["a"]},
        {"id": "d", "prompt": "pwd", "repo": "./two"},
        {"id": "e", "prompt": "pwd"},
    ]
}


def test_tasks_of_two_repositories_work_in_mirrors_and_their_branches_come_home(place: Place) -> None:
    """A name that is taken in the local repository gets a number."""
    git(place.root / "two", "branch", "main-task-b")
    status = place.run(TWO)
    assert outcomes(status) == dict.fromkeys("abcde", ("succeeded", None))
    tasks = {task["id"]: task for task in status["tasks"]}
    one = git(place.root / "one", "rev-parse", "main")
    assert tasks["a"]["repo"] == str(place.root / "one")
    assert (tasks["a"]["ref"], tasks["a"]["ref_name"], tasks["a"]["ref_commit"]) == (None, "main", one)
    assert tasks["c"]["base_commit"] == tasks["a"]["commit"]
    assert tasks["e"]["repo"] is None
    for name, branches in (("one", {"main-task-a", "main-task-c"}), ("two", {"main-task-b", "main-task-b-2"})):
        listed = git(place.root / name, "branch", "--format=%(refname:short)").split("\n")
        assert set(listed) == {"main", *branches}
        assert git(place.root / name, "status", "--porcelain") == ""
    assert git(place.root / "two", "show", "main-task-b-2:sub/name.txt") == "two\nmore"
    assert tasks["b"]["diff_stat"] == {"files": 1, "insertions": 1, "deletions": 0}
    assert not any(task["worktree"] or task["worktree_remark"] for task in status["tasks"])
    results = place.command("results", status["session_id"]).stdout
    assert f"\n  branch main-task-c in {place.root}/one: 1 file +1 -0\n" in results
    diff = place.command("diff", status["session_id"], "--task", "b")
    assert "+more" in (diff.stdout or place.command("diff", status["session_id"], "b").stdout)
    session = place.command.directory(status["session_id"])
    assert str(place.cache) in (session / "task-d.txt").read_text()
    assert (session / "task-e.txt").read_text().strip() == str(place.root)
    assert place.command("explain", status["session_id"]).returncode == 0


@pytest.mark.slow
def test_bringing_a_branch_home_runs_no_hook_and_no_setting_of_either_side(place: Place) -> None:
    mark = place.root / "ran"
    evil = make_program(place.root / "evil", f"touch {mark}")
    plant = (
        f'for d in {place.root}/one/.git "$(git rev-parse --git-common-dir)"; do mkdir -p $d/hooks; '
        f"for h in reference-transaction post-checkout update pre-receive; do cp {evil} $d/hooks/$h; done; "
        f"git config --file $d/config core.fsmonitor {evil}; git config --file $d/config core.hooksPath $d/hooks; "
        f"git config --file $d/config uploadpack.packObjectsHook {evil}; done; echo x > x"
    )
    status = place.run({"prompts": [{"id": "a", "prompt": plant, "repo": "./one"}]})
    assert outcomes(status) == {"a": ("succeeded", None)}
    assert not mark.exists()
    again = place.run({"prompts": [{"id": "b", "prompt": "true", "repo": "./one"}]})
    assert outcomes(again) == {"b": ("succeeded", None)}
    assert not mark.exists()
    assert git(place.root / "one", "rev-parse", "--verify", "refs/heads/main-task-a")


@pytest.mark.parametrize("variable", [None, "SESSIONRUN_REQUIRE_CACHE", "SWEBENCH_REQUIRE_CACHE"])
def test_the_cache_is_named_and_required_by_the_configuration_or_a_variable(
    place: Place, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    if variable is None:
        monkeypatch.delenv("SESSIONRUN_CACHE_DIR")
        (place.root / "sessionrun.toml").write_text('cache_dir = "mine"\nrequire_cache = true\n')
    else:
        monkeypatch.setenv(variable, "1")
    monkeypatch.chdir(place.root)
    for given, required in (({}, True), ({"require_cache": False}, False)):
        planned = plan_input({"prompts": TWO["prompts"][:1]}, {"agent": "shell", **given})
        assert isinstance(planned, Planned) and planned.spec.mirrors is not None
        cache_dir = str(place.root / ("cache" if variable else "mine"))
        assert (planned.spec.mirrors.cache_dir, planned.spec.mirrors.require_cache) == (cache_dir, required)


@pytest.mark.slow
def test_a_mirror_of_the_repository_where_the_command_is_started(place: Place, sessionrun: Command) -> None:
    sessionrun.cwd = place.root / "one" / "sub"
    plan = [{"id": "a", "prompt": "cat name.txt; pwd; echo x > x", "workspace": "mirror"}]
    (place.root / "one" / "sub" / "unsaved").write_text("")
    done = sessionrun.to_end("run", "-q", "--agent", "shell", str(place.root / place.write(plan)))
    status = sessionrun.status(done.stdout.strip())
    assert outcomes(status) == {"a": ("succeeded", None)}
    assert git(place.root / "one", "show", "main-task-a:sub/x") == "x"


def test_precache_names_what_failed_and_ends_with_1(place: Place) -> None:
    tasks = [
        *TWO["prompts"][:1],
        {"prompt": "x", "repo": "./gone"},
        {"prompt": "x", "repo": "./one", "ref": "nope"},
    ]
    file = place.write(tasks)
    done = place.command("precache", file, "--json")
    assert done.returncode == 1
    one, gone = json.loads(done.stdout)["repositories"]
    assert one["error"] == f"{place.root}/one has no branch, tag or commit nope"
    assert [ref["commit"] is None for ref in one["refs"]] == [False, True]
    assert gone["error"].startswith(f"{place.root}/gone cannot be fetched: ")
    assert place.command("precache", file, "--limit", "1").returncode == 0
    place.write([{"prompt": "x"}])
    done = place.command("precache", file)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
def test_clean_cache_takes_what_nothing_needs(place: Place) -> None:
    """And keeps a mirror that alone holds work."""
    place.command("precache", place.write(TWO))
    git(place.root / "two", "bundle", "create", "-q", str(place.root / "x.bundle"), "--all", "HEAD")
    place.run({"prompts": [{"id": "b", "prompt": "echo x > x", "repo": "x.bundle"}]})
    other = locate_mirror(place.cache, str(place.root / "two"))
    kept = place.run(
        {"prompts": [{"id": "a", "prompt": "echo x > x", "repo": "./one"}]}, "--keep-worktree", "always"
    )
    old = time.time() - 40 * 86400
    for name in ("one", "two", "x.bundle"):
        os.utime(place.mirror(name) / "sessionrun-mirror.json", (old, old))
    assert place.command.load("clean", "--cache", "--older-than", "41d")["findings"] == []
    told = {
        one["name"]: one
        for one in place.command.load("clean", "--cache", "--older-than", "7d", "--dry-run")["findings"]
    }
    assert told[str(other)]["would_remove"] is True
    assert "it has worktrees: main-task-a " in told[str(place.mirror("one"))]["why"]
    assert told[str(place.mirror("x.bundle"))]["why"] == "branches of tasks in it hold work: main-task-b"
    assert other.is_dir()
    done = place.command("clean", "--cache", "--max-size", "1K")
    assert f"removed mirror {other}: " in done.stdout
    assert not other.exists()
    assert place.mirror("one").is_dir()
    cleaned = place.command("clean", "--worktrees", kept["session_id"])
    assert "removed worktree" in cleaned.stdout, cleaned.stderr
    gone = place.command.load("clean", "--cache")["findings"]  # its branch is in the local repository, too
    removed = {one["name"]: one["removed"] for one in gone}
    assert removed == {str(place.mirror("one")): True, str(place.mirror("x.bundle")): False}
    kept_names = {place.mirror("x.bundle").name, lock_path(place.mirror("x.bundle")).name}
    assert {path.name for path in place.mirror("one").parent.iterdir()} == kept_names


@pytest.mark.slow
def test_clean_brings_home_what_came_later_into_a_kept_worktree(place: Place) -> None:
    """But not under the feet of a user: neither into a checkout, nor over commits of theirs."""
    tasks = [{"id": name, "prompt": "echo x > x", "repo": "./one"} for name in "abcd"]
    status = place.run({"prompts": tasks}, "--keep-worktree", "always")
    home = place.root / "one"
    for task in status["tasks"]:
        Path(task["worktree"], "later").write_text(task["id"])
    before = {name: git(home, "rev-parse", f"main-task-{name}") for name in "abcd"}
    git(home, "checkout", "-q", "main-task-b")
    git(home, "worktree", "add", "-q", str(place.root / "wt"), "main-task-c")
    git(place.root / "wt", "commit", "-q", "--allow-empty", "-m", "a user's own")
    own = git(place.root / "wt", "rev-parse", "HEAD")
    git(home, "worktree", "remove", str(place.root / "wt"))
    dry = place.command("clean", "--worktrees", "--dry-run", status["session_id"])
    assert (dry.returncode, git(home, "rev-parse", "main-task-a")) == (0, before["a"])
    cleaned = place.command.load("clean", "--worktrees", status["session_id"])["findings"]
    why = {one["name"]: one["why"] for one in cleaned if one["what"] == "branch"}
    stays = "it holds work that is not merged"
    assert [why[f"main-task-{name}"] == stays for name in "abcd"] == [True, False, False, True]
    assert [git(home, "show", f"main-task-{name}:later") for name in "ad"] == ["a", "d"]
    only = f"{stays}; its branch is only in {place.mirror('one')}: "
    assert why["main-task-b"] == f"{only}main-task-b is checked out in {home}/.git"
    assert why["main-task-c"].startswith(only)
    assert git(home, "rev-parse", "main-task-b") == before["b"]
    assert git(home, "rev-parse", "main-task-c") == own
    assert git(place.mirror("one"), "show", "main-task-b:later") == "b"


@pytest.mark.slow
def test_doctor_says_whose_mirror_is_gone(place: Place) -> None:
    """Of worktrees that are left; the work is in the session."""
    tasks = [{"id": name, "prompt": "echo x > x", "repo": f"./{name}"} for name in ("one", "two")]
    status = place.run({"prompts": tasks}, "--keep-worktree", "always")
    place.mirror("one").rename(place.root / "away")
    (finding,) = json.loads(place.command("doctor", "--json", status["session_id"]).stdout)["findings"]
    tree = status["tasks"][0]["worktree"]
    assert (finding["where"], finding["what"]) == (tree, f"its repository {place.mirror('one')} is gone")
    assert "+x" in place.command("diff", status["session_id"], "one").stdout


@contextmanager
def daemon(root: Path) -> Iterator[int]:
    """`git daemon` for all repositories below a directory, on a free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = f"--export-all --listen=127.0.0.1 --port={port} --base-path={root} --reuseaddr"
    with subprocess.Popen(["git", "daemon", *words.split()], stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


@pytest.mark.slow
def test_a_repository_on_the_network(place: Place) -> None:
    with daemon(place.root) as port:
        url = f"git://127.0.0.1:{port}/one"
        eventually(
            lambda: subprocess.run(["git", "ls-remote", url], capture_output=True, check=False).returncode == 0
        )
        status = place.run({"prompts": [{"id": "a", "prompt": "echo x > x", "repo": url}]})
        assert outcomes(status) == {"a": ("succeeded", None)}
        there = locate_mirror(place.cache, url)
        assert f"\n  branch main-task-a in {there}: 1 file +1 -0\n" in place.command("results").stdout
    status = place.run({"prompts": [{"id": "b", "prompt": "true", "repo": url}]})
    assert outcomes(status) == {"b": ("failed", "repository_failed")}
    assert "unable to connect" in status["tasks"][0]["reason"]
    assert outcomes(place.run({"prompts": [{"id": "b", "prompt": "true", "repo": url}]}, "--require-cache")) == {
        "b": ("succeeded", None)
    }


@pytest.mark.slow
def test_sixteen_tasks_of_one_mirror_at_once_fail_at_no_lock(place: Place) -> None:
    tasks = [{"id": f"t{n}", "prompt": f"echo {n} > {n}", "repo": "./one", "setup": "true"} for n in range(16)]
    status = place.run({"prompts": tasks, "max_parallel": 16})
    assert set(outcomes(status).values()) == {("succeeded", None)}
    branches = git(place.root / "one", "branch", "--format=%(refname:short)").split("\n")
    assert set(branches) == {"main", *(f"main-task-t{n}" for n in range(16))}


# --- environments ---


class Shop:
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
def shop(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_place / "xdg"))
    monkeypatch.delenv("PYTHONHOME", raising=False)
    return Shop(own_place, sessionrun, monkeypatch)


SEEN = "demo > $OUT; pytest >> $OUT; echo $VIRTUAL_ENV >> $OUT; command -v python >> $OUT"


def test_setup_agent_and_check_work_in_the_environment_of_their_task(shop: Shop) -> None:
    """And neither what it consists of nor what the install compiled in the checkout is work."""
    files = {name: shop.root / f"{name}.txt" for name in ("setup", "work", "check", "other")}
    seen = {name: SEEN.replace("$OUT", str(file)) for name, file in files.items()}
    tasks = shop.run(
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
        assert demo.startswith(f"demo at {shop.root}/repo-worktrees/")
        assert demo.endswith(f"-task-{task}/src/demo/__init__.py")
        assert (pytest_, virtual, python) == (f"pytest in {env}", env, f"{env}/bin/python")
    assert [made[name]["cached"] for name in "abc"] == [False, True, True]
    assert len({made[name]["digest"] for name in "abc"}) == 1
    assert made["a"]["choice"] == "editable with [test]"
    assert "editable with [test]" in [step["name"] for step in made["a"]["steps"]]
    assert shop.builds() == 1
    assert shop.in_use() == []
    argv = ["git", "diff", "--name-only", "main", tasks["a"]["branch"]]
    changed = subprocess.run(argv, cwd=shop.top, capture_output=True, text=True, check=True)
    assert changed.stdout.split() == ["new"]
    assert [tasks[name]["branch"] for name in "bc"] == [None, None]
    assert tasks["c"]["reason_class"] == "setup_failed"


@pytest.mark.parametrize("into", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_uv_nothing_starts(shop: Shop, monkeypatch: pytest.MonkeyPatch, *, into: bool) -> None:
    """Not at the launch, nor is such a task added."""
    shop.command.cwd = shop.top
    first = {"prompts": [{"prompt": "sleep 600", "environment": "python"}]}
    session_id = shop.command.start(first, "--worktree") if into else None
    words = ("--into", session_id) if session_id else ("--agent", "shell")
    folders = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(name for name in folders if not Path(name, "uv").exists()))
    plan = shop.root / "plan.json"
    plan.write_text(json.dumps({"prompts": [{"id": "a", "prompt": "true", "environment": "python"}]}))
    done = shop.command("run", "--worktree", *words, str(plan))
    said = "environment of task a: it is made by uv, which is not on PATH: pip install uv\n"
    assert (done.returncode, done.stderr.endswith(said)) == (2, True), done.stderr
    assert len(list(shop.command.results.glob("session-*"))) == int(into)


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_is_told_from_work_and_setup(shop: Shop) -> None:
    (shop.top / "broken").touch()
    commit_all(shop.top, "broken")
    tasks = shop.run(
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
    (folder,) = shop.job("a", "").glob("a1-*-setup*")
    report = json.loads((folder / "environment.json").read_text())
    assert report["made"]["steps"][-1]["name"] == "editable and pytest"
    assert "the build of demo failed" in (folder / "environment.log").read_text()


@pytest.mark.slow
def test_gates_run_in_an_environment_of_what_they_try(shop: Shop) -> None:
    """By itself, and with `merge`; it is no task's, goes after the gates, and what has none does not land."""
    seen = shop.root / "gate.txt"
    gate = ("--gate", SEEN.replace("$OUT", str(seen)))
    bad = {"id": "bad", "prompt": "touch broken; echo '# new' >>pyproject.toml", "needs": "a", "base": "session"}
    tasks = shop.run([{"id": "a", "prompt": "touch new"}, bad], "--land", *gate)
    assert tasks["a"]["landing"]["status"] == "landed", tasks["a"]["landing"]
    landing = tasks["bad"]["landing"]
    assert (landing["status"], landing["reason_class"]) == ("bounced", "gate_red")
    assert "its environment: editable and pytest: exit code 1" in landing["reason"]
    assert "the build of demo failed" in Path(landing["output"]).read_text()
    other = shop.run([{"id": "b", "prompt": "touch newer"}])
    assert shop.in_use() == []
    first = seen.read_text().splitlines()
    done = shop.command("merge", shop.command.sessions[-1], "--json", *gate)
    assert done.returncode == 0, done.stderr
    assert [task["status"] for task in json.loads(done.stdout)["tasks"]] == ["landed"]
    for demo, pytest_, virtual, python in (first, seen.read_text().splitlines()):
        assert demo.startswith(f"demo at {shop.root}/repo-worktrees/.gate-")
        assert (pytest_, python) == (f"pytest in {virtual}", f"{virtual}/bin/python")
        assert virtual not in (tasks["a"]["environment"]["path"], other["b"]["environment"]["path"])
    assert shop.in_use() == []


# --- proof ---

PATCHED = "grep -rl 'pytest in' $VIRTUAL_ENV/lib | xargs sed -i 's/pytest in/patched/'"
"""Edits a dependency where it is installed for the task."""


@pytest.mark.slow
def test_a_proof_has_environments_of_its_own(shop: Shop) -> None:
    """What the agent did to its own environment, also a git of its own in it, counts for nothing."""
    planted = "printf '#!/bin/sh\\nexit 1\\n' > $VIRTUAL_ENV/bin/git; chmod +x $VIRTUAL_ENV/bin/git"
    patches = {"check": "pytest | grep -q patched", "prove": True}
    works = {"check": {"commands": "grep -q good answer && pytest && demo", "prove": True}}
    tasks = shop.run(
        [
            {"id": "patches", "prompt": f"{PATCHED}; echo good > answer", **patches},
            {"id": "works", "prompt": f"echo good > answer; {PATCHED}; {planted}", **works},
        ]
    )
    assert {name: (task["outcome"], task["proof"]) for name, task in tasks.items()} == {
        "patches": ("failed", "unproved"),
        "works": ("succeeded", "proved"),
    }
    assert shop.in_use() == []
    (folder,) = shop.job("works", "").glob("a1-*-prove*")
    reports = [json.loads(path.read_text()) for path in folder.glob("*-environment/environment.json")]
    assert reports and all(report["made"]["cached"] for report in reports)
    assert "pytest in " in (folder / "result.txt").read_text(), "not the patched one"


# --- built ahead ---

USES_TAGS = "[options]\nsetup_requires = setuptools_scm\n"


class Ahead(Shop):
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
