"""Clusters for tests: a node with the scheduler in the test's own process, and whole ones of real programs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from conftest import Command, eventually
from stages import begin_repository, git

from sessionrun.cluster.address import find_certs_dir, make_certs
from sessionrun.cluster.dask_executor import Arrivals
from sessionrun.cluster.dask_scheduler import WaitingRoom, serve
from sessionrun.cluster.ends import Head, Opened, Timers
from sessionrun.cluster.messages import Message
from sessionrun.cluster.node_directory import GUARD_LOCK, NodeSite, open_node, start_root
from sessionrun.cluster.permits import Permits
from sessionrun.keeper.lease import LeaseFile, boot_ns
from sessionrun.model.asked import Cluster
from sessionrun.store import locks
from sessionrun.store.logs import read_log
from sessionrun.store.session import SessionDir

PATIENT = Timers(tick=0.2)
SHORT = Timers(tick=0.3, lease=4.0, grace=0.5, margin=2.2)
SHORT_WORDS = "tick=0.3,lease=5,grace=0.5,margin=2.2"
SID = "11111111-1111-4111-8111-111111111111"


def make_order(job: str, *argv: str, **order: Any) -> Message:
    about: Message = {
        "argv": list(argv),
        "cwd": "/",
        "env": {},
        "stdin": "",
        "stdout": f"task-{job}.txt",
        "stderr": f"task-{job}.err",
        "grace_s": 0.2,
        "files": {},
        "folders": [],
        "folder": "jobs/none",
        "placed": [],
        "disk": None,
    }
    return {**about, **order}


class NodeUnderTest:
    """A real node of this machine, which the test guards; its scheduler and its session are in the test."""

    def __init__(self, nodes: Path, timers: Timers = PATIENT, slots: int = 4) -> None:
        self._loop = asyncio.new_event_loop()
        ca_file, cert_file, key_file = map(str, make_certs(nodes / "certs"))
        self.cluster = Cluster("", ca_file, cert_file, key_file)
        self.cluster = replace(self.cluster, address=self._loop.run_until_complete(self._listen(nodes)))
        self.site: NodeSite = open_node(nodes, "n", slots, self.cluster)
        lock_fd = locks.hold(nodes / "n" / GUARD_LOCK)
        assert lock_fd is not None
        self._lock_fd = lock_fd
        self._rooms: list[WaitingRoom] = []
        self.restart_scheduler("e1", timers)
        self.session = SessionDir(nodes / f"session-{SID}")
        self.session.path.mkdir()
        self.head = Head(SID, 1, {})
        self._arrivals = Arrivals(self.session, self.head, print)
        self.ends: dict[str, Message] = {}
        self.dead: dict[str, Message] = {}
        self.drops = True
        self._call()
        self._call()
        assert start_root(self.site) is None
        self.pump(lambda: self.site.node_id in self.permits.nodes)

    # --- the session ---

    def submit(self, job: str, *argv: str, **order: Any) -> str:
        """Have a job run; returns its name."""
        name = f"{SID}/{job}/1/1/work/1"
        about = make_order(job, *argv, **{"cwd": str(self.site.path.parent), **order})
        self.head.submit(name, Opened(self.site.node_id, "e1"), about)
        self._call()
        return name

    def _call(self) -> None:
        call, self._called_at = self.head.make_call(0.0), time.monotonic()
        replies = list[Message]()
        self._rooms[-1].take_call(call, replies.append)
        (reply,) = replies
        self.head.take(call, reply)
        for kind, about in self._arrivals.keep(reply):
            if kind == "ended":
                self.ends[about["job"]] = about
                if self.drops:
                    self.head.drop(about["job"])
            elif kind == "dead":
                self.dead[about["job"]] = about

    def text(self, job: str, ending: str = "txt") -> bytes:
        """What has come of a job's output."""
        path = self.session.path / f"task-{job.split('/')[1]}.{ending}"
        return path.read_bytes() if path.exists() else b""

    # --- the scheduler ---

    async def _listen(self, nodes: Path) -> str:
        """Begin to listen, and where; it answers only while something is pumped."""
        from distributed import core, security

        security_of, server_of = cast(Any, security.Security), cast(Any, core.Server)
        words = ("tls_ca_file", "tls_scheduler_cert", "tls_scheduler_key")
        files = (self.cluster.ca_file, self.cluster.cert_file, self.cluster.key_file)
        tls = security_of(require_encryption=True, **dict(zip(words, files, strict=True)))
        at = {"local_directory": str(nodes / "dask"), "needs_workdir": False}
        self._server = server_of({"sr_node": self._take_tick}, **at)
        await self._server.listen("tls://127.0.0.1:0", **tls.get_listen_args("scheduler"))
        return str(self._server.address)

    async def _take_tick(self, body: bytes) -> bytes:
        return await serve(None, self._rooms[-1].take_tick)(body)

    def restart_scheduler(self, epoch: str, timers: Timers) -> None:
        """Have one that knows nothing."""
        self.permits = Permits(epoch, time.monotonic(), timers)
        self._rooms.append(WaitingRoom(self.permits, time.monotonic))

    def pump(self, until: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Answer ticks until something is so."""
        deadline = time.monotonic() + timeout_s
        while not until():
            assert time.monotonic() < deadline, f"it did not come to this: {self.permits.nodes}"
            self._loop.run_until_complete(asyncio.sleep(0.02))
            for room in self._rooms:
                room.answer_overdue()
            is_time = time.monotonic() > self._called_at + 1.0  # a session that does not call gets no output
            if is_time or self.head.has_news or self.permits.session_has_news(SID):
                self._call()

    def shorten_lease(self) -> None:
        """Let the node's lease end soon: what the test waited for before had the patient one."""
        self.permits.timers = SHORT
        file = LeaseFile(self.site.path)
        self.pump(lambda: file.read().until_ns <= boot_ns() + SHORT.lease * 1e9)

    # --- the node's processes ---

    def ledger_words(self, job: str) -> str:
        """The kinds of the records of a job, in their order."""
        payloads = read_log(self.site.path / "ledger").payloads
        return "".join(chr(payload[0]) for payload in payloads if payload.split(b" ")[1:2] == [job.encode()])

    def find(self, which: str) -> psutil.Process:
        """Its root, its keeper, or the link in the supervisor's place."""
        (found,) = pick(self.chain(), which)
        return found

    def chain(self) -> list[psutil.Process]:
        """Root, keeper and link, as many as live."""
        return processes_of(str(self.site.path))

    def jobs(self, job: str | None = None) -> list[psutil.Process]:
        """The processes that carry the marker of a job of this node, or of that job."""
        marker = f"{self.site.node_id}/{job or ''}"
        return [process for process in psutil.process_iter() if marker_of(process).startswith(marker)]

    def close(self) -> None:
        end_all(lambda: [*self.chain(), *self.jobs()])
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._server.close())
            self._loop.close()
            os.close(self._lock_fd)


