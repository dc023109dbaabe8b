"""What sessions on a cluster have as any others do: queues, mends, proofs, environments, tags."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import RealCluster, RealSlurm, make_repository, real_cluster
from conftest import Command, eventually, kill_together, slow
from python_projects import lay_out_project, make_uv, make_wheels
from stages import begin_repository, commit_all, git, make_program
from test_cli_cache import TWO, Place, outcomes, place
from test_cluster import listens_at
from test_dispatch import WORKER, Dispatcher, write
from test_mending import JOIN, clash, lay_out
from test_mending import make_repository as make_clashing_repository
from test_prove import CHECK, FIX
from test_prove import make_repository as make_tested_repository
from test_slurm import own_slurm, shared_slurm, slurm
from test_swebench_session import WAITED_ENOUGH, Bench, bench, changed, read_instances, read_predictions
from test_times import AGENT as LINGERING
from test_walls_agents import OLD, PROGRAM
from test_walls_proxy import Server, server
from walled import IS_INSIDE, need_groups, need_walls

from sessionrun.cli.standing import fact_lines
from sessionrun.client.reading.view import show_as_it_lies
from sessionrun.model.asked import Sandbox

__all__ = ["bench", "own_slurm", "place", "server", "shared_slurm", "slurm"]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def finish(command: Command, session_id: str) -> dict[str, Any]:
    """Wait for the end of a session, as long as it takes; its status."""
    while command("wait", session_id, "--through-holds", "--timeout", "60").returncode == WAITED_ENOUGH:
        pass
    return command.status(session_id)


def work_on(command: Command, cluster: str, *tasks: dict[str, Any]) -> dict[str, Any]:
    """Have tasks with worktrees run on a cluster; the status at their end."""
    return finish(command, command.start(tasks, "--worktree", "--cluster", cluster))


def run(command: Command, *words: str) -> dict[str, Any]:
    """Run a session to its end, as long as it takes; its status."""
    done = command("run", "-q", *words)
    assert done.returncode == 0, done.stderr
    command.sessions.append(done.stdout.strip())
    return finish(command, command.sessions[-1])


# --- what is so whichever executor runs the jobs ---


@dataclass(frozen=True)
class Site:
    """Where jobs run: the words for it, and what a node's name has; `cluster` is dask's, if there is one."""

    words: tuple[str, ...] = ()
    named: str = ""
    cluster: RealCluster | None = None


@pytest.fixture
def site(request: pytest.FixtureRequest, sessionrun: Command) -> Iterator[Site]:
    """What the row names: here, dask or slurm."""
    if request.param == "dask":
        with real_cluster(sessionrun) as cluster:
            yield Site(("--cluster", cluster.address), "@", cluster)
    elif request.param == "slurm":
        request.getfixturevalue("slurm")
        yield Site(("--cluster", "slurm", "--slurm-option", "partition=main"), ", Slurm job ")
    else:
        yield Site()


on_both = pytest.mark.parametrize("site", ["dask", "slurm"], indirect=True)


@pytest.mark.parametrize(
    "site", [*slow("here", "slurm"), pytest.param("dask", marks=pytest.mark.check)], indirect=True
)
def test_the_contract_of_executors(site: Site, sessionrun: Command) -> None:
    tasks = check_executor(sessionrun, *site.words)
    assert all(site.named in (task["node"] or "") for name, task in tasks.items() if name != "never")
    if site.cluster is not None:
        check_after(site.cluster)


def check_after(cluster: RealCluster) -> None:
    """Nothing of a session is left at the nodes or at the scheduler; dask listens at this machine alone."""
    eventually(lambda: not any(map(os.listdir, cluster.nodes_dir.glob("*/node-*/jobs"))))
    eventually(lambda: not cluster.show()["sessions"])
    assert {host for process in cluster.find("dask") for host, _ in listens_at(process)} == {"127.0.0.1"}


ODD = "a b'\"$x\n\t\u00e9"


def check_executor(command: Command, *words: str) -> dict[str, Any]:
    """Run a session that needs everything an executor does; returns the tasks of its status by id."""
    (command.cwd / "sessionrun.toml").write_text(f'linger = "1s"\n{LINGERING}')
    (command.cwd / "here").write_text("the file\n")
    escaping = "trap '' TERM; echo $$ > {0}; while :; do sleep 0.05; done"
    left = f'setsid sh -c "{escaping.format("left")}" > /dev/null 2>&1 & while [ ! -s left ]; do sleep 0.05; done'
    plan: list[dict[str, Any]] = [
        {"id": "good", "prompt": "echo out; echo err >&2; cat here"},
        {"id": "code", "prompt": "echo before; exit 7"},
        {"id": "killed", "prompt": "kill -9 $$"},
        {"id": "termed", "prompt": "kill -15 $$"},
        {
            "id": "environ",
            "prompt": 'printf %s "$ODD"; pwd >&2; echo "$PWD" >&2; env | grep ^DASK_ >&2; true',
            "env": {"ODD": ODD},
        },
        {"id": "big", "prompt": "head -c 3000000 /dev/zero"},
        {"id": "leaves", "prompt": left},
        {"id": "slow", "prompt": "trap '' TERM; echo up; while :; do sleep 0.1; done", "timeout": 3},
        {"id": "red", "prompt": "true", "check": "echo no >&2; exit 1"},
        {"id": "green", "prompt": "echo 1 >> rounds", "check": "test $(wc -l < rounds) = 2", "rounds": 3},
        {"id": "lingers", "prompt": 'echo \'{"type":"turn.completed"}\'; exec sleep 600', "agent": "streaming"},
        {"id": "after", "prompt": "cat here", "needs": ["good", "green"]},
        {"id": "never", "prompt": "true", "needs": ["code"]},
    ]
    session_id = command.start(plan, *words)
    view = command.wait(session_id)
    tasks = {task["id"]: task for task in view["tasks"]}
    assert {name: task["outcome"] for name, task in tasks.items()} == {
        **dict.fromkeys(("good", "environ", "big", "leaves", "green", "after", "lingers"), "succeeded"),
        **dict.fromkeys(("code", "killed", "termed", "red"), "failed"),
        "slow": "timed_out",
        "never": "skipped",
    }
    assert (tasks["code"]["exit_code"], tasks["code"]["signal"]) == (7, None)
    assert (tasks["killed"]["exit_code"], tasks["killed"]["signal"]) == (None, 9)
    assert (tasks["termed"]["exit_code"], tasks["termed"]["signal"]) == (None, 15)
    assert [task["attempt"] for task in tasks.values() if task["id"] != "never"] == [1] * 12
    assert (tasks["green"]["round"], tasks["lingers"]["reason_class"]) == (2, "lingered")
    folder = command.directory(session_id)

    def read(name: str) -> str:
        return (folder / name).read_text()

    assert (read("task-good.txt"), read("task-good.err")) == ("out\nthe file\n", "err\n")
    assert read("task-code.txt") == "before\n"
    assert read("task-environ.txt") == ODD
    assert read("task-environ.err") == f"{command.cwd}\n" * 2
    assert (folder / "task-big.txt").stat().st_size == 3_000_000
    assert read("task-slow.txt") == "up\n"
    assert not psutil.pid_exists(int((command.cwd / "left").read_text()))
    return tasks


@pytest.mark.slow
@on_both
def test_a_queue_is_worked_through_on_nodes(site: Site, sessionrun: Command) -> None:
    """What an agent writes down on a node comes into the queue, and its worktree is gone by then."""
    repository = make_repository(sessionrun.cwd)
    (repository / "sessionrun.toml").write_text(WORKER)
    project = Dispatcher(sessionrun.cwd, sessionrun.results)
    (first,) = project.add(write("one"))
    (second,) = project.add("echo bad > bad.txt; exit 3")
    more = "printf 'cp two.txt three.txt\\nexit 9\\n' >> suggested_tasks.txt"
    (last,) = project.add(f"cat one.txt > two.txt; {more}", depends=(first,))
    view = finish(project, project.dispatch(*site.words, "--ingest", "1"))
    (made,) = project.tasks().keys() - {first, second, last}
    assert project.stand() == {first: "closed", second: "open", last: "closed", made: "closed"}
    assert git(repository, "show", "main:three.txt") == "one"  # each began where the branch was by then
    assert {"f", "one.txt", "three.txt", "two.txt"} == {*git(repository, "ls-tree", "--name-only", "main").split()}
    assert git(repository, "log", "--format=%an", "--grep=^one$", "main") == "Ann"
    assert all(site.named in task["node"] for task in view["tasks"])
    assert bool(list(repository.glob("worktrees/w*"))) == (site.cluster is None), "on nodes of dask none stays"
    if site.cluster is not None:
        (repository / "dispatch_config.json").write_text('{"worktree_placement": "sibling"}')
        refused = project("dispatch", "--agent", "worker", *site.words)
        assert refused.returncode == 2 and "worktree_placement: worktrees that stay" in refused.stderr


@pytest.mark.slow
def test_a_conflict_is_mended_on_a_node(sessionrun: Command) -> None:
    top = sessionrun.cwd
    make_clashing_repository(top)
    with real_cluster(sessionrun) as cluster:
        needs = {"id": "c", "prompt": "run: cp f g", "needs": ["a", "b"], "base": "session"}
        lay_out(top, {**clash(needs), "max_parallel": 2}, JOIN)
        view = run(sessionrun, "--agent", "scripted", "--worktree", "--cluster", cluster.address, "plan.json")
        tasks = {task["id"]: task for task in view["tasks"]}
        assert view["outcome"] == "succeeded"
        (mend,) = (task for name, task in tasks.items() if "-mend-" in name)
        owner = tasks[mend["id"].removesuffix("-mend-1")]
        assert [tasks[name]["landing"]["status"] for name in ("a", "b", "c", mend["id"])] == ["landed"] * 4
        assert sorted(git(top, "show", "main:f").split()) == ["a", "b"]
        assert git(top, "rev-list", "--parents", "--no-walk", mend["commit"]).split()[2] == owner["commit"]
        assert mend["base_commit"] not in git(top, "rev-list", "main").split() and "@" in mend["node"]


@pytest.mark.slow
@on_both
def test_work_is_proved_where_it_was_done(site: Site, sessionrun: Command) -> None:
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
    session_id = sessionrun.start(plan, "--worktree", "--land", *site.words)
    good, weak, again = finish(sessionrun, session_id)["tasks"]
    assert (good["proof"], weak["proof"], again["proof"]) == ("proved", "weakened", "proved")
    assert (weak["outcome"], weak["reason_class"], again["round"]) == ("failed", "weakened", 2)
    assert good["branch"] == "main-task-good-2" and good["landing"]["status"] == "landed"
    for task in (good, weak, again):
        assert git(sessionrun.cwd, "rev-parse", task["branch"]) == task["commit"]
    names = ("again", "good", "good-2", "weak")
    assert git(sessionrun.cwd, "branch", "--list", "main-task-*").split() == [
        f"main-task-{name}" for name in names
    ]
    assert not list(sessionrun.directory(session_id).glob("jobs/*/*-prove/objects"))


@pytest.mark.slow
def test_tasks_with_repositories_of_their_own_work_on_nodes(place: Place) -> None:
    """Their branches come into the mirror, and from there into the local repository."""
    one = place.root / "one"
    git(one, "branch", "main-task-a")  # taken there alone
    first = git(one, "rev-parse", "main")
    with real_cluster(place.command) as cluster:
        session_id = place.command.start(TWO, "--cluster", cluster.address)
        # where the ref stood at the launch counts for the session
        git(one, "commit", "-q", "--allow-empty", "-m", "later")
        status = finish(place.command, session_id)
        assert outcomes(status) == dict.fromkeys("abcde", ("succeeded", None))
        tasks = {task["id"]: task for task in status["tasks"]}
        assert (tasks["a"]["ref"], tasks["a"]["ref_name"], tasks["a"]["ref_commit"]) == (None, "main", first)
        assert tasks["c"]["base_commit"] == tasks["a"]["commit"] and tasks["a"]["branch"] == "main-task-a-2"
        names = {"one": {"main-task-a", "main-task-a-2", "main-task-c"}, "two": {"main-task-b"}}
        for name, branches in names.items():
            listed = git(place.root / name, "branch", "--format=%(refname:short)").split("\n")
            assert set(listed) == {"main", *branches}
        for name in "abc":
            top = tasks[name]["repo"]
            assert git(top, "rev-parse", tasks[name]["branch"]) == tasks[name]["commit"]
        assert not any(task["worktree"] or task["worktree_remark"] for task in status["tasks"])
        session = place.command.directory(session_id)
        assert str(cluster.nodes_dir) in (session / "task-d.txt").read_text()
        assert not list(place.cache.glob("worktrees/*/*"))


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
    lines = fact_lines(here, "", tests=False)
    assert lines[0] == "worktree kept: why" and (f"on node {node}:" in lines[1]) == is_shown


# --- Walls on the nodes of a cluster: they are built there, of what is there, and hide what is there ---

KEY = "key of the node"


def make_home(command: Command) -> dict[str, str]:
    """The home directory of the nodes' user, with a secret, and in there, where it can be seen, the nodes."""
    home = command.cwd / "home-of-node"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text(f"{KEY}\n")
    return {"HOME": str(home), "SESSIONRUN_NODES": str(home / ".cache" / "sessionrun" / "nodes")}


