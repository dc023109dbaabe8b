"""A real Slurm for tests, below a directory of its own: munged, slurmctld, and a slurmd for each node."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from clusters import end_all
from conftest import eventually

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

    def __init__(self, place: Path, nodes: int, cpus: int) -> None:
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
        self._configure(cpus)

    def _configure(self, cpus: int) -> None:
        ports = free_ports(len(self.nodes) + 1)
        host = socket.gethostname()
        lines = [CONFIGURATION.format(host=host, port=ports[0], place=self.place)]
        for node, port in zip(self.nodes, ports[1:], strict=True):
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}\n")
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
        """Start a slurmd."""
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
        """What a program of Slurm's prints."""
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
def real_slurm(nodes: int = 2, cpus: int = 8) -> Iterator[RealSlurm]:
    """A Slurm whose nodes are up; its directory is below /tmp, for the path of a socket has to be short."""
    if (missing := find_missing()) is not None:
        pytest.skip(missing)
    place = Path(tempfile.mkdtemp(prefix="sr-slurm-", dir="/tmp"))
    place.chmod(0o711)
    slurm = RealSlurm(place, nodes, cpus)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()
        shutil.rmtree(place, ignore_errors=True)
