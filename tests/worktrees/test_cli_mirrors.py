"""Tasks with repositories of their own, as a user sees them: run, results, diff, precache, clean --cache."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from stages import git, make_program, make_repository_of

from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.git.mirrors import locate_mirror
from sessionrun.store.trees import lock_path


class Place:
    """Two repositories, and the command in a directory that is in none."""

    def __init__(self, root: Path, command: Command) -> None:
        self.root = root
        self.command = command
        self.cache = root / "cache"
        for name in ("one", "two"):
            top = root / name
            make_repository_of(top, {"sub/name.txt": f"{name}\n"})

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
