"""Sessions on a cluster of real programs: dask's scheduler, its workers, our nodes, on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import SHORT_WORDS, RealCluster, find_own_address, kill_and_wait, marker_of, real_cluster
from conftest import Command, eventually
from stages import git
from test_silence import AGENT as LINGERING

import sessionrun as package
from sessionrun.cluster.address import make_certs, open_cluster
from sessionrun.cluster.companions import MAX_BYTES
from sessionrun.cluster.machines import head_command, make_unit
from sessionrun.cluster.node_directory import load_site
from sessionrun.model.errors import InputError
from sessionrun.model.times import parse_time

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


ROLES = ("root", "keeper", "supervisor")


@pytest.fixture
def cluster(sessionrun: Command) -> Iterator[RealCluster]:
    """Two nodes of two slots."""
    with real_cluster(sessionrun) as made:
        yield made


def start(cluster: RealCluster, plan: object, *words: str) -> str:
    return cluster.command.start(plan, "--cluster", cluster.address, *words)


@pytest.mark.parametrize(
    "nodes", [pytest.param(1, marks=pytest.mark.check), pytest.param(2, marks=pytest.mark.slow)]
)
def test_a_session_on_nodes_is_like_any_other(nodes: int, sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=nodes) as cluster:
        check_session(cluster, nodes)


def check_session(cluster: RealCluster, count: int) -> None:
    command = cluster.command
    folder = "$SESSIONRUN_TASK"
    plan = [
        {"id": "good", "prompt": "echo fine; echo oops >&2", "check": "test -e sibling", "env": {"E": "a b"}},
        {"id": "bad", "prompt": f"exit 7 {folder}"},
        {"id": "later", "prompt": "cat sibling; env | grep ^DASK_ || true", "needs": ["good"]},
        {"id": "lingers", "prompt": 'echo \'{"type":"turn.completed"}\'; exec sleep 600', "agent": "streaming"},
    ]
    (command.cwd / "sibling").write_text("here\n")
    (command.cwd / "sessionrun.toml").write_text(f'linger = "1s"\n{LINGERING}')
    session_id = start(cluster, plan)
    view = command.wait(session_id)
    tasks = {task["id"]: task for task in view["tasks"]}
    assert {name: task["outcome"] for name, task in tasks.items()} == {
        "good": "succeeded",
        "bad": "failed",
        "later": "succeeded",
        "lingers": "succeeded",
    }
    assert tasks["lingers"]["reason_class"] == "lingered"
    assert tasks["bad"]["exit_code"] == 7 and tasks["good"]["check"]["passed"] is True
    eventually(lambda: not any(map(os.listdir, cluster.nodes_dir.glob("*/node-*/jobs"))))
    shown: dict[str, Any] = {}
    eventually(lambda: shown.update(cluster.show()) or not shown["sessions"])
    names = {node["id"] for node in shown["nodes"]}
    assert len(names) == count
    assert {host for one in cluster.find("dask") for host, _ in listens_at(one)} == {"127.0.0.1"}
    assert {task["node"] for task in tasks.values()} <= names
    explained = command("explain", session_id, "bad").stdout
    assert f" s failed (exit code 7; on node {tasks['bad']['node']})" in explained
    session = command.directory(session_id)
    assert (session / "task-good.txt").read_text() == "fine\n"
    assert (session / "task-good.err").read_text() == "oops\n"
    assert (session / "task-later.txt").read_text() == "here\n"


def listens_at(process: psutil.Process) -> set[tuple[str, int]]:
    """Addresses and ports."""
    own = [one.laddr for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    return {(one.ip, one.port) for one in own}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:8786", "write tls://HOST:PORT"),
        ("tls://127.0.0.1:0", "write tls://HOST:PORT"),
        ("tcp://127.0.0.1:8786", "write tls://HOST:PORT"),
        ("tls://127.0.0.1:8786", "ca.pem is not there, or cannot be read: `sessionrun cluster certs` makes"),
    ],
)
def test_an_address_that_cannot_be_used(address: str, words: str, own_place: Path) -> None:
    with pytest.raises(InputError, match=words):
        open_cluster(address, {"SESSIONRUN_CERTS": str(own_place)})


def test_certificates_pass_the_checks_of_the_strictest_python(own_place: Path) -> None:
    """Python 3.13 and later set these flags by themselves."""
    ca_file, cert_file, key_file = make_certs(own_place / "certs")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    contexts = [ssl.create_default_context(purpose, cafile=ca_file) for purpose in ssl.Purpose]  # of both ends
    for context in contexts:
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_cert_chain(cert_file, key_file)
    ends = (contexts[0].wrap_bio(up, down), contexts[1].wrap_bio(down, up, server_side=True))
    for end in (*ends, ends[0]):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    ends[1].do_handshake()
    assert ends[0].version() == ends[1].version() is not None


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_head_at_an_address_of_version_six(host: str, own_place: Path) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no ::1")
    environ = {"SESSIONRUN_CERTS": str(own_place / "certs")}
    make_certs(own_place / "certs")
    argv, address = head_command(host, 0, environ)
    assert address in argv and open_cluster(address, environ).address.startswith("tls://[::1]:")


@pytest.mark.parametrize(
    ("word", "written"),
    [("/a/b", "ExecStart=/a/b"), ("/a b/50%$", 'ExecStart="/a b/50%%$$"'), ('a"\\', 'ExecStart="a\\"\\\\"')],
)
def test_words_in_a_unit(word: str, written: str) -> None:
    assert written in make_unit([word], {}).splitlines()
    assert 'Environment="PATH=/x y"' in make_unit([word], {"PATH": "/x y"}).splitlines()
    here = make_unit([word], {"SESSIONRUN_NODES": "nodes", "SESSIONRUN_CERTS": ""}).splitlines()
    assert f"Environment=SESSIONRUN_NODES={Path('nodes').absolute()}" in here
    assert not any("SESSIONRUN_CERTS" in line for line in here)


def test_what_is_refused_before_anything_starts(sessionrun: Command) -> None:
    env = {"SESSIONRUN_CERTS": str(sessionrun.cwd / "certs"), "SESSIONRUN_NODES": str(sessionrun.cwd / "nodes")}
    made = sessionrun("cluster", "certs", env=env)
    assert made.returncode == 0 and made.stdout.splitlines()[0].endswith("certs/ca.pem")
    assert (sessionrun.cwd / "certs" / "key.pem").stat().st_mode & 0o777 == 0o600
    subprocess.run(["git", "init", "-q", "."], check=True)
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
        check=True,
    )
    loopback = ("--cluster", "tls://127.0.0.1:1")
    for words, said in [
        (("cluster", "certs"), "ca.pem is there"),
        (("cluster", "head", "--host", "192.0.2.1"), "cannot listen at 192.0.2.1"),
        (("cluster", "status", "tls://127.0.0.1:1"), "the cluster at tls://127.0.0.1:1 does not answer: "),
        (("cluster", "status", "tls://a..b:1"), "the cluster at tls://a..b:1 does not answer: encoding with"),
        (("--agent", "shell", *loopback, "-p", "true"), "is `sessionrun cluster head` running there, with"),
    ]:
        done = sessionrun(*words, env=env)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr and len(done.stderr.splitlines()) == 1
    wish = '{"prompts": [{"prompt": "true"}], "worktrees": {"stay": "sibling"}}'
    refused = sessionrun("--worktree", *loopback, "--agent", "shell", stdin=wish, env=env)
    assert refused.returncode == 2 and "worktrees: those that stay are of one machine" in refused.stderr
    (sessionrun.cwd / ".gitignore").write_text("big\n")
    (sessionrun.cwd / ".worktreeinclude").write_text("big\n")
    with open(sessionrun.cwd / "big", "wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    refused = sessionrun("--worktree", *loopback, "--agent", "shell", "-p", "true", env=env)
    assert refused.returncode == 2 and ".worktreeinclude names files of 16777217 bytes" in refused.stderr
    (sessionrun.cwd / "file").touch()
    closed = sessionrun(
        "cluster", "head", "--port", "0", env={**env, "SESSIONRUN_NODES": f"{sessionrun.cwd}/file"}
    )
    assert (closed.returncode, closed.stdout) == (2, "") and "cannot be written" in closed.stderr
    times = sessionrun("cluster", "head", env={**env, "SESSIONRUN_CLUSTER_TIMERS": "margin=0"})
    assert times.returncode == 2 and "SESSIONRUN_CLUSTER_TIMERS: margin must be at least" in times.stderr
    unit = sessionrun("cluster", "node", "tls://127.0.0.1:1", "--name", "a", "--slots", "3", "--systemd", env=env)
    assert "ExecStart=" in unit.stdout and "cluster node tls://127.0.0.1:1 --name a --slots 3" in unit.stdout
    assert {"Type=exec", "Restart=always", "KillMode=control-group"} <= set(unit.stdout.splitlines())
    assert not sessionrun.results.exists()
    assert f"Environment=SESSIONRUN_NODES={env['SESSIONRUN_NODES']}\n" in unit.stdout
    assert "Environment=PATH=" in unit.stdout and not Path(env["SESSIONRUN_NODES"]).exists()
    refused = sessionrun("cluster", "status", "tls://127.0.0.1:1", env=env)
    # a machine that is busy may have no time left for the last of its tries
    assert re.search(r"answer: (ConnectionRefusedError: \[Errno 111\]|Timed out trying)", refused.stderr)


@pytest.mark.slow
def test_a_hundred_megabytes_come_byte_for_byte_while_workers_are_killed(cluster: RealCluster) -> None:
    command = cluster.command
    size = 100 * 1000 * 1000 + 1
    code = f"import random, sys; sys.stdout.buffer.write(random.Random(7).randbytes({size}))"
    session_id = start(cluster, [{"id": "big", "prompt": f'"{sys.executable}" -c "{code}"'}])
    path = command.directory(session_id) / "task-big.txt"
    for part in (1, 3, 5):
        eventually(lambda part=part: path.is_file() and path.stat().st_size > part * 10_000_000)  # type: ignore[misc]
        for worker in cluster.find("dask_worker"):
            worker.kill()
    assert command.wait(session_id)["outcome"] == "succeeded"
    wanted = hashlib.sha256(random.Random(7).randbytes(size)).digest()
    assert path.stat().st_size == size and hashlib.sha256(path.read_bytes()).digest() == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim", ["worker", "root", "keeper", "link", "scheduler", "supervisor", "session's keeper"]
)
def test_whatever_is_killed_nothing_is_lost(victim: str, cluster: RealCluster) -> None:
    command, names = cluster.command, ("a", "b", "c", "d")
    session_id = start(cluster, cluster.command.waiting(*names))
    eventually(lambda: cluster.command.is_up(session_id, *names))
    for _ in range(2):
        eventually(lambda: kill(cluster, session_id, victim))
    cluster.command.let_go(*names)
    view = command.wait(session_id)
    ends = [(task["outcome"], task["attempt"], task["reason"]) for task in view["tasks"]]
    assert [end[:2] for end in ends] == [("succeeded", 1)] * 4, ends
    for name in names:
        assert (command.directory(session_id) / f"task-{name}.txt").read_text() == "up\ndown\n"


def kill(cluster: RealCluster, session_id: str, victim: str) -> bool:
    """kill -9 of those that are there; whether any was.  They are gone then."""
    if victim in ("worker", "scheduler"):
        found = cluster.find(f"dask_{victim}")
    elif victim in ("supervisor", "session's keeper"):
        role = victim.rpartition(" ")[2]
        found = []
        with suppress(AssertionError, psutil.Error, ValueError):
            found = [psutil.Process(cluster.command.chain(session_id)[ROLES.index(role)])]
    else:
        found = [process for name in ("n0", "n1") for process in cluster.find_chain(name, victim)]
    return kill_and_wait(found)


def find_node(command: Command, session_id: str) -> str:
    """The node of the first task, once its status says it."""
    return str(eventually(lambda: command.status(session_id)["tasks"][0]["node"]))


def find_silences(command: Command, session_id: str) -> list[str | None]:
    return [silence["node"] for silence in command.status(session_id)["no_contact"]]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["dask_worker", "dask_scheduler"])
def test_what_has_no_contact_is_named_within_its_lease_and_a_cancel_says_what_happens(
    sessionrun: Command, what: str
) -> None:
    with real_cluster(sessionrun, nodes=1, timers="tick=0.3,lease=600,grace=0.5,margin=4") as cluster:
        session_id = start(cluster, cluster.command.waiting("a"))
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        (process,), loop = cluster.find(what), cluster.programs["n0" if what == "dask_worker" else "head"]
        node = find_node(sessionrun, session_id) if what == "dask_worker" else None
        for one in (loop, process):
            one.send_signal(signal.SIGSTOP)
        eventually(lambda: find_silences(sessionrun, session_id) == [node])
        said = f"No contact with {'the cluster' if node is None else f'node {node}'}"
        for words in (("status", session_id), ("list",), ("explain", session_id)):
            assert said in sessionrun(*words).stdout, words
        (listed,) = json.loads(sessionrun("list", "--json").stdout)["sessions"]
        (silence,) = listed["no_contact"]
        assert 599 < parse_time(silence["lease_ends_at"]) - parse_time(silence["since"]) < 601
        cancelled = sessionrun("cancel", session_id, "--now", "--timeout", "1")
        assert cancelled.returncode == 124 and said in cancelled.stderr
        assert "a: the order to stop waits for contact; without contact the node itself ends" in cancelled.stderr
        for one in (process, loop):
            one.send_signal(signal.SIGCONT)
        view = sessionrun.wait(session_id)
        assert (view["tasks"][0]["outcome"], view["no_contact"]) == ("cancelled", [])


@pytest.mark.slow
def test_a_node_without_contact_ends_its_jobs_and_they_are_lost(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1, timers=SHORT_WORDS) as cluster:
        session_id = start(cluster, cluster.command.waiting("a"))
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        (worker,) = cluster.find("dask_worker")
        cluster.programs["n0"].send_signal(signal.SIGSTOP)  # which would start another worker
        worker.send_signal(signal.SIGSTOP)
        view = sessionrun.wait(session_id)
        assert view["no_contact"] == []
        (task,) = view["tasks"]
        assert (task["outcome"], task["attempt"]) == ("lost", 1)
        assert "lease" in task["reason"] and "n0" in task["reason"]
        explained = sessionrun("explain", session_id, "a").stdout
        assert "on node n0@" in explained and "never ran" not in explained
        cluster.start_node("n1")
        cluster.command.let_go("a")
        assert sessionrun("retry", session_id).returncode == 0
        view = sessionrun.wait(session_id)
        assert (view["tasks"][0]["outcome"], view["tasks"][0]["attempt"]) == ("succeeded", 2)
        assert view["tasks"][0]["node"].startswith("n1@")


@pytest.mark.slow
def test_with_keeper_and_root_stopped_the_worker_ends_the_jobs_with_the_lease(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1, timers="tick=0.3,lease=6,grace=1,margin=3") as cluster:
        session_id = start(cluster, [{"id": "a", "prompt": "trap '' TERM; echo up; while :; do sleep 1; done"}])
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        stopped = [one for which in ("root", "keeper", "link") for one in cluster.find_chain("n0", which)]
        assert len(stopped) == 3
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        view = cluster.command.wait(session_id)
        assert (view["outcome"], view["tasks"][0]["outcome"]) == ("failed", "lost")
        assert not [one for one in psutil.process_iter() if f"/{session_id}/" in marker_of(one)]
        for process in stopped:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_worktrees_travel_and_all_branches_come_back(cluster: RealCluster) -> None:
    command = cluster.command
    repository = make_repository(command.cwd)
    git(repository, "branch", "main-task-two")  # a name that is taken here, and on no node
    plan = [
        {"id": "one", "prompt": "echo one >> f; git log --oneline", "setup": "echo made > made"},
        {"id": "two", "prompt": "echo two > two; git add two; git commit -qm mine; echo more > more"},
        {"id": "three", "prompt": "cat f two > three", "needs": ["one", "two"], "check": "grep two three"},
        {"id": "bad", "prompt": "echo bad > bad; exit 3"},
        {"id": "none", "prompt": "pwd"},
        {"id": "rounds", "prompt": "echo x >> n", "check": "test $(wc -l < n) = 2", "rounds": 2},
    ]
    view = command.wait(start(cluster, plan, "--worktree"))
    tasks = {task["id"]: task for task in view["tasks"]}
    assert {name for name, task in tasks.items() if task["outcome"] == "succeeded"} == set(tasks) - {"bad"}
    assert tasks["two"]["branch"] == "main-task-two-2" and tasks["none"]["branch"] is None
    for name, task in tasks.items():
        if name != "none":
            assert git(repository, "rev-parse", task["branch"]) == task["commit"]
    assert git(repository, "show", "main-task-three:three") == "base\none\ntwo"
    assert git(repository, "show", "main-task-three:more") == "more"
    assert git(repository, "show", "main-task-bad:bad") == "bad"
    assert git(repository, "show", "main-task-rounds:n") == "x\nx"
    assert git(repository, "diff", "--name-only", f"{tasks['one']['setup_commit']}..main-task-one") == "f"
    patch = command("diff", view["session_id"], "three").stdout
    assert "+++ b/three" in patch and "two" in patch and "+++ b/more" not in patch
    assert git(repository, "fsck", "--no-dangling") == ""
    assert git(repository, "worktree", "list").count("\n") == 0
    landed = command("merge", view["session_id"], "three", "one", "two")
    assert landed.returncode == 0 and git(repository, "show", "main:three") == "base\none\ntwo"


def make_repository(path: Path) -> Path:
    """A repository with a commit on main."""
    git(path, "init", "-q", "-b", "main")
    (path / "f").write_text("base\n")
    git(path, "add", "f")
    git(path, "commit", "-q", "-m", "base")
    return path


@pytest.mark.slow
def test_a_worktree_of_a_node_that_went_waits_for_it(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1, timers=SHORT_WORDS) as cluster:
        repository = make_repository(sessionrun.cwd)
        wait = f"echo up; echo work > work; while [ ! -e {sessionrun.cwd}/go-a ]; do sleep 0.05; done"
        session_id = start(cluster, [{"id": "a", "prompt": wait}], "--worktree")
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        cluster.kill_all("n0")
        sessionrun.until(session_id, lambda view: "lease" in (view["tasks"][0]["reason"] or ""))
        assert sessionrun.load("status", session_id)["status"] == "running"  # RELEASE waits for its node
        cluster.start_node("n0")
        view = sessionrun.wait(session_id)
        (task,) = view["tasks"]
        assert task["outcome"] == "lost" and git(repository, "show", f"{task['branch']}:work") == "work"


@pytest.mark.slow
def test_cancel_ends_the_whole_tree_on_the_node(cluster: RealCluster) -> None:
    trap = "trap '' TERM; echo up; while :; do sleep 300; done"
    session_id = start(cluster, [{"id": "a", "prompt": f'setsid sh -c "{trap}" & {trap}'}])
    eventually(lambda: cluster.command.is_up(session_id, "a"))
    begun = time.monotonic()
    assert cluster.command("cancel", session_id).returncode == 0
    view = cluster.command.wait(session_id)
    assert view["tasks"][0]["outcome"] == "cancelled"
    assert time.monotonic() - begun < 60
    assert not [one for one in psutil.process_iter() if f"/{session_id}/" in marker_of(one)]


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", find_own_address()])
def test_what_has_no_certificate_of_the_cluster_is_kept_out(sessionrun: Command, host: str) -> None:
    env = {"SESSIONRUN_CERTS": str(sessionrun.cwd / "certs")}
    with real_cluster(sessionrun, nodes=1, env=env, host=host) as cluster:
        for path in (sessionrun.cwd / "certs").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600, path
        words = ("--sync", "--agent", "shell", "--cluster", cluster.address, "-p", "echo hi")
        done = sessionrun(*words, env=cluster.env)
        assert done.returncode == 0 and "hi" in done.stdout
        others = {"SESSIONRUN_CERTS": str(sessionrun.cwd / "others")}
        assert sessionrun("cluster", "certs", env=others).returncode == 0
        refused = sessionrun("cluster", "status", cluster.address, env=others)
        assert refused.returncode == 2 and "TLS certificate does not match" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        assert is_answered(host, cluster.port, sessionrun.cwd / "certs")
        logs = "".join((sessionrun.cwd / f"{name}.log").read_text() for name in cluster.programs)
        pages = [int(port) for port in re.findall(r"dashboard at: +\S+:(\d+)", logs)]
        assert len(pages) == 2
        for place, port in {one for process in cluster.find("dask") for one in listens_at(process)}:
            if port not in pages:
                assert not any(is_answered(place, port, certs) for certs in (None, sessionrun.cwd / "others"))
                continue
            for page in ("health", "metrics", "info/main/workers.html", "json/counts.json"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(f"http://{place}:{port}/{page}", timeout=60)


def is_answered(host: str, port: int, certs: Path | None) -> bool:
    """Whether a program of dask says something to one who takes any server for the right one."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certs is not None:
        context.load_cert_chain(certs / "cert.pem", certs / "key.pem")
    try:
        with socket.create_connection((host, port), 60) as plain, context.wrap_socket(plain) as connection:
            return bool(connection.recv(1))
    except OSError:
        return False