LOOKS = """
mkdir sub; echo done > sub/made; git add sub; git commit -qm work
echo left > left
find ~ -type f 2>/dev/null > seen
cat ~/.ssh/id_rsa 2>/dev/null || echo none
pwd
touch ~/mine "$(git rev-parse --git-common-dir)/hooks/post-commit" 2>/dev/null
git update-ref refs/heads/main HEAD
exit 0
"""


@pytest.mark.slow
def test_tasks_with_walls_work_on_nodes_and_see_nothing_of_them(sessionrun: Command) -> None:
    need_walls()
    repository, home = make_repository(sessionrun.cwd), make_home(sessionrun)
    before = git(repository, "for-each-ref", "refs/heads/main")
    does = {"prompt": LOOKS, "check": "test -e sub/made", "setup": ["echo $SESSIONRUN_TASK > set-up"]}
    tasks: list[dict[str, Any]] = [
        {**does, "id": policy, "sandbox": {"policy": policy, **network}}
        for policy, network in (("project", {"network": "none"}), ("strict", {"network": "none"}), ("none", {}))
    ]
    tasks[0]["prove"] = True
    with real_cluster(sessionrun, env=home) as cluster:
        view = work_on(sessionrun, cluster.address, *tasks)
        folder = sessionrun.directory(view["session_id"])
        for task in view["tasks"]:
            assert task["outcome"] == "succeeded", task["reason"]
            said = (folder / f"task-{task['id']}.txt").read_text().splitlines()
            assert said[0] == (KEY if task["id"] == "none" else "none"), task["id"]
            names = git(repository, "ls-tree", "-r", "--name-only", task["branch"]).split()
            assert {"sub/made", "left", "set-up", "seen"} <= {*names}
            assert "work" in git(repository, "log", "--format=%s", task["branch"]).splitlines()
            seen = git(repository, "show", f"{task['branch']}:seen")
            books = [line for line in seen.splitlines() if line.startswith(home["SESSIONRUN_NODES"])]
            other = [line for line in books if not line.startswith(f"{said[1]}/") and "/replica/" not in line]
            assert bool(other) == (task["id"] == "none"), other
        assert view["tasks"][0]["proof"] is not None
        assert not list(cluster.nodes_dir.glob("*/repositories/*/walls/*/*"))
    assert git(repository, "for-each-ref", "refs/heads/main") == before
    assert Path(home["HOME"], "mine").exists()  # by the task without walls