def marker_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("SESSIONRUN_JOB", "") if process.status() != psutil.STATUS_ZOMBIE else ""
    except (psutil.Error, OSError):
        return ""


def words_of(process: psutil.Process) -> str:
    """The command line of a process; '' of one that is gone."""
    try:
        return " ".join(process.cmdline())
    except (psutil.Error, OSError):
        return ""


def parent_of(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except (psutil.Error, OSError):
        return None


def pick(chain: Sequence[psutil.Process], which: str) -> list[psutil.Process]:
    """The `root`, `keeper` or `link` of a node's processes.

    Root and keeper look alike: one of them is found only if both are there.
    """
    roots = [one for one in chain if "__main__.py" in words_of(one)]
    parents = [parent_of(one) for one in roots]
    return {
        "root": [one for one in roots if one in parents],
        "keeper": [one for one, parent in zip(roots, parents, strict=True) if parent in roots],
        "link": [one for one in chain if one not in roots and " -c " in words_of(one)],
    }[which]


def processes_of(path: str) -> list[psutil.Process]:
    """The processes whose command line names a path."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and any(path in word for word in process.cmdline()):
                found.append(process)
    return found


def end_all(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill what is found, until nothing is."""
    deadline = time.monotonic() + 60
    while (found := find()) and time.monotonic() < deadline:
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=2)


