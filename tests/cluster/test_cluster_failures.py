"""What each failure of a cluster does: a row for each kind, on three machines.  Needs root and ip(8).

Every fourth task has a worktree, whose RELEASE waits for its node.  The others start again while their node is
still cut off, so that an attempt that runs on there is seen.  A failure comes only where tasks run.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import RealCluster, end_all, make_repository, marker_of, pick, words_of
from conftest import Command, eventually, slow_seed
from stages import git

from sessionrun.client.reading.view import load_view
from sessionrun.keeper.lease import boot_ns
from sessionrun.store.session import SessionDir

LONG_LEASE_S = 60
SHORT_LEASE_S = 5
MARGIN_S = 2.2
AT_ONCE = 8
LONGEST_S = 900.0
"""A row that has not ended by then hangs."""

UNSEEN = "its end was not seen"
"""With its keeper and its root a node loses those who would see the exit code, and a code is never guessed."""

CHAIN = ("session's root", "session's keeper", "supervisor")
THAW_S = 1.0
"""So long after a node goes on that was frozen beyond its lease, what it ran has been killed."""


@dataclass
class Run:
    """The session of one row, and what the test saw of it.

    `lost` are the attempts that were called lost, and why; `struck` those that ran where a failure was, with the
    times of its beginning and end; `thawed` is when the machine of an attempt that was frozen went on.  Times are
    CLOCK_BOOTTIME (seconds).
    """

    machines: Machines
    record: Path
    repository: Path
    session_id: str
    turned: bool
    lost: dict[tuple[str, int], str] = field(default_factory=dict)
    struck: list[tuple[tuple[str, int], float, float]] = field(default_factory=list)
    thawed: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def session(self) -> SessionDir:
        return SessionDir(self.repository / "results" / f"session-{self.session_id}")

    def look(self) -> bool:
        """Try again what was lost; whether all tasks have succeeded."""
        tasks = load_view(self.session)["tasks"]
        wrong = [task for task in tasks if task["outcome"] not in (None, "succeeded", "lost")]
        assert not wrong, [(task["id"], task["outcome"], task["reason"]) for task in wrong]
        lost = [task for task in tasks if task["outcome"] == "lost"]
        self.lost |= {(task["id"], task["attempt"]): task["reason"] for task in lost}
        if lost:
            self.machines.call("retry", self.session_id, *(task["id"] for task in lost), cwd=self.repository)
        return all(task["outcome"] == "succeeded" for task in tasks)

    def find_running(self, machine: str) -> set[tuple[str, int]]:
        """The attempts that run on a node; of the head: on any."""
        nodes = ("a", "b") if machine == "head" else (machine,)
        found = set()
        for one in (one for node in nodes for one in self.machines.lan.processes(node)):
            parts = marker_of(one).split("/")
            if f"{self.record}/log.py" in words_of(one) and len(parts) > 3:
                found.add((parts[2], int(parts[3])))
        return found

    def find_each(self, what: str, machine: str) -> list[psutil.Process]:
        """One kind of process of a machine: `scheduler`, one of the session's chain, or what `pick` has."""
        own = self.machines.lan.processes(machine)
        if what == "scheduler":
            return [one for one in own if "dask_scheduler" in words_of(one)]
        if what in CHAIN:
            command = Command(self.repository, self.repository / "results")
            with suppress(AssertionError, psutil.Error, ValueError):  # one is being started
                return [psutil.Process(command.chain(self.session_id)[CHAIN.index(what)])]
            return []
        return pick([one for one in own if f"/nodes/{machine}/node-" in words_of(one)], what)


Undo = Callable[[], None]


# --- the failures: each begins, and returns how it ends ---


def send_to(what: tuple[str, ...], numbers: tuple[int, ...]) -> Callable[[Run, str], Undo]:
    """Signals to processes of one machine, at the same moment; the first one named is stopped first."""

    def begin(run: Run, machine: str) -> Undo:
        found = find(run, what, machine)
        for number in numbers:
            send(found, number)
        return lambda: send(found, signal.SIGCONT)

    return begin


def kill(*what: str) -> Callable[[Run, str], Undo]:
    """kill -9, after which nothing is left to go on."""
    return send_to(what, (signal.SIGSTOP, signal.SIGKILL))