@pytest.mark.slow
def test_network_and_disk_on_a_node_have_limits_and_what_is_denied_comes_home(
    sessionrun: Command, server: Server
) -> None:
    """In every phase; and a job that keeps to its limit is not ended."""
    need_walls()
    make_repository(sessionrun.cwd)
    url = f"http://127.0.0.1:{server.port}/x"
    asks = f"curl -sSf {url} && ! curl -sSf https://telemetry.example.org/ && ! curl -sSf --noproxy '*' {url}"
    fills = "dd if=/dev/zero of={} bs=1M count=30 status=none; sleep 600"
    network = {"policy": "strict", "network": ["127.0.0.1"]}
    disk = {"policy": "project", "network": "none", "disk": "20M"}
    keeps = "dd if=/dev/zero of=/tmp/x bs=1M count=5 status=none; sleep 5; echo > a"
    tasks: list[dict[str, Any]] = [
        {"id": "asks", "prompt": f"{asks}; echo > a", "setup": [asks], "check": asks, "sandbox": network},
        {"id": "work", "prompt": fills.format("/tmp/x"), "sandbox": disk},
        {"id": "check", "prompt": "echo > a", "check": fills.format("x"), "sandbox": disk},
        {"id": "small", "prompt": keeps, "sandbox": disk},
    ]
    with real_cluster(sessionrun, nodes=1, slots=4) as cluster:
        view = work_on(sessionrun, cluster.address, *tasks)
        assert [one for one in cluster.find("n0") if "walls/proxy" in " ".join(one.cmdline())] == []
    asking, work, check, small = view["tasks"]
    assert [task["outcome"] for task in (asking, small)] == ["succeeded"] * 2, (asking["reason"], small["reason"])
    for task in (work, check):
        assert task["reason"] == "disk_limit: what it can write came to more than 20M"
    (denied,) = sessionrun.load("explain", view["session_id"])["denied"]
    assert (denied["task"], denied["host"], denied["count"]) == ("asks", "telemetry.example.org", 3)
    assert len(server.asked) == 3


