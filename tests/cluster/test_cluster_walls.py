"""Walls on the nodes of a cluster: they are built there, of what is there, and hide what is there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from clusters import kill_and_wait, real_cluster
from conftest import Command, eventually
from python_projects import lay_out_project, make_uv, make_wheels
from slurms import RealSlurm
from stages import git
from test_cluster import make_repository
from test_cluster_parts import finish, run
from test_slurm import own_slurm
from test_swebench_session import Bench, bench
from test_walls_agents import OLD, PROGRAM
from test_walls_hidden import LOOK, set_walls
from test_walls_hidden import run as run_instances
from test_walls_landing import need_groups
from test_walls_proxy import Server, server
from walled import IS_INSIDE, need_walls

from sessionrun.model.asked import Sandbox

__all__ = ["bench", "own_slurm", "server"]

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="walls need Linux"),
    pytest.mark.slow,
]

KEY = "key of the node"


def make_home(command: Command) -> dict[str, str]:
    """The home directory of the nodes' user, with a secret, and in there, where it can be seen, the nodes."""
    home = command.cwd / "home-of-node"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text(f"{KEY}\n")
    return {"HOME": str(home), "SESSIONRUN_NODES": str(home / ".cache" / "sessionrun" / "nodes")}


SEEN = """
mkdir sub; echo done > sub/made; git add sub; git commit -qm work
echo left > left
find ~ -type f 2>/dev/null > seen
cat ~/.ssh/id_rsa 2>/dev/null || echo none
pwd
touch ~/mine "$(git rev-parse --git-common-dir)/hooks/post-commit" 2>/dev/null
git update-ref refs/heads/main HEAD
exit 0
"""


def plan(**sandboxes: Any) -> list[dict[str, Any]]:
    return [{"id": name, "prompt": SEEN, "sandbox": sandbox} for name, sandbox in sandboxes.items()]


def test_tasks_with_walls_work_on_nodes_and_see_nothing_of_them(sessionrun: Command) -> None:
    need_walls()
    repository, home = begin(sessionrun.cwd), make_home(sessionrun)
    before = git(repository, "for-each-ref", "refs/heads/main")
    tasks = plan(
        project={"policy": "project", "network": "none"},
        strict={"policy": "strict", "network": "none"},
        bare={"policy": "none"},
    )
    for task in tasks:
        task.update(check="test -e sub/made", setup=["echo $SESSIONRUN_TASK > set-up"])
    tasks[0]["prove"] = True
    (repository / "plan.json").write_text(json.dumps({"prompts": tasks}))
    with real_cluster(sessionrun, env=home) as cluster:
        words = ("--worktree", "--cluster", cluster.address, str(repository / "plan.json"))
        view = run(sessionrun, "--agent", "shell", *words)
        folder = sessionrun.directory(view["session_id"])
        for task in view["tasks"]:
            assert task["outcome"] == "succeeded", task["reason"]
            said = (folder / f"task-{task['id']}.txt").read_text().splitlines()
            assert said[0] == (KEY if task["id"] == "bare" else "none"), task["id"]
            names = git(repository, "ls-tree", "-r", "--name-only", task["branch"]).split()
            assert {"sub/made", "left", "set-up", "seen"} <= {*names}
            assert "work" in git(repository, "log", "--format=%s", task["branch"]).splitlines()
            seen = git(repository, "show", f"{task['branch']}:seen")
            books = [line for line in seen.splitlines() if line.startswith(home["SESSIONRUN_NODES"])]
            other = [line for line in books if not line.startswith(f"{said[1]}/") and "/replica/" not in line]
            assert bool(other) == (task["id"] == "bare"), other
        assert view["tasks"][0]["proof"] is not None
        assert not list(cluster.nodes_dir.glob("*/repositories/*/walls/*/*"))
    assert git(repository, "for-each-ref", "refs/heads/main") == before
    assert Path(home["HOME"], "mine").exists()  # by the task without walls