def stop(*what: str) -> Callable[[Run, str], Undo]:
    """SIGSTOP, and later SIGCONT."""
    return send_to(what, (signal.SIGSTOP,))


def kill_guard(run: Run, machine: str) -> Undo:
    """kill -9 of `cluster node`, which systemd would start again."""
    run.machines.programs[machine].kill()
    run.machines.programs[machine].wait()
    run.machines.start_node(machine, 4)
    return lambda: None


def find(run: Run, what: tuple[str, ...], machine: str) -> list[psutil.Process]:
    """These processes, once all of them are there."""
    found: list[psutil.Process] = []

    def look() -> bool:
        each = [run.find_each(one, machine) for one in what]
        found[:] = [process for processes in each for process in processes]
        return all(each)

    eventually(look)
    return found


def send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def cut(run: Run, machine: str) -> Undo:
    """Pull its cable."""
    cable = ("switch", "link", "set", f"to-{machine}")
    run.machines.lan.on(*cable, "down")
    return lambda: run.machines.lan.on(*cable, "up")


def lose_one_way(run: Run, machine: str) -> Undo:
    """Nothing from a node arrives at the head, or the other way round; first one, then the other."""
    run.turned = not run.turned
    sender, other = ("head", machine) if run.turned else (machine, "head")
    to_other = ("blackhole", f"{run.machines.lan.addresses[other]}/32")
    run.machines.lan.on(sender, "route", "add", *to_other)
    return lambda: run.machines.lan.on(sender, "route", "delete", *to_other)


def freeze(run: Run, machine: str) -> Undo:
    """Stop all processes of a machine, those of the tasks as well."""
    frozen: dict[int, psutil.Process] = {}
    while new := [one for one in run.machines.lan.processes(machine) if one.pid not in frozen]:
        send(new, signal.SIGSTOP)
        frozen.update({one.pid: one for one in new})
    running = run.find_running(machine)

    def thaw() -> None:
        send(list(frozen.values()), signal.SIGCONT)
        run.thawed.update(dict.fromkeys(running, boot_ns() / 1e9))

    return thaw


# --- the rows ---


@dataclass(frozen=True)
class Failure:
    """How a failure begins, on which machines, and for how long (seconds)."""

    begin: Callable[[Run, str], Undo]
    where: tuple[str, ...] = ("a", "b")
    lasts: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Row:
    """Which failures come, how many in all, and under which lease (seconds).

    `losing` are the reasons for which attempts may be lost by them; () for none.  There are so many `tasks`, each
    of so many `seconds`: where one failure comes under a short lease, they last longer than it.
    """

    failures: tuple[Failure, ...]
    faults: int = 2
    lease_s: float = SHORT_LEASE_S
    losing: tuple[str, ...] = ("lease", UNSEEN)
    tasks: int = 12
    seconds: tuple[float, float] = (7.0, 11.0)


HEAD, CUT_SHORT = ("head",), "cut within the lease"
SHORT, LONG, FROZEN = (2.5, 3.5), (8.5, 11.0), (12.0, 12.0)


def harmless(failure: Failure, **about: Any) -> Row:
    return replace(Row((failure,), 3, LONG_LEASE_S, (), 16, (4.0, 9.0)), **about)