@pytest.mark.slow
def test_a_log_in_that_is_renewed_on_a_node_is_that_of_the_node(sessionrun: Command) -> None:
    """The link is killed while the agent works: the next one takes the log-in back all the same."""
    need_walls()
    make_repository(sessionrun.cwd)
    home = make_home(sessionrun)
    path, own = Path(home["HOME"], ".codex", "auth.json"), Path.home() / ".codex" / "auth.json"
    for login in (path, own):
        login.parent.mkdir()
        login.write_bytes(OLD)
    go = sessionrun.cwd / "go"
    wait = f"\nimport time\nsys.stdout.flush()\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    script = PROGRAM.format(python=sys.executable, way="rename", path="~/.codex/auth.json") + wait
    program = make_program(sessionrun.cwd.parent / "bin" / "codex", script)
    config = Path(os.environ["XDG_CONFIG_HOME"], "sessionrun", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'[agents.own]\nargv = ["{program}"]\noutput = "text"\n')
    sandbox = {"policy": "project", "network": "allow", "read": str(sessionrun.cwd)}
    plan = [{"id": "a", "prompt": "renew", "agent": "own", "sandbox": sandbox}]
    with real_cluster(sessionrun, nodes=1, env=home) as cluster:
        session_id = sessionrun.start(plan, "--worktree", "--cluster", cluster.address)
        eventually(lambda: sessionrun.output(session_id, "a").startswith("renewed"))
        kill_together(cluster.find_chain("n0", "link"))
        go.touch()
        view = finish(sessionrun, session_id)
        assert view["tasks"][0]["outcome"] == "succeeded", view["tasks"][0]["reason"]
    assert json.loads(path.read_bytes())["token"] == f"renewed from {json.loads(OLD)['token']}"
    assert own.read_bytes() == OLD, "nothing on the session's machine changes"