def begin(path: Path) -> Path:
    """A repository whose user has a name."""
    make_repository(path)
    git(path, "config", "user.name", "Ann")
    git(path, "config", "user.email", "ann@example.org")
    return path


def write_plan(repository: Path, *tasks: dict[str, Any]) -> str:
    (repository / "plan.json").write_text(json.dumps({"prompts": tasks}))
    return str(repository / "plan.json")


def test_the_network_on_a_node_is_a_list_and_what_is_denied_comes_home(
    sessionrun: Command, server: Server
) -> None:
    need_walls()
    repository = begin(sessionrun.cwd)
    url = f"http://127.0.0.1:{server.port}/x"
    asks = f"curl -sSf {url} && ! curl -sSf https://telemetry.example.org/ && ! curl -sSf --noproxy '*' {url}"
    sandbox = {"policy": "strict", "network": ["127.0.0.1"]}
    task = {"id": "a", "prompt": f"{asks}; echo done > a", "setup": [asks], "check": asks, "sandbox": sandbox}
    with real_cluster(sessionrun, nodes=1) as cluster:
        words = ("--agent", "shell", "--worktree", "--cluster", cluster.address)
        view = run(sessionrun, *words, write_plan(repository, task))
        assert view["tasks"][0]["outcome"] == "succeeded", view["tasks"][0]["reason"]
        denied = sessionrun.load("explain", view["session_id"])["denied"]
        assert [(found["task"], found["host"], found["count"]) for found in denied] == [
            ("a", "telemetry.example.org", 3)
        ]
        assert len(server.asked) == 3
        proxies = [one for one in cluster.find("n0") if "walls/proxy" in " ".join(one.cmdline())]
        assert proxies == []


def test_a_log_in_that_is_renewed_on_a_node_is_that_of_the_node(sessionrun: Command) -> None:
    """The link is killed while the agent works: the next one takes the log-in back all the same."""
    need_walls()
    repository, home = begin(sessionrun.cwd), make_home(sessionrun)
    path, own = Path(home["HOME"], ".codex", "auth.json"), Path.home() / ".codex" / "auth.json"
    for login in (path, own):
        login.parent.mkdir()
        login.write_bytes(OLD)
    program = sessionrun.cwd.parent / "bin" / "codex"
    program.parent.mkdir()
    go = sessionrun.cwd / "go"
    wait = f"\nimport time\nsys.stdout.flush()\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    program.write_text(PROGRAM.format(python=sys.executable, way="rename", path="~/.codex/auth.json") + wait)
    program.chmod(0o755)
    configure(program)
    sandbox = {"policy": "project", "network": "allow", "read": str(sessionrun.cwd)}
    plan = write_plan(repository, {"id": "a", "prompt": "renew", "agent": "own", "sandbox": sandbox})
    with real_cluster(sessionrun, nodes=1, env=home) as cluster:
        done = sessionrun("run", "-q", "--worktree", "--cluster", cluster.address, plan)
        assert done.returncode == 0, done.stderr
        session_id = done.stdout.strip()
        sessionrun.sessions.append(session_id)
        answer = sessionrun.directory(session_id) / "task-a.txt"
        eventually(lambda: answer.exists() and answer.read_text().startswith("renewed"))
        assert kill_and_wait(cluster.find_chain("n0", "link"))
        go.touch()
        view = finish(sessionrun, session_id)
        assert view["tasks"][0]["outcome"] == "succeeded", view["tasks"][0]["reason"]
    assert json.loads(path.read_bytes())["token"] == f"renewed from {json.loads(OLD)['token']}"
    assert own.read_bytes() == OLD, "nothing on the session's machine changes"


def configure(program: Path) -> None:
    """Make a program the agent `own` of the session's machine."""
    config = Path(os.environ["XDG_CONFIG_HOME"], "sessionrun", "config.toml")
    config.parent.mkdir(parents=True)
    config.write_text(f'[agents.own]\nargv = ["{program}"]\noutput = "text"\n')