@pytest.mark.slow
def test_without_a_node_a_session_waits_and_says_so(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=0) as cluster:
        (sessionrun.cwd / "sessionrun.toml").write_text(f'cluster = "{cluster.address}"\n')
        session_id = sessionrun.start(cluster.command.waiting("a"), "--max-parallel", "3")
        eventually(lambda: "no node of the session's cluster" in sessionrun("explain", session_id, "a").stdout)
        cluster.start_node("n0")
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        eventually(lambda: "on node n0@" in sessionrun("explain", session_id, "a").stdout)
        assert "never ran" not in sessionrun("explain", session_id, "a").stdout
        assert "\n    on node n0@" in sessionrun("status", session_id).stdout
        cluster.command.let_go("a")
        assert sessionrun.wait(session_id)["outcome"] == "succeeded"


@pytest.mark.slow
def test_a_node_of_another_version_gets_no_jobs(sessionrun: Command) -> None:
    other = sessionrun.cwd / "other"
    shutil.copytree(Path(package.__file__).parent, other / "sessionrun")
    (other / "sessionrun" / "__init__.py").write_text('__version__ = "9.9"\n')
    with real_cluster(sessionrun, nodes=0) as cluster:
        words = ("cluster", "node", cluster.address, "--name", "old", "--slots", "2")
        cluster.start_program("old", *sessionrun.argv, *words, env={"PYTHONPATH": str(other)})
        cluster.wait_for_nodes(1)
        refused = sessionrun("--agent", "shell", "--cluster", cluster.address, "-p", "true")
        said = f"its nodes have version 9.9 of sessionrun, and this is {package.__version__}: install the same"
        assert refused.returncode == 2 and said in refused.stderr and not sessionrun.results.exists()
        cluster.start_node("n0")
        cluster.wait_for_nodes(2)
        session_id = start(cluster, cluster.command.waiting("a"))
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        assert "it has version 9.9 of sessionrun, and gets no jobs" in sessionrun("doctor", session_id).stdout
        cluster.command.let_go("a")
        assert sessionrun.wait(session_id)["tasks"][0]["node"].startswith("n0@")


