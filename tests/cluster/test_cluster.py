"""Sessions on a cluster of real programs: dask's scheduler, its workers, our nodes, on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from clusters import (
    SHORT_WORDS,
    RealCluster,
    find_own_address,
    make_repository,
    processes_of,
    real_cluster,
    start_waiting,
)
from conftest import Command, eventually, is_gone
from stages import git, write_files

import sessionrun as package
from sessionrun.cluster.address import make_certs, open_cluster
from sessionrun.cluster.companions import MAX_BYTES
from sessionrun.cluster.machines import open_head
from sessionrun.cluster.messages import PROTOCOL
from sessionrun.cluster.node_directory import load_site
from sessionrun.model.words import parse_time

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def start(cluster: RealCluster, plan: object, *words: str) -> str:
    return cluster.command.start(plan, "--cluster", cluster.address, *words)


def listens_at(process: psutil.Process) -> set[tuple[str, int]]:
    """Addresses and ports."""
    own = [one.laddr for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    return {(one.ip, one.port) for one in own}


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
    environ = {"SESSIONRUN_CERTS": str(own_place / "certs"), "SESSIONRUN_NODES": str(own_place / "nodes")}
    make_certs(own_place / "certs")
    argv, address, lock_fd = open_head(host, 0, environ)
    os.close(lock_fd)
    assert address in argv and open_cluster(address, environ).address.startswith("tls://[::1]:")


HEAD = """
from sessionrun.cli import main
from sessionrun.cluster import machines
machines.open_head, machines.keep_head = lambda *_: ([], "tls://[::]:1", 0), lambda *_: 0
raise SystemExit(main(["cluster", "head", "--host", "::"]))
"""


@pytest.mark.parametrize("program", ["from sessionrun.keeper.wire import say; say('no contact')", HEAD])
def test_a_full_disk_of_a_log_ends_no_program_of_a_machine(program: str) -> None:
    with open("/dev/full", "wb") as full:
        assert subprocess.run([sys.executable, "-c", program], stderr=full).returncode == 0


@pytest.mark.long
def test_what_is_refused_before_anything_starts(sessionrun: Command) -> None:
    env = {"SESSIONRUN_CERTS": str(sessionrun.cwd / "certs"), "SESSIONRUN_NODES": str(sessionrun.cwd / "nodes")}
    made = sessionrun("cluster", "certs", env=env)
    assert made.returncode == 0 and made.stdout.splitlines()[0].endswith("certs/ca.pem")
    assert (sessionrun.cwd / "certs" / "key.pem").stat().st_mode & 0o777 == 0o600
    repository = make_repository(sessionrun.cwd)
    write_files(repository, {".gitignore": "big\n", ".worktreeinclude": "big\n"})
    (repository / "big").touch()
    os.truncate(repository / "big", MAX_BYTES + 1)
    launch = ("--agent", "shell", "--cluster", "tls://127.0.0.1:1", "-p", "true")
    # a machine that is busy may have no time left for the last of its tries
    silent = r"the cluster at tls://127.0.0.1:1 does not answer: (ConnectionRefusedError: \[Errno 111\]|Timed out)"
    for words, said in [
        (("cluster", "head", "--host", "192.0.2.1"), "cannot listen at 192.0.2.1"),
        (("cluster", "status", "tls://127.0.0.1:1"), silent),
        (("cluster", "status", "tls://a..b:1"), "the cluster at tls://a..b:1 does not answer: encoding with"),
        (launch, "is `sessionrun cluster head` running there, with"),
        (("--worktree", *launch), ".worktreeinclude names files of 16777217 bytes"),
    ]:
        done = sessionrun(*words, env=env)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert re.search(said, done.stderr) and len(done.stderr.splitlines()) == 1, done.stderr
    assert not sessionrun.results.exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["link", "dask_scheduler"])
def test_what_has_no_contact_is_named_within_its_lease_and_a_cancel_says_what_happens(
    sessionrun: Command, what: str
) -> None:
    with real_cluster(sessionrun, nodes=1, timers="tick=0.3,lease=600,grace=0.5,margin=4") as cluster:
        session_id = start_waiting(sessionrun, cluster.address, "a")
        (process,) = cluster.find_chain("n0", what) if what == "link" else cluster.find(what)
        seen = eventually(lambda: sessionrun.status(session_id)["tasks"][0]["node"])
        node = seen if what == "link" else None
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: [one["node"] for one in sessionrun.status(session_id)["no_contact"]] == [node])
        said = f"No contact with {'the cluster' if node is None else f'node {node}'}"
        for words in (("status", session_id), ("list",), ("explain", session_id)):
            assert sessionrun(*words).stdout.count(said) == 1, words
        (listed,) = json.loads(sessionrun("list", "--json").stdout)["sessions"]
        (silence,) = listed["no_contact"]
        assert 599 < parse_time(silence["lease_ends_at"]) - parse_time(silence["since"]) < 601
        cancelled = sessionrun("cancel", session_id, "--now", "--timeout", "1")
        assert cancelled.returncode == 124 and said in cancelled.stderr
        assert "a: the order to stop waits for contact; without contact the node itself ends" in cancelled.stderr
        process.send_signal(signal.SIGCONT)
        view = sessionrun.wait(session_id)
        assert (view["tasks"][0]["outcome"], view["no_contact"]) == ("cancelled", [])


@pytest.mark.slow
def test_worktrees_travel_with_what_tasks_have_here_and_all_branches_come_back(sessionrun: Command) -> None:
    repository = make_repository(sessionrun.cwd)
    write_files(repository, {".gitignore": ".env\nmodels\n", ".worktreeinclude": ".env\n", ".env": "KEY=1\n"})
    git(repository, "add", ".gitignore")
    git(repository, "commit", "-q", "-m", "rules")
    write_files(repository, {"models/m": "model\n"})
    git(repository, "branch", "main-task-two")  # a name that is taken here, and on no node
    brings = "cat .env models/m > got; : > .gitignore"
    plan = [
        {"id": "one", "prompt": "echo one >> f; git log --oneline", "setup": "echo made > made"},
        {"id": "two", "prompt": "echo two > two; git add two; git commit -qm mine; echo more > more"},
        {"id": "three", "prompt": "cat f two > three", "needs": ["one", "two"], "check": "grep two three"},
        {"id": "bad", "prompt": "echo bad > bad; exit 3"},
        {"id": "none", "prompt": "pwd"},
        {"id": "rounds", "prompt": "echo x >> n", "check": "test $(wc -l < n) = 2", "rounds": 2},
        {"id": "brings", "prompt": brings, "links": ["models"]},
        {"id": "has", "prompt": 'test "$KEY" = s3cret-value', "env": {"KEY": "{env:TEAM_KEY}"}},
    ]
    with real_cluster(sessionrun, env={"TEAM_KEY": "s3cret-value"}) as cluster:
        view = sessionrun.wait(start(cluster, plan, "--worktree"))
        assert not list(cluster.nodes_dir.glob("*/repositories/*/included/*"))
    tasks = {task["id"]: task for task in view["tasks"]}
    failed = {name: task["reason_class"] for name, task in tasks.items() if task["outcome"] != "succeeded"}
    assert failed == {"bad": "exit_code"}
    assert tasks["two"]["branch"] == "main-task-two-2" and tasks["none"]["branch"] is None
    for task in tasks.values():
        if task["branch"] is not None:
            assert git(repository, "rev-parse", task["branch"]) == task["commit"]
    for place, text in {
        "three:three": "base\none\ntwo",
        "three:more": "more",
        "bad:bad": "bad",
        "rounds:n": "x\nx",
        "brings:got": "KEY=1\nmodel",
    }.items():
        assert git(repository, "show", f"main-task-{place}") == text
    assert git(repository, "diff", "--name-only", f"{tasks['one']['setup_commit']}..main-task-one") == "f"
    changed = git(repository, "diff", "--name-only", f"{tasks['brings']['base_commit']}..main-task-brings").split()
    assert changed == [".gitignore", "got"]  # what was brought is no work, though git ignores it no more
    patch = sessionrun("diff", view["session_id"], "three").stdout
    assert "+++ b/three" in patch and "two" in patch and "+++ b/more" not in patch
    assert git(repository, "fsck", "--no-dangling") == ""
    assert git(repository, "worktree", "list").count("\n") == 0
    landed = sessionrun("merge", view["session_id"], "three", "one", "two")
    assert landed.returncode == 0 and git(repository, "show", "main:three") == "base\none\ntwo"


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
        assert len(pages) == 1
        assert not any(map(listens_at, processes_of(str(cluster.nodes_dir / "n0"))))
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
def test_a_session_waits_for_a_node_of_its_version_and_says_so(sessionrun: Command) -> None:
    other = sessionrun.cwd / "other"
    shutil.copytree(Path(package.__file__).parent, other / "sessionrun")
    (other / "sessionrun" / "__init__.py").write_text('__version__ = "9.9"\n')
    with real_cluster(sessionrun, nodes=0) as cluster:
        (sessionrun.cwd / "sessionrun.toml").write_text(f'cluster = "{cluster.address}"\n')
        session_id = sessionrun.start(cluster.command.waiting("a"), "--max-parallel", "3")
        eventually(lambda: "no node of the session's cluster" in sessionrun("explain", session_id, "a").stdout)
        words = ("cluster", "node", cluster.address, "--name", "old", "--slots", "2")
        cluster.start_program("old", *sessionrun.argv, *words, env={"PYTHONPATH": str(other)})
        cluster.wait_for_nodes(1)
        refused = sessionrun("--agent", "shell", "-p", "true")
        said = f"its nodes have version 9.9 of sessionrun, and this is {package.__version__}: install the same"
        assert refused.returncode == 2 and said in refused.stderr
        assert len(list(sessionrun.results.glob("session-*"))) == 1
        cluster.start_node("n0")
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        assert "it has version 9.9 of sessionrun, and gets no jobs" in sessionrun("doctor", session_id).stdout
        eventually(lambda: "on node n0@" in sessionrun("explain", session_id, "a").stdout)
        assert "never ran" not in sessionrun("explain", session_id, "a").stdout
        assert "\n    on node n0@" in sessionrun("status", session_id).stdout
        cluster.command.let_go("a")
        assert sessionrun.wait(session_id)["tasks"][0]["node"].startswith("n0@")


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
        session_id = start_waiting(sessionrun, cluster.address, *names)
        cluster.command.let_go(*names)
        view = sessionrun.wait(session_id)
        nodes = [task["node"] for task in view["tasks"]]
        assert view["outcome"] == "succeeded"
        assert {nodes.count(node) for node in nodes} == {2}
        assert {node.partition("@")[0] for node in nodes} == {"n0"}


# --- The end of a cluster's programs: by hand with virtual time, and of real ones on loopback ---


def stop(cluster: RealCluster, *words: str) -> tuple[int, str, str]:
    done = cluster.command("cluster", "stop", cluster.address, *words, env=cluster.env)
    return done.returncode, done.stdout, done.stderr


def check_gone(cluster: RealCluster) -> None:
    """All programs of the cluster have ended, by themselves."""
    for program in cluster.programs.values():
        assert program.wait(60) == 0
    eventually(lambda: not processes_of(str(cluster.nodes_dir)))
    assert not processes_of(f":{cluster.port}")


@pytest.mark.slow
def test_stop_names_jobs_or_ends_them_and_what_is_started_again_stays(sessionrun: Command) -> None:
    with real_cluster(sessionrun) as cluster:
        assert "say --yes" in stop(cluster)[2]
        repository = make_repository(cluster.command.cwd)
        plan = [{"id": "a", "prompt": "echo work > work; echo up; while :; do sleep 0.1; done"}]
        session_id = start(cluster, plan, "--worktree")
        eventually(lambda: cluster.command.is_up(session_id, "a"))
        code, out, said = stop(cluster, "--yes")
        assert (code, out) == (2, "") and f"task a of session {session_id} on n" in said and "--force" in said
        code, out, _ = stop(cluster, "--yes", "--force")
        assert code == 0 and "The head has ended." in out
        (task,) = cluster.command.wait(session_id)["tasks"]
        assert task["outcome"] == "lost" and "its node was stopped with the cluster" in task["reason"]
        assert git(repository, "show", f"{task['branch']}:work") == "work", "it came home"
        check_gone(cluster)
        cluster.start_head()
        cluster.start_node("n0")
        eventually(cluster.show)
        cluster.wait_for_nodes(1)
        assert cluster.command.wait(start(cluster, ["echo again"]))["outcome"] == "succeeded"
        eventually(lambda: not cluster.show()["sessions"])
        code, out, _ = stop(cluster, "--yes", "--json")
        told = json.loads(out)
        assert code == 0 and told["head"] == "left" and {one["state"] for one in told["nodes"]} == {"left"}
        check_gone(cluster)


@pytest.mark.slow
def test_the_processes_of_a_node_whose_program_was_ended_go_by_themselves(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1, timers="tick=0.3,lease=3,grace=0.5,margin=2.2") as cluster:
        assert processes_of(str(cluster.site("n0")))
        cluster.programs["n0"].terminate()
        assert cluster.programs["n0"].wait(60) == 0
        eventually(lambda: not processes_of(str(cluster.site("n0"))))
        cluster.start_node("n0")
        eventually(lambda: processes_of(str(cluster.site("n0"))))


@pytest.mark.slow
def test_the_programs_of_a_killed_head_and_a_killed_node_go_and_the_jobs_go_on(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=1) as cluster:
        session_id = start_waiting(sessionrun, cluster.address, "a", "b")
        left = cluster.find("dask")
        for program in cluster.programs.values():
            program.kill()
            program.wait()
        assert len(left) == 1
        eventually(lambda: all(map(is_gone, left)))
        cluster.command.let_go("a")
        cluster.start_head()
        cluster.start_node("n0", 3)
        eventually(
            lambda: [(node["lives"], node["slots"]) for node in cluster.show().get("nodes", ())] == [(True, 3)]
        )
        cluster.command.let_go("b")
        tasks = cluster.command.wait(session_id)["tasks"]
        assert [(task["outcome"], task["attempt"]) for task in tasks] == [("succeeded", 1)] * 2
        for name in ("head", "n0"):
            assert cluster.programs[name].poll() is None


@pytest.mark.slow
def test_doctor_names_a_node_and_a_head_that_are_gone(sessionrun: Command) -> None:
    with real_cluster(sessionrun, timers="tick=0.3,lease=4,grace=0.5,margin=2.2") as cluster:
        session_id = start_waiting(sessionrun, cluster.address, "a")
        assert "Nothing is wrong" in sessionrun("doctor", session_id).stdout
        (idle,) = [node["name"] for node in cluster.show()["nodes"] if not node["used"]]
        cluster.kill_all(idle)
        cluster.wait_for_nodes(1)
        done = sessionrun("doctor", session_id)
        assert done.returncode == 1 and f"cluster node {cluster.address} --name {idle}" in done.stdout
        cluster.programs["head"].kill()
        for process in cluster.find("dask_scheduler"):
            process.kill()
        told = json.loads(sessionrun("doctor", session_id, "--json").stdout)
        assert [(one["check"], one["where"]) for one in told["findings"]] == [("cluster", cluster.address)]


# --- Sessions on a cluster of dask that its user started, without a word of ours on its command lines ---


class OwnCluster(RealCluster):
    """A scheduler and workers of dask."""

    def start_scheduler(self, env: dict[str, str] | None = None, *words: str) -> None:
        """Start the scheduler, and wait for it."""
        argv = (sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", self.address, "--no-dashboard")
        self.start_program("scheduler", *argv, *self.name_certs(), *words, env=env)
        said = "its scheduler has no plug-ins", "it speaks version"
        # a session that waits for it may have registered the plug-ins by now
        eventually(lambda: self.show() or any(words in self.ask() for words in said))

    def start_worker(self, name: str, env: dict[str, str] | None = None) -> None:
        """Start a worker of two slots."""
        argv = (sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--name", name, "--no-nanny")
        self.start_program(
            name, *argv, *self.name_certs(), "--nthreads", "1", "--resources", "slot=2", "--no-dashboard", env=env
        )
        log = self.command.cwd / f"{name}.log"
        eventually(lambda: "Registered to" in log.read_text())

    def name_certs(self) -> list[str]:
        """The words of dask's for the files of `cluster certs`."""
        folder = Path(self.env["SESSIONRUN_CERTS"])
        if not folder.exists():
            make_certs(folder)
        names = {"--tls-ca-file": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
        return [word for option, name in names.items() for word in (option, str(folder / name))]

    def ask(self) -> str:
        """What `cluster status` says on standard error."""
        return self.command("cluster", "status", self.address, env=self.env).stderr

    def launch(self) -> tuple[int, str]:
        """The exit code and standard error of a launch of one job."""
        words = ("--agent", "shell", "--cluster", self.address, "-p", "true")
        done = self.command(*words, env=self.env)
        return done.returncode, done.stderr


@pytest.fixture
def own(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnCluster]:
    """Nothing runs yet."""
    temporary = {"DASK_TEMPORARY_DIRECTORY": str(sessionrun.cwd / "dask")}
    made = OwnCluster(sessionrun, "", {**temporary, "SESSIONRUN_CERTS": str(sessionrun.cwd / "certs")})
    monkeypatch.setenv("SESSIONRUN_CERTS", made.env["SESSIONRUN_CERTS"])
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_a_session_registers_what_the_cluster_lacks_also_after_a_new_start(own: OwnCluster) -> None:
    own.start_scheduler()
    own.start_worker("w0")
    command = own.command
    code, said = own.launch()
    assert code == 0 and "no adaptive scaling" in said and "start it again under the same --name" in said
    session_id = start_waiting(own.command, own.address, "a")  # and is not told again
    for process in own.find("dask_scheduler"):
        process.kill()
    own.programs["w0"].wait(60)  # it closes without its scheduler; the job goes on
    own.start_scheduler()
    own.start_worker("w0")
    own.command.let_go("a")
    (task,) = command.wait(session_id)["tasks"]
    assert (task["outcome"], task["attempt"]) == ("succeeded", 1) and "-w0@" in task["node"]
    own.start_worker("w1")  # a later worker gets the guard by itself
    own.wait_for_nodes(2)


def lay_out_without(own: OwnCluster) -> None:
    """A directory for PYTHONPATH, with which our programs are not installed."""
    (own.command.cwd / "without").mkdir()
    (own.command.cwd / "without" / "sessionrun.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'sessionrun'\")\n"
    )


@pytest.mark.slow
def test_a_worker_without_our_programs_lives_on_and_gets_no_jobs(own: OwnCluster) -> None:
    lay_out_without(own)
    env = {"PYTHONPATH": "without"}
    own.start_scheduler()
    own.start_worker("bare", env)
    own.start_worker("good")
    code, said = own.launch()
    assert code == 0 and "No module named 'sessionrun'; sessionrun has to be installed there" in said
    own.wait_for_nodes(1)
    own.start_worker("later", env)
    view = own.command.wait(start(own, ["true"] * 4))
    assert view["outcome"] == "succeeded" and all("-good@" in task["node"] for task in view["tasks"])
    for name in ("bare", "later"):
        assert own.programs[name].poll() is None


OTHER_VERSION = """\
from sessionrun.cluster import dask_scheduler as scheduler
scheduler.PROTOCOL = 99
dask_setup = scheduler.dask_setup
"""
SETTING = "DASK_DISTRIBUTED__SCHEDULER__"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "words", "said"),
    [
        (
            {f"{SETTING}BLOCKED_HANDLERS": '["register_scheduler_plugin"]'},
            (),
            "start it with --preload sessionrun.cluster.dask_scheduler",
        ),
        ({f"{SETTING}IDLE_TIMEOUT": "'1 hour'"}, (), "start it without distributed.scheduler.idle-timeout"),
        ({"PYTHONPATH": "without"}, (), "sessionrun has to be installed where the scheduler runs"),
        ({}, ("--preload", "other.py"), f"speaks version {PROTOCOL} of the protocol, and this scheduler 99"),
    ],
    ids=["nothing can be registered", "it ends when it is idle", "without our programs", "of another version"],
)
def test_what_a_cluster_of_ones_own_must_not_be(
    env: dict[str, str], words: tuple[str, ...], said: str, own: OwnCluster
) -> None:
    lay_out_without(own)
    (own.command.cwd / "other.py").write_text(OTHER_VERSION)
    own.start_scheduler(env, *words)
    code, told = own.launch()
    assert code == 2 and said in told and len(told.splitlines()) == 1
    assert not own.command.results.exists()