@pytest.mark.slow
def test_memory_on_a_node(sessionrun: Command) -> None:
    need_walls()
    need_groups(Sandbox("project", memory=1 << 30))
    make_repository(sessionrun.cwd)
    eats = "python3 -c \"kept = bytearray({} << 20); kept[::4096] = b'x' * len(kept[::4096])\""
    sandbox = {"policy": "project", "memory": "100M"}
    tasks = [{"id": f"m{size}", "prompt": eats.format(size), "sandbox": sandbox} for size in (10, 300)]
    with real_cluster(sessionrun, nodes=1) as cluster:
        small, large = work_on(sessionrun, cluster.address, *tasks)["tasks"]
    assert small["outcome"] == "succeeded", small["reason"]
    assert large["reason"] == "oom: its walls let it have 100 MiB of memory, and it wanted more"
    assert not list(Path("/sys/fs/cgroup").glob(f"**/sessionrun-{sessionrun.sessions[-1]}*"))


@pytest.mark.slow
def test_tasks_with_walls_go_where_they_can_be_built_and_wait_for_such_a_node(sessionrun: Command) -> None:
    need_walls()
    make_repository(sessionrun.cwd)
    refuses = "echo 'bwrap: No permissions to create a new namespace' >&2\nexit 1"
    stub = make_program(sessionrun.cwd / "stub" / "bwrap", refuses)
    tasks = [{"id": f"w{number}", "prompt": "echo > made", "sandbox": "project"} for number in range(4)]
    tasks.append({"id": "bare", "prompt": "echo > made"})
    with real_cluster(sessionrun, nodes=0) as cluster:
        session_id = sessionrun.start(tasks, "--worktree", "--cluster", cluster.address)
        usual = cluster.env["PATH"]
        cluster.env["PATH"] = f"{stub.parent}:{usual}"
        cluster.start_node("thin", 4)
        cluster.wait_for_nodes(1)
        view = sessionrun.until(session_id, lambda view: view["tasks"][-1]["outcome"] == "succeeded")
        assert [task["status"] for task in view["tasks"][:-1]] == ["pending"] * 4
        why = "can build its walls: thin: bwrap cannot build walls here: No permissions to create a new namespace"
        told = " ".join(sessionrun("explain", session_id, "w0").stdout.split())
        assert f"no node of the cluster {why}" in told
        assert "project" in sessionrun("cluster", "status", cluster.address).stdout
        cluster.env["PATH"] = usual
        cluster.start_node("good", 2)
        view = finish(sessionrun, session_id)
        assert {task["outcome"] for task in view["tasks"]} == {"succeeded"}
        assert {task["node"].partition("@")[0] for task in view["tasks"][:-1]} == {"good"}