ROWS = {
    "none": harmless(Failure(kill()), faults=0),
    "kill guard": harmless(Failure(kill_guard)),
    "kill keeper": harmless(Failure(kill("keeper"))),
    "kill root": harmless(Failure(kill("root"))),
    "kill root and keeper": harmless(Failure(kill("root", "keeper")), losing=(UNSEEN,)),
    "kill link": harmless(Failure(kill("link"))),
    "kill supervisor": harmless(Failure(kill("supervisor"), HEAD)),
    "kill the session's keeper": harmless(Failure(kill("session's keeper"), HEAD)),
    "kill scheduler, long lease": harmless(Failure(kill("scheduler"), HEAD), faults=2),
    "kill scheduler, short lease": Row((Failure(kill("scheduler"), HEAD),)),
    CUT_SHORT: harmless(Failure(cut, lasts=(6.0, 8.0)), lease_s=30),
    "cut beyond the lease": Row((Failure(cut, lasts=LONG),)),
    "one-way loss": Row((Failure(lose_one_way, lasts=LONG),)),
    "cut of the head": Row((Failure(cut, HEAD, LONG),)),
    "stop link": Row((Failure(stop("link"), lasts=LONG),)),
    "stop keeper": Row((Failure(stop("keeper"), lasts=LONG),)),
    "stop root and keeper": Row((Failure(stop("root", "keeper"), lasts=LONG),)),
    "stop scheduler": Row((Failure(stop("scheduler"), HEAD, LONG),)),
    "freeze": Row((Failure(freeze, lasts=FROZEN),)),
}
ALL = [
    *(one for name, row in ROWS.items() if name not in ("none", "freeze", CUT_SHORT) for one in row.failures),
    Failure(cut, lasts=SHORT),
]
ROWS["chaos"] = Row(tuple(ALL), faults=30, tasks=200, seconds=(3.0, 6.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_failure(name: str, own_place: Path, say: Callable[[str], None]) -> None:
    seed = slow_seed()
    choose = random.Random(seed)
    row = ROWS[name]
    with start(own_place, row, choose) as run:
        faults = drive(run, row, choose)
        tasks = load_view(run.session)["tasks"]
        overlaps = find_overlaps(run.record)
        attempts = sum(task["attempt"] for task in tasks)
        say(
            f"seed {seed}: {faults} failures that struck {len(run.struck)} times, {attempts} attempts, "
            f"{len(run.lost)} lost and said so, {len(overlaps)} overlaps"
        )
        assert (faults, bool(run.struck)) == (row.faults, bool(row.faults))
        check_attempts(run, tasks)
        excused = [one for one in overlaps if one[2] < run.thawed.get(one[:2], 0.0) + THAW_S]
        assert sorted(overlaps) == sorted(excused)
        assert [why for why in run.lost.values() if not any(words in why for words in row.losing)] == []
        times, lasts_s = read_times(run.record), row.lease_s + MARGIN_S
        for attempt, began_at, ended_at in run.struck:  # none runs on when the lease of its node is surely over
            assert not any(began_at + lasts_s < line < ended_at for line in times.get(attempt, ())), attempt
        for attempt, thawed in run.thawed.items():
            assert max(times[attempt]) < thawed + THAW_S, attempt


@contextmanager
def start(place: Path, row: Row, choose: random.Random) -> Iterator[Run]:
    """The machines and a session on them, whose first tasks run."""
    repository, record = place / "project", place / "record"
    record.mkdir()
    make_repository(repository)
    (record / "log.py").write_text(LOG_PROGRAM)
    script = (
        "echo >> {record}/begun-$SESSIONRUN_TASK.$SESSIONRUN_ATTEMPT; "
        "setsid {python} -S {record}/log.py >> {record}/$SESSIONRUN_TASK.$SESSIONRUN_ATTEMPT & "
        "sleep {seconds}; {work}; echo $SESSIONRUN_ATTEMPT; kill -9 $!"
    )
    plan = []
    for number in range(row.tasks):
        kind = kind_of(number)
        work = "echo $SESSIONRUN_ATTEMPT > file" if kind == "worktree" else ":"
        seconds = round(choose.uniform(*row.seconds), 1)
        text = script.format(python=sys.executable, record=record, seconds=seconds, work=work)
        plan.append({"id": f"t{number}", "prompt": text, "workspace": kind})
    (place / "plan.json").write_text(json.dumps(plan))
    timers = f"tick=0.5,lease={row.lease_s},grace=0.5,margin={MARGIN_S}"
    with three_machines(place, timers) as machines:
        logs = [place / f"{name}.log" for name in ("a", "b")]
        eventually(lambda: all(f"serves {machines.address}" in log.read_text() for log in logs))
        words = ("-q", "--agent", "shell", "--max-parallel", str(AT_ONCE), "--cluster", machines.address)
        session_id = machines.call(*words, str(place / "plan.json"), cwd=repository).strip()
        run = Run(machines, record, repository, session_id, choose.choice((True, False)))
        eventually(lambda: len(run.find_running("head")) >= AT_ONCE // 2)
        yield run


def kind_of(number: int) -> str:
    return "worktree" if number % 4 == 3 else "none"


def drive(run: Run, row: Row, choose: random.Random) -> int:
    """Let the failures come, and try again what they cost until all has succeeded; returns how many came."""
    deadline, due = time.monotonic() + LONGEST_S, time.monotonic() + choose.uniform(1.0, 3.0)
    faults, going_on = 0, dict[str, tuple[float, Undo]]()
    hits: dict[str, tuple[set[tuple[str, int]], float]] = {}
    while True:
        now = time.monotonic()
        assert now < deadline, load_view(run.session)
        for machine in [machine for machine, (ends_at, _) in going_on.items() if now > ends_at]:
            ended_at = boot_ns() / 1e9
            going_on.pop(machine)[1]()
            struck, began_at = hits.pop(machine)
            run.struck += [(attempt, began_at, ended_at) for attempt in struck]
        if run.look() and not going_on:
            return faults
        failure = choose.choice(row.failures)
        machine = choose.choice(failure.where)
        if faults < row.faults and now > due and machine not in going_on and (hit := run.find_running(machine)):
            faults += 1
            undo = failure.begin(run, machine)
            hits[machine] = hit, boot_ns() / 1e9
            going_on[machine] = time.monotonic() + choose.uniform(*failure.lasts), undo
            due = time.monotonic() + choose.uniform(1.5, 3.0)
        time.sleep(0.1)


def check_attempts(run: Run, tasks: list[dict[str, Any]]) -> None:
    """All attempts but the last were called lost, none began twice, and what the last one left is there."""
    for task in tasks:
        name, last = task["id"], task["attempt"]
        assert [attempt for other, attempt in sorted(run.lost) if other == name] == list(range(1, last))
        begun = {path.suffix[1:]: path.read_text() for path in run.record.glob(f"begun-{name}.*")}
        assert set(begun.values()) == {"\n"} and str(last) in begun
        assert set(map(int, begun)) <= set(range(1, last + 1))
        assert (run.session.path / f"task-{name}.txt").read_text() == f"{last}\n"
        if kind_of(int(name[1:])) == "worktree":
            assert git(run.repository, "show", f"{task['branch']}:file") == str(last)


# --- A cluster of three machines: network namespaces with a home and scratch of their own, TLS, and cable ---


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
        self.on("switch", "link", "add", "br0", "type", "bridge")
        self.on("switch", "link", "set", "br0", "up")
        for machine, address in self.addresses.items():
            name = self.name(machine)
            self._ip("netns", "add", name)
            self.on("switch", "link", "add", f"to-{machine}", "type", "veth", "peer", "eth0", "netns", name)
            self.on("switch", "link", "set", f"to-{machine}", "master", "br0", "up")
            self.on(machine, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self.on(machine, "link", "set", device, "up")

    def name(self, machine: str) -> str:
        return f"{self._stem}{machine}"

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def on(self, machine: str, *words: str) -> None:
        """Run ip(8) on a machine."""
        self._ip("-n", self.name(machine), *words)

    def processes(self, machine: str) -> list[psutil.Process]:
        done = subprocess.run(["ip", "netns", "pids", self.name(machine)], capture_output=True, text=True)
        found = []
        for pid in done.stdout.split():
            with suppress(psutil.Error):
                found.append(psutil.Process(int(pid)))
        return found

    def close(self) -> None:
        for machine in ("switch", *self.addresses):
            subprocess.run(["ip", "netns", "delete", self.name(machine)], capture_output=True)


class Machines(RealCluster):
    """The programs on the machines."""

    def __init__(self, place: Path, lan: Lan, timers: str) -> None:
        super().__init__(Command(place, place / "results"), timers, {}, lan.addresses["head"])
        self.place = place
        self.lan = lan

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
        }
        return {**self.env, **own}

    def argv(self, machine: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.lan.name(machine), sys.executable, "-m", "sessionrun", *words]

    def call(self, *words: str, cwd: Path) -> str:
        environ = self.environment("head")
        done = subprocess.run(
            self.argv("head", *words), cwd=cwd, env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def _start(self, name: str, *words: str) -> None:
        """On the machine of that name."""
        self.start_program(name, *self.argv(name, "cluster", *words), env=self.environment(name))

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
        made.start_head()
        for machine in ("a", "b"):
            made.start_node(machine, 4)
        yield made
    finally:
        made.close()
        lan.close()


LOG_PROGRAM = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
    time.sleep(0.1)
"""


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
