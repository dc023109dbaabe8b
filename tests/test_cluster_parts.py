"""What sessions on a cluster have as any others do: queues, mends, proofs, and the branch on which work lands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from clusters import real_cluster
from conftest import Command
from test_cluster import git, make_repository
from test_dispatch import WORKER, Dispatcher, write
from test_mending import JOIN, Yard, clash
from test_prove import CHECK, FIX
from test_prove import make_repository as make_tested_repository

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.mark.slow
def test_a_queue_is_worked_through_on_nodes(sessionrun: Command) -> None:
    """What an agent writes down on a node comes into the queue, and its worktree is gone by then."""
    repository = make_repository(sessionrun.cwd)
    (repository / "sessionrun.toml").write_text(WORKER)
    project = Dispatcher(sessionrun.cwd, sessionrun.results)
    git(repository, "config", "user.name", "Ann")
    git(repository, "config", "user.email", "ann@example.org")
    with real_cluster(sessionrun) as cluster:
        (first,) = project.add(write("one"))
        (second,) = project.add("echo bad > bad.txt; exit 3")
        more = "echo 'cp two.txt three.txt' >> suggested_tasks.txt"
        (last,) = project.add(f"cat one.txt > two.txt; {more}", depends=(first,))
        session_id = project.dispatch("--cluster", cluster.address, "--ingest", "5")
        view = project.wait(session_id)
        (made,) = project.tasks().keys() - {first, second, last}
        assert project.stand() == {first: "closed", second: "open", last: "closed", made: "closed"}
        assert git(repository, "show", "main:three.txt") == "one"  # each began where the branch was by then
        assert git(repository, "ls-tree", "--name-only", "main").split() == [
            "f",
            "one.txt",
            "three.txt",
            "two.txt",
        ]
        assert git(repository, "log", "--format=%an", "--grep=^one$", "main") == "Ann"
        assert all("@" in task["node"] for task in view["tasks"]) and not list(repository.glob("worktrees/*"))
        (repository / "dispatch_config.json").write_text('{"worktree_placement": "sibling"}')
        refused = project("dispatch", "--agent", "worker", "--cluster", cluster.address)
        assert refused.returncode == 2 and "worktree_placement: worktrees that stay" in refused.stderr


@pytest.mark.slow
def test_a_conflict_is_mended_on_a_node(sessionrun: Command, own_place: Path) -> None:
    yard = Yard(sessionrun, own_place)
    with real_cluster(sessionrun) as cluster:
        needs = {"id": "c", "prompt": "run: cp f g", "needs": ["a", "b"], "base": "session"}
        words = ("--cluster", cluster.address)
        tasks = yard.run({**clash(needs), "max_parallel": 2}, JOIN, *words, inside=False)
        assert yard.view["outcome"] == "succeeded"
        (mend,) = (task for name, task in tasks.items() if "-mend-" in name)
        owner = tasks[mend["id"].removesuffix("-mend-1")]
        assert [tasks[name]["landing"]["status"] for name in ("a", "b", "c", mend["id"])] == ["landed"] * 4
        assert sorted(yard.git("show", "main:f").split()) == ["a", "b"]
        assert yard.git("rev-list", "--parents", "--no-walk", mend["commit"]).split()[2] == owner["commit"]
        assert mend["base_commit"] not in yard.git("rev-list", "main").split() and "@" in mend["node"]


@pytest.mark.slow
def test_work_is_proved_where_it_was_done(sessionrun: Command) -> None:
    """Also a second time, after the branch has come home under another name."""
    make_tested_repository(sessionrun.cwd)
    git(sessionrun.cwd, "branch", "main-task-good")  # taken here, and on no node
    then_fix = f"if [ -e tests/skip ]; then rm tests/skip; {FIX}; else touch tests/skip; fi"
    proved = {"check": [CHECK], "prove": True}
    plan = [
        {"id": "good", "prompt": FIX, **proved},
        {"id": "weak", "prompt": "touch tests/skip", **proved},
        {"id": "again", "prompt": then_fix, "rounds": 2, **proved},
    ]
    with real_cluster(sessionrun) as cluster:
        session_id = sessionrun.start(plan, "--worktree", "--land", "--cluster", cluster.address)
        good, weak, again = sessionrun.wait(session_id)["tasks"]
        assert (good["proof"], weak["proof"], again["proof"]) == ("proved", "weakened", "proved")
        assert (weak["outcome"], weak["reason_class"], again["round"]) == ("failed", "weakened", 2)
        assert good["branch"] == "main-task-good-2" and good["landing"]["status"] == "landed"
        for task in (good, weak, again):
            assert git(sessionrun.cwd, "rev-parse", task["branch"]) == task["commit"]
        assert git(sessionrun.cwd, "branch", "--list", "main-task-*").split() == [
            "main-task-again",
            "main-task-good",
            "main-task-good-2",
            "main-task-weak",
        ]
        assert not list(sessionrun.directory(session_id).glob("jobs/*/*-prove/objects"))
