"""A cluster of three machines: network namespaces with a home and scratch of their own, TLS, and cables that are
pulled.  Needs root and ip(8).

Each attempt of a task writes the time, every 0.1 s, from a child in a session of its own that ignores TERM: so it
is seen when two attempts of a task run at the same time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from clusters import end_all, pick, words_of


def find_obstacle() -> str | None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs Linux, root and ip(8) to make network namespaces"
    name = f"srprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        return "network namespaces cannot be made here"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


class Lan:
    """A switch and three machines: the head, and nodes a and b."""

    def __init__(self) -> None:
        self._stem = f"sr{os.getpid()}"
        self.addresses = {"head": "10.77.0.1", "a": "10.77.0.2", "b": "10.77.0.3"}
        self._ip("netns", "add", self.name("switch"))
        self._in("switch", "link", "add", "br0", "type", "bridge")
        self._in("switch", "link", "set", "br0", "up")
        for machine, address in self.addresses.items():
            name = self.name(machine)
            self._ip("netns", "add", name)
            self._in("switch", "link", "add", f"to-{machine}", "type", "veth", "peer", "eth0", "netns", name)
            self._in("switch", "link", "set", f"to-{machine}", "master", "br0", "up")
            self._in(machine, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._in(machine, "link", "set", device, "up")

    def name(self, machine: str) -> str:
        return f"{self._stem}{machine}"

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def _in(self, machine: str, *words: str) -> None:
        self._ip("-n", self.name(machine), *words)

    def pull(self, machine: str) -> None:
        self._in("switch", "link", "set", f"to-{machine}", "down")

    def plug(self, machine: str) -> None:
        self._in("switch", "link", "set", f"to-{machine}", "up")

    def block(self, machine: str, other: str) -> None:
        """Lose all that a machine sends to another one; what it is sent arrives."""
        self._in(machine, "route", "add", "blackhole", f"{self.addresses[other]}/32")

    def unblock(self, machine: str, other: str) -> None:
        self._in(machine, "route", "delete", "blackhole", f"{self.addresses[other]}/32")

    def processes(self, machine: str) -> list[psutil.Process]:
        """All processes of a machine."""
        done = subprocess.run(["ip", "netns", "pids", self.name(machine)], capture_output=True, text=True)
        found = []
        for pid in done.stdout.split():
            with suppress(psutil.Error):
                found.append(psutil.Process(int(pid)))
        return found

    def close(self) -> None:
        for machine in ("switch", *self.addresses):
            subprocess.run(["ip", "netns", "delete", self.name(machine)], capture_output=True)


class Machines:
    """The programs on the machines."""

    def __init__(self, place: Path, lan: Lan, timers: str) -> None:
        self.place = place
        self.timers = timers
        self.lan = lan
        self.address = f"tls://{lan.addresses['head']}:8786"
        self.programs: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, machine: str) -> dict[str, str]:
        home = self.place / machine
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        own = {
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "SESSIONRUN_NODES": str(home / "nodes"),
            "SESSIONRUN_CERTS": str(home / "certs"),
            "SESSIONRUN_CLUSTER_TIMERS": self.timers,
        }
        return {**os.environ, **own}

    def argv(self, machine: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.lan.name(machine), sys.executable, "-m", "sessionrun", *words]

    def call(self, *words: str, cwd: Path) -> str:
        environ = self.environment("head")
        done = subprocess.run(
            self.argv("head", *words), cwd=cwd, env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def start(self, name: str, machine: str, *words: str) -> None:
        with open(self.place / f"{name}.log", "ab") as log:
            self.programs[name] = subprocess.Popen(
                self.argv(machine, "cluster", *words),
                cwd=self.place,
                env=self.environment(machine),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def find(self, what: str, machine: str) -> list[psutil.Process]:
        """One kind of process of a machine: `worker`, `scheduler`, or as `pick` of its node's."""
        own = self.lan.processes(machine)
        if what in ("worker", "scheduler"):
            return [one for one in own if f"dask_{what}" in words_of(one)]
        return pick([one for one in own if f"/nodes/{machine}/node-" in words_of(one)], what)

    def close(self) -> None:
        for program in self.programs.values():
            program.kill()
            program.wait()
        end_all(lambda: [one for machine in self.lan.addresses for one in self.lan.processes(machine)])


@contextmanager
def three_machines(place: Path, timers: str) -> Iterator[Machines]:
    """Three machines with a cluster of two nodes; the head's certificates are copied to the nodes."""
    if (obstacle := find_obstacle()) is not None:
        pytest.skip(obstacle)
    lan = Lan()
    made = Machines(place, lan, timers)
    try:
        made.call("cluster", "certs", cwd=place)
        for machine in ("a", "b"):
            made.environment(machine)
            shutil.copytree(place / "head" / "certs", place / machine / "certs")
        made.start("scheduler", "head", "head", "--host", lan.addresses["head"])
        for machine in ("a", "b"):
            made.start(machine, machine, "node", made.address, "--name", machine, "--slots", "4")
        yield made
    finally:
        made.close()
        lan.close()


def write_log_program(record: Path) -> None:
    """A program that ignores TERM and prints the time every 0.1 s."""
    (record / "log.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n"
        "    print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)\n    time.sleep(0.1)\n"
    )


def read_times(record: Path) -> dict[tuple[str, int], list[float]]:
    """What each attempt of each task wrote: times (CLOCK_BOOTTIME, seconds)."""
    times = {}
    for path in record.glob("t*.*"):
        task, _, attempt = path.name.partition(".")
        lines = path.read_text().splitlines()
        times[task, int(attempt)] = [float(line) for line in lines if line.count(".") == 1]
    return times


def find_overlaps(record: Path) -> list[tuple[str, int, float]]:
    """The lines that attempts wrote after the first line of the attempt after them: task, attempt, time."""
    times = read_times(record)
    overlaps = []
    for (task, attempt), lines in times.items():
        later = [other[0] for (name, after), other in times.items() if name == task and after > attempt and other]
        overlaps += [(task, attempt, line) for line in lines if later and line > min(later)]
    return overlaps
