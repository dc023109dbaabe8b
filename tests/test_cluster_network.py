"""A cluster of three machines: network namespaces with a home and scratch of their own, TLS, and cables that are
pulled.  Needs root and ip(8).

Each attempt of a task writes the time, every 0.1 s, from a child in a session of its own that ignores TERM: so it
is seen when two attempts of a task run at the same time.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import end_all, parent_of, words_of
from conftest import Command, eventually, slow_seed
from stages import git
from test_cluster import make_repository

LEASE_S = 10
TIMERS = f"tick=0.5,lease={LEASE_S},grace=0.5,margin=2.2"
TASKS = 40
PULL_S = 60


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

    def count_nodes(self) -> int:
        """How many nodes live, as the head's `cluster status` says."""
        argv = self.argv("head", "cluster", "status", self.address, "--json")
        done = subprocess.run(argv, env=self.environment("head"), capture_output=True, text=True, timeout=120)
        return sum(node["lives"] for node in json.loads(done.stdout)["nodes"]) if done.returncode == 0 else 0

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
        """One kind of process of a machine: `worker`, `scheduler`, or of its node's `root`, `keeper` and `link`.

        Root and keeper look alike: one of them is found only if both are there.
        """
        own = self.lan.processes(machine)
        if what in ("worker", "scheduler"):
            return [one for one in own if f"dask_{what}" in words_of(one)]
        chain = [one for one in own if f"/nodes/{machine}/node-" in words_of(one)]
        roots = [one for one in chain if "__main__.py" in words_of(one)]
        parents = [parent_of(one) for one in roots]
        return {
            "root": [one for one in roots if one in parents],
            "keeper": [one for one, parent in zip(roots, parents, strict=True) if parent in roots],
            "link": [one for one in chain if one not in roots and " -c " in words_of(one)],
        }[what]

    def kill(self, what: str, machine: str) -> None:
        """kill -9 of one kind of process of a machine."""
        for one in self.find(what, machine):
            with suppress(psutil.Error):
                one.kill()

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


@pytest.fixture
def machines(own_place: Path) -> Iterator[Machines]:
    """Three machines, and the times of this test."""
    with three_machines(own_place, TIMERS) as made:
        yield made


def write_log_program(record: Path) -> None:
    """A program that ignores TERM and prints the time every 0.1 s."""
    (record / "log.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n"
        "    print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)\n    time.sleep(0.1)\n"
    )


def write_plan(path: Path, record: Path, choose: random.Random) -> None:
    """40 tasks with a worktree: each writes the time while it runs, and then a file of its own."""
    write_log_program(record)
    script = (
        "setsid {python} {record}/log.py > {record}/$SESSIONRUN_TASK.$SESSIONRUN_ATTEMPT & "
        "sleep {seconds}; echo $SESSIONRUN_TASK > file-$SESSIONRUN_TASK"
    )
    path.write_text(
        json.dumps(
            [
                {
                    "id": f"t{number}",
                    "prompt": script.format(
                        python=sys.executable, record=record, seconds=round(choose.uniform(2.0, 9.0), 1)
                    ),
                }
                for number in range(TASKS)
            ]
        )
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


@pytest.mark.slow
def test_kills_and_a_pulled_cable(machines: Machines, own_place: Path, say: Callable[[str], None]) -> None:
    seed = slow_seed()
    choose = random.Random(seed)
    repository, record = own_place / "project", own_place / "record"
    for folder in (repository, record):
        folder.mkdir()
    make_repository(repository)
    write_plan(own_place / "plan.json", record, choose)
    eventually(lambda: machines.count_nodes() == 2)
    words = ("-q", "--agent", "shell", "--worktree", "--cluster", machines.address, str(own_place / "plan.json"))
    session_id = machines.call(*words, cwd=repository).strip()

    def view() -> Any:
        return json.loads(machines.call("status", session_id, "--json", cwd=repository))

    eventually(lambda: len(list(record.glob("t*.1"))) >= 8)
    kills, pulled_at = 0, time.monotonic()
    machines.lan.pull("a")
    while time.monotonic() - pulled_at < PULL_S:
        time.sleep(choose.uniform(2.0, 4.0))
        kill(machines, session_id, choose, "b", repository)
        kills += 1
    machines.lan.plug("a")
    for _ in range(12):
        time.sleep(choose.uniform(1.0, 3.0))
        kill(machines, session_id, choose, choose.choice(("a", "b")), repository)
        kills += 1
    lost = 0
    while True:
        eventually(lambda: view()["ended_at"], timeout_s=300)
        outcomes = [task["outcome"] for task in view()["tasks"]]
        assert set(outcomes) <= {"succeeded", "lost"}, [task["reason"] for task in view()["tasks"]]
        lost += outcomes.count("lost")
        if "lost" not in outcomes:
            break
        machines.call("retry", session_id, cwd=repository)
    overlaps = find_overlaps(record)
    say(
        f"three machines, seed {seed}: {kills} kills and a cable pulled for {PULL_S} s, {TASKS} tasks, "
        f"{lost} attempts lost and said so, {len(overlaps)} overlaps"
    )
    for task in view()["tasks"]:
        assert git(repository, "show", f"{task['branch']}:file-{task['id']}") == task["id"]
    assert overlaps == []


def kill(machines: Machines, session_id: str, choose: random.Random, machine: str, repository: Path) -> None:
    """kill -9 of anything of a machine, or of the head."""
    what = choose.choice(("worker", "link", "keeper", "root", "scheduler", "supervisor", "session's keeper"))
    if what not in ("supervisor", "session's keeper"):
        machines.kill(what, "head" if what == "scheduler" else machine)
        return
    command = Command(repository, repository / "results")
    with suppress(ProcessLookupError, AssertionError, psutil.Error):
        os.kill(command.chain(session_id)[2 if what == "supervisor" else 1], 9)