@pytest.mark.slow
def test_two_sessions_share_the_slots_of_a_node(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1, slots=2) as cluster:
        on = sessionrun.cwd / "on"
        on.mkdir()
        script = (
            f"mkdir {on}/$SESSIONRUN_TASK; ls {on} | wc -l >> {on}-seen; sleep 0.4; rmdir {on}/$SESSIONRUN_TASK"
        )
        ids = [start(cluster, [{"prompt": script} for _ in range(5)], "--name", str(i)) for i in range(2)]
        for session_id in ids:
            assert sessionrun.wait(session_id)["outcome"] == "succeeded"
        assert max(int(line) for line in (sessionrun.cwd / "on-seen").read_text().split()) <= 2


@pytest.mark.slow
def test_two_machines_of_one_name_are_two_nodes(sessionrun: Command) -> None:
    names = ("a", "b", "c", "d")
    with real_cluster(sessionrun, nodes=1, slots=2) as cluster:
        words = ("cluster", "node", cluster.address, "--name", "n0", "--slots", "2")
        other = {"SESSIONRUN_NODES": str(cluster.nodes_dir / "other")}
        cluster.start_program("other", *sessionrun.argv, *words, env=other)
        eventually(lambda: [node["name"] for node in cluster.show()["nodes"] if node["lives"]] == ["n0", "n0"])
        again = sessionrun(*words[:-1], "3", env=cluster.env)  # and this would be the first one
        assert again.returncode == 2 and "is the node n0: end it, or give this one another" in again.stderr
        assert len(again.stderr.splitlines()) == 1 and {node["slots"] for node in cluster.show()["nodes"]} == {2}
        assert load_site(cluster.site("n0")).slots == 2
        session_id = start(cluster, cluster.command.waiting(*names))
        eventually(lambda: cluster.command.is_up(session_id, *names))
        cluster.command.let_go(*names)
        view = sessionrun.wait(session_id)
        nodes = [task["node"] for task in view["tasks"]]
        assert view["outcome"] == "succeeded"
        assert {nodes.count(node) for node in nodes} == {2}
        assert {node.partition("@")[0] for node in nodes} == {"n0"}