@pytest.mark.slow
def test_an_environment_is_built_and_used_on_a_node(sessionrun: Command, own_place: Path) -> None:
    """By its programs, in its cache, inside of walls as without; it goes with the worktree.  Tags are there."""
    need_walls()
    top = own_place / "repo"
    top.mkdir()
    begin_repository(top)
    lay_out_project(top)
    commit_all(top)
    git(top, "tag", "-a", "-m", "first", "v1.0")
    sessionrun.cwd, sessionrun.results = top, top / "results"
    make_uv(own_place / "bin", make_wheels(own_place / "wheels"))
    env = {"PATH": f"{own_place / 'bin'}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(own_place / "xdg")}
    uses, stolen = "git describe | grep -qx 'v1.0.*' && demo && pytest", own_place / "stolen"
    steal = (
        f"printf '#!/bin/sh\\ntouch {stolen}; exit 1' > $VIRTUAL_ENV/bin/bwrap; chmod +x $VIRTUAL_ENV/bin/bwrap"
    )
    made = "mv one-$SESSIONRUN_TASK two-$SESSIONRUN_TASK || touch one-$SESSIONRUN_TASK"
    tasks: list[dict[str, Any]] = []
    for name, needs, inside in (("a", [], True), ("b", ["a"], True), ("bare", ["b"], False)):
        does = f"{IS_INSIDE} && {uses}" if inside else uses
        task = {"id": name, "needs": needs, "setup": does, "prompt": f"{does}; {made}; {steal}", "prove": True}
        task |= {"check": f"{does} && test -e two-$SESSIONRUN_TASK", "environment": "python", "rounds": 2}
        sandbox = {"policy": "project", "network": "none", "read": [str(own_place / "wheels")]}
        tasks.append({**task, "sandbox": sandbox if inside else "none"})
    with real_cluster(sessionrun, nodes=1, env={**env, "PYTHONHOME": ""}) as cluster:
        ended = work_on(sessionrun, cluster.address, *tasks)["tasks"]
    for one in ended:
        assert (one["outcome"], one["proof"]) == ("succeeded", "proved"), one["reason"]
        assert Path(one["environment"]["path"]).name == f".env-{one['branch']}"
        assert not os.path.lexists(one["environment"]["path"])
    assert [one["environment"]["cached"] for one in ended] == [False, True, False], "not across walls"
    assert git(top, "diff", "--name-only", "main", ended[0]["branch"]) == "two-a"
    assert not stolen.exists(), "a program of the task's ran outside"


@pytest.mark.slow
def test_walls_on_nodes_of_slurm(own_slurm: RealSlurm, sessionrun: Command) -> None:
    need_walls()
    repository = make_repository(sessionrun.cwd)
    (Path.home() / ".ssh").mkdir()
    (Path.home() / ".ssh" / "id_rsa").write_text(f"{KEY}\n")
    script = "cat ~/.ssh/id_rsa 2>/dev/null || echo none; ls ~ $R; echo > made; git add made; git commit -qm work"
    task: dict[str, Any] = {"id": "a", "prompt": script, "check": "test -e made", "setup": ["echo > set-up"]}
    task |= {"prove": True, "env": {"R": str(sessionrun.results)}}
    task |= {"sandbox": {"policy": "project", "network": "none"}}
    view = work_on(sessionrun, "slurm", task)
    assert view["tasks"][0]["outcome"] == "succeeded", view["tasks"][0]["reason"]
    said = (sessionrun.directory(view["session_id"]) / "task-a.txt").read_text()
    assert said.startswith("none\n") and "session-" not in said
    assert "work" in git(repository, "log", "--format=%s", view["tasks"][0]["branch"]).splitlines()
    assert {"made", "set-up"} <= {*git(repository, "ls-tree", "--name-only", view["tasks"][0]["branch"]).split()}
    task["sandbox"] |= {"memory": "1G"}
    (repository / "plan.json").write_text(json.dumps([task]))
    done = sessionrun("run", "--agent", "shell", "--worktree", "--cluster", "slurm", "plan.json")
    why = "sandbox.memory: Slurm has limits of its own, say it with --slurm-option"
    assert (done.returncode, done.stderr) == (2, f"sessionrun: error: task 1 (ID: a): {why}\n")
