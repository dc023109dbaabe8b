"""What sessions on a cluster have as any others do: queues, mends, proofs, environments, tags."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from clusters import real_cluster
from conftest import Command
from python_projects import lay_out_project, make_uv, make_wheels
from stages import begin_repository, commit_all, git
from test_cli_mirrors import TWO, Place, outcomes, place
from test_cluster import make_repository
from test_dispatch import WORKER, Dispatcher, write
from test_environment_sessions import SEEN
from test_mending import JOIN, Yard, clash
from test_prove import CHECK, FIX
from test_prove import make_repository as make_tested_repository
from test_swebench_session import WAITED_ENOUGH, Bench, bench, changed, read_instances, read_predictions

from sessionrun.cli.facts import whereabouts_lines
from sessionrun.client.reading.view import show_as_it_lies

__all__ = ["bench", "place"]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def finish(command: Command, session_id: str) -> dict[str, Any]:
    """Wait for the end of a session, as long as it takes; its status."""
    while command("wait", session_id, "--through-holds", "--timeout", "60").returncode == WAITED_ENOUGH:
        pass
    return command.status(session_id)


def run(command: Command, *words: str) -> dict[str, Any]:
    """Run a session to its end, as long as it takes; its status."""
    done = command("run", "-q", *words)
    assert done.returncode == 0, done.stderr
    command.sessions.append(done.stdout.strip())
    return finish(command, command.sessions[-1])


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
        view = finish(project, session_id)
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
        yard.lay_out({**clash(needs), "max_parallel": 2}, JOIN)
        view = run(sessionrun, "--agent", "scripted", "--worktree", "--cluster", cluster.address, "plan.json")
        tasks = {task["id"]: task for task in view["tasks"]}
        assert view["outcome"] == "succeeded"
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
        good, weak, again = finish(sessionrun, session_id)["tasks"]
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


@pytest.mark.slow
def test_an_environment_is_made_on_the_node_of_its_task(sessionrun: Command, own_place: Path) -> None:
    """By the programs of the node, in its cache; it goes with the worktree.  Tags are there for its version."""
    top = own_place / "repo"
    top.mkdir()
    begin_repository(top)
    lay_out_project(top)
    commit_all(top)
    git(top, "tag", "-a", "-m", "first", "v1.0")
    sessionrun.cwd, sessionrun.results = top, top / "results"
    log = make_uv(own_place / "bin", make_wheels(own_place / "wheels"))
    cache = own_place / "xdg" / "sessionrun" / "environments"
    path = os.pathsep.join((str(own_place / "bin"), os.environ["PATH"]))
    files = {name: own_place / f"{name}.txt" for name in ("setup", "work", "check")}
    seen = {name: SEEN.replace("$OUT", str(file)) for name, file in files.items()}
    steps = {"setup": seen["setup"], "check": f"{seen['check']}; git describe | grep -qx 'v1.0.*'"}
    proved = {"check": "test -e made && demo", "prove": True, "needs": "a"}
    plan = [
        {"id": "a", "prompt": f"touch new; {seen['work']}", **steps},
        {"id": "b", "prompt": "touch made", "needs": "a", **proved},
    ]
    env = {"PATH": path, "XDG_CACHE_HOME": str(own_place / "xdg"), "PYTHONHOME": ""}
    with real_cluster(sessionrun, env=env) as cluster:
        given = {"prompts": plan, "defaults": {"environment": "python"}}
        session_id = sessionrun.start(given, "--worktree", "--cluster", cluster.address)
        a, b = finish(sessionrun, session_id)["tasks"]
        assert (a["outcome"], b["outcome"], b["proof"]) == ("succeeded", "succeeded", "proved"), (a, b)
        virtual = a["environment"]["path"]
        assert Path(virtual).parent == cache / "tasks"
        for file in files.values():
            demo, pytest_, shown, python = file.read_text().splitlines()
            assert demo.startswith(f"demo at {cluster.nodes_dir}/") and demo.endswith("/src/demo/__init__.py")
            assert (pytest_, shown, python) == (f"pytest in {virtual}", virtual, f"{virtual}/bin/python")
        assert [task["environment"]["cached"] for task in (a, b)] == [False, True]
        assert log.read_text().count("venv") == 1
        assert list((cache / "tasks").iterdir()) == []
        assert git(top, "diff", "--name-only", "main", a["branch"]) == "new"


@pytest.mark.slow
def test_tasks_with_repositories_of_their_own_work_on_nodes(place: Place) -> None:
    """Their branches come into the mirror, and from there into the local repository."""
    one = place.root / "one"
    place.git("branch", "main-task-a", cwd=one)  # taken there alone
    first = place.git("rev-parse", "main", cwd=one)
    with real_cluster(place.command) as cluster:
        session_id = place.command.start(TWO, "--cluster", cluster.address)
        place.commit(one, "later")  # where the ref stood at the launch counts for the session
        status = finish(place.command, session_id)
        assert outcomes(status) == dict.fromkeys("abcde", ("succeeded", None))
        tasks = {task["id"]: task for task in status["tasks"]}
        assert (tasks["a"]["ref"], tasks["a"]["ref_name"], tasks["a"]["ref_commit"]) == (None, "main", first)
        assert tasks["c"]["base_commit"] == tasks["a"]["commit"] and tasks["a"]["branch"] == "main-task-a-2"
        names = {"one": {"main-task-a", "main-task-a-2", "main-task-c"}, "two": {"main-task-b"}}
        for name, branches in names.items():
            listed = place.git("branch", "--format=%(refname:short)", cwd=place.root / name).split("\n")
            assert set(listed) == {"main", *branches}
        for name in "abc":
            top = tasks[name]["repo"]
            assert place.git("rev-parse", tasks[name]["branch"], cwd=top) == tasks[name]["commit"]
        assert not any(task["worktree"] or task["worktree_remark"] for task in status["tasks"])
        session = place.command.directory(session_id)
        assert str(cluster.nodes_dir) in (session / "task-d.txt").read_text()
        assert not list(place.cache.glob("worktrees/*/*"))
    gone = {"prompts": [{"id": "a", "prompt": "true", "repo": "./one", "ref": "gone"}]}
    with real_cluster(place.command, nodes=0) as cluster:
        words = ("--agent", "shell", "--cluster", cluster.address, place.write(gone))
        refused = place.command("run", *words)
        assert refused.returncode == 2 and "has no branch, tag or commit gone" in refused.stderr


@pytest.mark.slow
def test_instances_of_swe_bench_are_worked_on_and_judged_on_nodes(bench: Bench) -> None:
    """Each in a repository of its own, which has nothing later than the base, and goes with the worktree."""
    looks = f"git log --all --format=%s > {bench.cwd}/log; git describe --tags >> {bench.cwd}/log"
    mends = f"git apply {bench.cwd}/gold/$SESSIONRUN_TASK.patch; {looks}; test -e .claude/settings.json"
    script = f"case $SESSIONRUN_TASK in *-1) {mends};; *) echo '# bent' >> tests/test_words.py; exit 3;; esac"
    (bench.cwd / "template").write_text(f": <<'ISSUE'\n{{problem_statement}}\nISSUE\n{script}\n")
    (gold, *_) = [one for one in read_instances(bench) if one["instance_id"] == "example__wordtool-1"]
    with real_cluster(bench) as cluster:
        words = ("--run-name", "r", "--prompt-template", "template", "--agent", "shell", "--no-environment")
        run(bench, "--from", "swebench", *words, "--sample", "2", "--cluster", cluster.address)
        found = bench.documents("r")
        first, second = found["example__wordtool-1.json"], found["example__wordtool-2.json"]
        assert (first["success"], first["resolved"], first["reason_class"]) == (True, True, None), first["error"]
        assert (second["resolved"], second["reason_class"]) == (False, "exit_code")
        assert first["final_test_results"] == {"passed": 6, "failed": 0, "errors": 0, "total": 6}
        one, two = read_predictions(bench)
        assert changed(one["model_patch"]) == changed(gold["patch"]) and two["model_patch"] == ""
        assert "Three functions about words" in (bench.cwd / "log").read_text()
        assert "Fix count" not in (bench.cwd / "log").read_text()
        assert not list(cluster.nodes_dir.glob("*/repositories/*"))
    names = sorted(path.name.rpartition("-")[2] for path in bench.artifacts("worktrees").iterdir())
    assert names == ["1.git", "2.git"]  # as on one machine: they have the branches
    assert bench("clean", "--worktrees", "last").returncode == 0
    assert not bench.artifacts("worktrees").exists(), "an empty directory of ours goes, too"


@pytest.mark.parametrize(
    ("node", "is_shown"), [("n1@0123456789ab", True), ("n1, Slurm job 3", False), (None, False)]
)
def test_a_worktree_that_a_node_kept_is_shown_though_it_is_not_on_this_machine(
    node: str | None, is_shown: bool, tmp_path: Path
) -> None:
    task = {"status": "completed", "worktree": str(tmp_path / "away"), "worktree_kept": "why", "node": node}
    shown = show_as_it_lies(task)
    assert (shown["worktree"] is not None, shown["worktree_kept"] is not None) == (is_shown, is_shown)
    here = {**task, "worktree": str(tmp_path)}
    assert show_as_it_lies(here) == here
    lines = whereabouts_lines(here, "")
    assert lines[0] == "worktree kept: why" and (f"on node {node}:" in lines[1]) == is_shown