class RealCluster:
    """A scheduler and nodes as users start them, on loopback."""

    def __init__(self, command: Command, timers: str, env: Mapping[str, str], host: str = "127.0.0.1") -> None:
        self.command = command
        self.nodes_dir = Path(env.get("SESSIONRUN_NODES", command.cwd / "nodes"))
        self.env = {
            **os.environ,
            "SESSIONRUN_NODES": str(self.nodes_dir),
            "SESSIONRUN_CLUSTER_TIMERS": timers,
            **env,
        }
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        (self.port,) = free_ports(1)
        self.host = host
        self.address = f"tls://{host}:{self.port}"

    def start_head(self) -> None:
        self._start("head", "head", "--host", self.host, "--port", str(self.port))

    def start_node(self, name: str, slots: int = 2, *words: str) -> None:
        self._start(name, "node", self.address, "--name", name, "--slots", str(slots), *words)

    def _start(self, name: str, *words: str) -> None:
        self.start_program(name, *self.command.argv, "cluster", *words)

    def start_program(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> None:
        log = open(self.command.cwd / f"{name}.log", "ab")
        env = {**self.env, **(env or {})}
        self.programs[name] = subprocess.Popen(
            argv, cwd=self.command.cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        log.close()

    def show(self) -> Any:
        """What `cluster status --json` prints; {} while the cluster does not answer."""
        done = self.command("cluster", "status", self.address, "--json", env=self.env)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def wait_for_nodes(self, count: int) -> None:
        """Wait until so many nodes live.

        Each question costs the imports of dask: it is asked only when so many have met the scheduler.
        """
        logs = [self.command.cwd / f"{name}.log" for name in self.programs]
        eventually(lambda: sum(f"serves {self.address}" in log.read_text() for log in logs) >= count)
        eventually(lambda: sum(node["lives"] for node in self.show().get("nodes", ())) == count)

    def site(self, name: str) -> Path:
        (path,) = (self.nodes_dir / name).glob("node-*")
        return path

    def find(self, part: str) -> list[psutil.Process]:
        """The programs of dask by their names, or those of a node's directory by the name of the node."""
        wanted = f":{self.port}" if part.startswith("dask") else str(self.site(part))
        return [process for process in processes_of(wanted) if part in words_of(process)]

    def find_chain(self, name: str, which: str) -> list[psutil.Process]:
        """A node's root, keeper or link, if it is there."""
        return pick(processes_of(str(self.site(name))), which)

    def kill_all(self, name: str) -> None:
        """kill -9 of all processes of a node, with what runs there, as a power cut does."""
        self.programs[name].kill()
        self._end({self.site(name).name.removeprefix("node-")}, str(self.site(name)))

    def _end(self, ids: set[str], place: str) -> None:
        """End the nodes' own processes below a place, and what runs there."""
        end_all(
            lambda: [
                *processes_of(place),
                *(one for one in psutil.process_iter() if marker_of(one).partition("/")[0] in ids),
            ]
        )

    def close(self) -> None:
        for program in self.programs.values():
            with suppress(ProcessLookupError):
                program.send_signal(signal.SIGCONT)
            program.kill()
            program.wait()
        end_all(lambda: processes_of(f":{self.port}"))
        ids = {path.name.removeprefix("node-") for path in self.nodes_dir.glob("*/node-*")}
        self._end(ids, str(self.nodes_dir))


@contextmanager
def real_cluster(
    command: Command,
    nodes: int = 2,
    slots: int = 2,
    timers: str = "tick=0.3",
    env: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> Iterator[RealCluster]:
    cluster = RealCluster(command, timers, env or {}, host)
    if not (certs := find_certs_dir(cluster.env)).exists():
        make_certs(certs)
    try:
        cluster.start_head()
        for number in range(nodes):
            cluster.start_node(f"n{number}", slots)
        if nodes == 0:
            eventually(cluster.show)
        cluster.wait_for_nodes(nodes)
        yield cluster
    finally:
        cluster.close()


def start_waiting(command: Command, cluster: str, *names: str, words: Sequence[str] = ()) -> str:
    """A session whose tasks go on until `let_go` names them, once they run."""
    session_id = command.start(command.waiting(*names), "--cluster", cluster, *words)
    eventually(lambda: command.is_up(session_id, *names))
    return session_id


def find_own_address() -> str:
    """An address of this machine that is not loopback's; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def make_repository(path: Path) -> Path:
    """A repository with a commit on main; what a cluster has written there before is in none."""
    path.mkdir(parents=True, exist_ok=True)
    begin_repository(path)
    (path / "f").write_text("base\n")
    git(path, "add", "f")
    git(path, "commit", "-q", "-m", "base")
    return path


# --- A real Slurm for tests, below a directory of its own: munged, slurmctld, and a slurmd for each node ---

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge/socket
StateSaveLocation={place}/state
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmdSpoolDir={place}/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1,sched_min_interval=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=3
MinJobAge=300
SlurmdTimeout=5
"""


def find_missing() -> str | None:
    """Why no Slurm can be started here; None: it can."""
    if os.geteuid() != 0:
        return "needs root, to start munged, slurmctld and slurmd"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurmctld slurmd slurm-client munge)"
    return None


class RealSlurm:
    """The daemons, each a child of the test: so they are ended by their pids."""

    def __init__(self, place: Path, nodes: int) -> None:
        self.place = place
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.conf = place / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self.env["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("munge", "state", *(f"spool-{node}" for node in self.nodes)):
            (place / name).mkdir(mode=0o711)
        (place / "munge" / "key").write_bytes(os.urandom(1024))
        (place / "munge" / "key").chmod(0o400)
        ports = free_ports(len(self.nodes) + 1)
        host = socket.gethostname()
        lines = [CONFIGURATION.format(host=host, port=ports[0], place=self.place)]
        for node, port in zip(self.nodes, ports[1:], strict=True):
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8\n")
        lines.append(f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n")
        lines.append(f"PartitionName=shut Nodes={self.nodes[0]} State=DOWN\n")
        self.conf.write_text("".join(lines))

    def start(self) -> None:
        """Start all, and wait until the nodes are idle."""
        munge = self.place / "munge"
        files = (f"--{name}-file={munge}/{name}" for name in ("key", "pid", "log", "seed"))
        self._start("munged", "--foreground", "--force", f"--socket={munge}/socket", *files)
        eventually((munge / "socket").exists)
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        eventually(
            lambda: self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split() == ["idle"] * len(self.nodes)
        )

    def start_controller(self) -> None:
        """Start slurmctld, with the state that an earlier one left."""
        self._start("slurmctld", "-D")
        eventually(lambda: "UP" in self.ask("scontrol", "ping"))

    def start_node(self, node: str) -> None:
        self._start("slurmd", "-D", "-N", node, name=node)

    def _start(self, program: str, *words: str, name: str | None = None) -> None:
        with open(self.place / f"{name or program}.log", "ab") as log:
            self.daemons[name or program] = subprocess.Popen(
                [program, *words], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    def kill(self, name: str) -> None:
        """kill -9 of a daemon: of `slurmctld`, or of the slurmd of a node."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def cut_power(self, node: str) -> None:
        """Kill a node's slurmd with all that runs there, as a power cut does."""
        self.kill(node)
        for process in self.find_processes(node):
            with suppress(psutil.Error):
                process.suspend()  # none is to tell the controller of the death of another
        end_all(lambda: self.find_processes(node))

    def ask(self, *words: str) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def states(self) -> dict[str, str]:
        """The states of all jobs, by ARRAY_INDEX."""
        lines = self.ask("squeue", "-h", "-r", "--states=all", "-o", "%F_%K %T").splitlines()
        return dict(line.split() for line in lines)

    def find_processes(self, node: str | None = None) -> list[psutil.Process]:
        """The processes of jobs, of one node or all, and what Slurm has around them."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                environ = process.environ()
                if environ.get("SLURM_CONF") != str(self.conf) or "SLURM_JOB_ID" not in environ:
                    continue
                if node in (None, environ.get("SLURMD_NODENAME")):
                    found[process.pid] = process
                    parent = process.parent()
                    if parent is not None and parent.name().startswith("slurmstepd"):  # it shows no environment
                        found[parent.pid] = parent
        return list(found.values())

    def find_steps(self) -> list[psutil.Process]:
        """What Slurm has around jobs, also where the job is over: each listens at a socket in its node's spool."""
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as stream:
            rows = [line.split() for line in stream]
        sockets = {
            f"socket:[{row[6]}]" for row in rows if len(row) > 7 and row[7].startswith(f"{self.place}/spool")
        }
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.name().startswith("slurmstepd"):
                    files = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{process.pid}/fd")}
                    found += [process] if files & sockets else []
        return found

    def close(self) -> None:
        """End the jobs, then the daemons, whichever are left."""
        end_all(lambda: [*self.find_processes(), *self.find_steps()])
        for daemon in reversed(list(self.daemons.values())):
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
        end_all(lambda: [*self.find_processes(), *self.find_steps()])


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens at."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def real_slurm(nodes: int = 2) -> Iterator[RealSlurm]:
    """A Slurm whose nodes are up; its directory is below /tmp, for the path of a socket has to be short."""
    if (missing := find_missing()) is not None:
        pytest.skip(missing)
    place = Path(tempfile.mkdtemp(prefix="sr-slurm-", dir="/tmp"))
    place.chmod(0o711)
    slurm = RealSlurm(place, nodes)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()
        shutil.rmtree(place, ignore_errors=True)