def test_memory_on_a_node(sessionrun: Command) -> None:
    need_walls()
    need_groups(Sandbox("project", memory=1 << 30))
    repository = begin(sessionrun.cwd)
    eats = "python3 -c \"kept = bytearray({} << 20); kept[::4096] = b'x' * len(kept[::4096])\""
    sandbox = {"policy": "project", "memory": "100M"}
    tasks = [{"id": f"m{size}", "prompt": eats.format(size), "sandbox": sandbox} for size in (10, 300)]
    with real_cluster(sessionrun, nodes=1) as cluster:
        words = ("--agent", "shell", "--worktree", "--cluster", cluster.address)
        small, large = run(sessionrun, *words, write_plan(repository, *tasks))["tasks"]
    assert small["outcome"] == "succeeded", small["reason"]
    assert large["reason"] == "oom: its walls let it have 100 MiB of memory, and it wanted more"
    assert not list(Path("/sys/fs/cgroup").glob(f"**/sessionrun-{sessionrun.sessions[-1]}*"))


REFUSES = "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"


def test_tasks_with_walls_go_where_they_can_be_built_and_wait_for_such_a_node(sessionrun: Command) -> None:
    need_walls()
    repository = begin(sessionrun.cwd)
    stub = sessionrun.cwd / "stub" / "bwrap"
    stub.parent.mkdir()
    stub.write_text(REFUSES)
    stub.chmod(0o755)
    tasks = [{"id": f"w{number}", "prompt": "echo > made", "sandbox": "project"} for number in range(4)]
    plan = write_plan(repository, *tasks, {"id": "bare", "prompt": "echo > made"})
    with real_cluster(sessionrun, nodes=0) as cluster:
        words = ("run", "-q", "--agent", "shell", "--worktree", "--cluster", cluster.address, plan)
        session_id = sessionrun(*words).stdout.strip()
        sessionrun.sessions.append(session_id)
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


def test_the_disk_on_a_node_has_a_limit(sessionrun: Command) -> None:
    """Not only WORK is ended, and a job that keeps to it is not."""
    need_walls()
    repository = begin(sessionrun.cwd)
    fills = "dd if=/dev/zero of={} bs=1M count=30 status=none; sleep 600"
    sandbox = {"policy": "project", "network": "none", "disk": "20M"}
    tasks: list[dict[str, Any]] = [
        {"id": "work", "prompt": fills.format("/tmp/x")},
        {"id": "check", "prompt": "echo > a", "check": fills.format("x")},
        {"id": "small", "prompt": "dd if=/dev/zero of=/tmp/x bs=1M count=5 status=none; sleep 5; echo > a"},
    ]
    with real_cluster(sessionrun, nodes=1, slots=3) as cluster:
        words = ("--agent", "shell", "--worktree", "--cluster", cluster.address)
        plan = write_plan(repository, *({**task, "sandbox": sandbox} for task in tasks))
        work, check, small = run(sessionrun, *words, plan)["tasks"]
    for task in (work, check):
        assert task["reason"] == "disk_limit: what it can write came to more than 20M"
    assert small["outcome"] == "succeeded", small["reason"]


def test_an_environment_is_built_and_used_inside_on_a_node(sessionrun: Command, own_place: Path) -> None:
    need_walls()
    top = own_place / "repo"
    top.mkdir()
    begin(top)
    lay_out_project(top)
    git(top, "add", "-A")
    git(top, "commit", "-qm", "project")
    sessionrun.cwd, sessionrun.results = top, top / "results"
    make_uv(own_place / "bin", make_wheels(own_place / "wheels"))
    env = {"PATH": f"{own_place / 'bin'}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(own_place / "xdg")}
    inside = f"{IS_INSIDE} && demo && pytest"
    sandbox = {"policy": "project", "network": "none", "read": [str(own_place / "wheels")]}
    steal = "printf '#!/bin/sh\\ntouch {}; exit 1' > $VIRTUAL_ENV/bin/bwrap; chmod +x $VIRTUAL_ENV/bin/bwrap"
    stolen, made = (
        own_place / "stolen",
        "mv one-$SESSIONRUN_TASK two-$SESSIONRUN_TASK || touch one-$SESSIONRUN_TASK",
    )
    task: dict[str, Any] = {"id": "a", "setup": inside, "prompt": f"{inside}; {made}; {steal.format(stolen)}"}
    task |= {"environment": "python", "sandbox": sandbox, "prove": True, "rounds": 2}
    task["check"] = f"{inside} && test -e two-$SESSIONRUN_TASK"
    with real_cluster(sessionrun, nodes=1, env=env) as cluster:
        words = ("--agent", "shell", "--worktree", "--cluster", cluster.address)
        task, again = run(sessionrun, *words, write_plan(top, task, {**task, "id": "b", "needs": "a"}))["tasks"]
    for one in (task, again):
        assert (one["outcome"], one["proof"]) == ("succeeded", "proved"), one["reason"]
    assert [one["environment"]["cached"] for one in (task, again)] == [False, True]
    assert not stolen.exists(), "a program of the task's ran outside"
    assert not list((own_place / "xdg" / "sessionrun" / "environments" / "tasks").iterdir())


def test_hidden_tests_are_hidden_on_a_node(bench: Bench) -> None:
    need_walls()
    set_walls(bench, "project")
    look = LOOK.format(places=f"{bench.cwd} {Path.home()}", upstream=bench.artifacts("repo"))
    gold = f"git apply {bench.cwd}/gold/$SESSIONRUN_TASK.patch"
    with real_cluster(bench, nodes=1) as cluster:
        words = ("--no-environment", "--cluster", cluster.address, "--instance", "example__wordtool-1")
        found = run_instances(bench, f"{IS_INSIDE} || exit 7\n{gold}\n{look}", *words)["example__wordtool-1.json"]
    assert (found["success"], found["resolved"]) == (True, True), found["error"]
    assert found["final_test_results"] == {"passed": 6, "failed": 0, "errors": 0, "total": 6}
    (output,) = bench.cwd.glob("sessions/session-*/task-example__wordtool-1.txt")
    assert "test_count" not in output.read_text()


def test_walls_on_nodes_of_slurm(own_slurm: RealSlurm, sessionrun: Command) -> None:
    need_walls()
    repository = begin(sessionrun.cwd)
    (Path.home() / ".ssh").mkdir()
    (Path.home() / ".ssh" / "id_rsa").write_text(f"{KEY}\n")
    script = "cat ~/.ssh/id_rsa 2>/dev/null || echo none; ls ~ $R; echo > made; git add made; git commit -qm work"
    task: dict[str, Any] = {
        "id": "a",
        "prompt": script,
        "check": "test -e made",
        "setup": ["echo > set-up"],
        "prove": True,
    }
    task |= {"env": {"R": str(sessionrun.results)}, "sandbox": {"policy": "project", "network": "none"}}
    words = ("--agent", "shell", "--worktree", "--cluster", "slurm")
    view = run(sessionrun, *words, write_plan(repository, task))
    assert view["tasks"][0]["outcome"] == "succeeded", view["tasks"][0]["reason"]
    said = (sessionrun.directory(view["session_id"]) / "task-a.txt").read_text()
    assert said.startswith("none\n") and "session-" not in said
    assert "work" in git(repository, "log", "--format=%s", view["tasks"][0]["branch"]).splitlines()
    assert {"made", "set-up"} <= {*git(repository, "ls-tree", "--name-only", view["tasks"][0]["branch"]).split()}
    task["sandbox"] |= {"memory": "1G"}
    done = sessionrun("run", *words, write_plan(repository, task))
    why = "sandbox.memory: Slurm has limits of its own, say it with --slurm-option"
    assert (done.returncode, done.stderr) == (2, f"sessionrun: error: task 1 (ID: a): {why}\n")
