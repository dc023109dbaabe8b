"""Many nodes and many tasks on a virtual clock: the real supervisor, engine, journal, executor, head, permits,
links and leases; only processes, network and time are simulated.
"""

from __future__ import annotations

import heapq
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cluster_simulation import Scheduler, Truth, World

from sessionrun import __version__
from sessionrun.cluster.dask_executor import DaskExecutor
from sessionrun.cluster.dask_scheduler import CLOCK_S
from sessionrun.cluster.ends import Head, Link, Timers, find_lease
from sessionrun.cluster.messages import Message, key_of
from sessionrun.cluster.node_jobs import LEASE_WORDS
from sessionrun.engine.status import project
from sessionrun.keeper.lease import Lease
from sessionrun.model.asked import Cluster
from sessionrun.model.events import JobLost
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec
from sessionrun.session.executor import Exit, describe_end
from sessionrun.session.history import begin
from sessionrun.session.maker import JobMaker
from sessionrun.session.partners import Clock, Partners
from sessionrun.session.supervisor import Supervisor
from sessionrun.session.worker import Worker
from sessionrun.store.creation import create_session
from sessionrun.store.logs import AppendLog
from sessionrun.store.session import SessionDir

TIMERS = Timers(tick=5.0)
LATENCY_S = 0.002
SLOTS = 8
SESSION_ID = "0b0e0f3c-0000-4000-8000-000000000001"


@dataclass
class Fate:
    """What became of the jobs of one run."""

    begun: dict[str, str] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    messages: int = 0


class ScaleNode:
    """A node: the real link and lease, and jobs that only last."""

    def __init__(self, world: World, scheduler: Scheduler, name: str, fate: Fate) -> None:
        self.world, self.scheduler, self.name, self.fate = world, scheduler, name, fate
        self.link = Link(name, name, SLOTS, __version__)
        self.link.timers = TIMERS
        self.lease = Lease()
        self.ends: dict[str, Message | None] = {}
        self.is_dead = False
        self.tick(TIMERS.tick)

    def clock(self) -> int:
        return round((1000.0 + self.world.now) * 1e9)

    def tick(self, wait_s: float) -> None:
        if self.is_dead:
            return
        ends = [end for end in self.ends.values() if end is not None]
        held = [job for job, end in self.ends.items() if end is None]
        tick = self.link.make_tick(self.clock(), held=held, ends=ends, out=(), wait_s=wait_s)
        self.fate.messages += 1

        def answered(answer: Message) -> None:
            if self.name not in self.world.cut:
                self.world.after(LATENCY_S, lambda: self._hear(answer))

        def again() -> None:
            if tick["seq"] == self.link._last:
                self.tick(TIMERS.tick)

        if self.name not in self.world.cut:
            self.world.after(LATENCY_S, lambda: self.scheduler.tick(tick, answered))
        self.world.after(wait_s + 3.0, again)

    def _hear(self, answer: Message) -> None:
        if not self.is_dead and self.link.take(answer):
            self._obey(answer)
            self.tick(TIMERS.tick)

    def _obey(self, answer: Message) -> None:
        lease = find_lease(answer)
        if lease is not None and self.lease.renew(*lease, self.clock()):
            until = lease[0]
            self.world.after((until - self.clock()) / 1e9, lambda: self._check_lease(until))
        for job, order in answer["orders"].items():
            self._start(job, order)
        for job in (*answer["ack"], *answer["void"]):
            self.ends.pop(job, None)

    def _start(self, job: str, order: Message) -> None:
        if job in self.fate.begun:
            self.fate.violations.append(f"{job} begins again on {self.name}")
        task = job.split("/")[1]
        if self.fate.running.get(task):
            self.fate.violations.append(f"{job} begins on {self.name} beside another attempt")
        self.fate.begun[job] = self.name
        self.fate.running[task] = self.fate.running.get(task, 0) + 1
        self.ends[job] = None
        self.world.after(float(order["env"]["SECONDS"]), lambda: self._end(job, "exit"))

    def _end(self, job: str, kind: str) -> None:
        if self.is_dead or self.ends.get(job, self) is not None:
            return
        self.fate.running[job.split("/")[1]] -= 1
        end = Exit(key_of(job), 0) if kind == "exit" else JobLost(key_of(job), "lost", LEASE_WORDS, gone=True)
        self.ends[job] = {**describe_end(end), "job": job, "kind": kind, "files": {}}
        self.tick(0.0)

    def _check_lease(self, until_ns: int) -> None:
        if self.lease.until_ns == until_ns:
            for job in [job for job, end in self.ends.items() if end is None]:
                self._end(job, "lease")

    def die(self) -> None:
        """The machine has no power any more."""
        self.is_dead = True
        for job, end in self.ends.items():
            if end is None:
                self.fate.running[job.split("/")[1]] -= 1


class ScaleCarrier:
    """The carrier's work, in the virtual time."""

    def __init__(
        self, world: World, scheduler: Scheduler, fate: Fate, head: Head, keep: Callable[[Message], list[Any]]
    ):
        self.world, self.scheduler, self.fate, self.head = world, scheduler, fate, head
        self.worker: Worker[None, Any] = Worker("none", lambda _: None)
        self.has_heard = False
        self._keep = keep
        self._flying: str | None = None
        self._call()

    def ask(self, *deeds: Callable[[Head], None]) -> None:
        for deed in deeds:
            deed(self.head)
        if self._flying != "news" and self.head.has_news:
            self._call()

    def close(self) -> None:
        self.head.close()

    def _call(self) -> None:
        kind = "news" if self.head.has_news else "parked"
        call = self.head.make_call(0.0 if kind == "news" else TIMERS.tick)
        self._flying = kind
        self.fate.messages += 1

        def replied(reply: Message) -> None:
            self.world.after(LATENCY_S, lambda: self._hear(call, reply, kind))

        self.world.after(LATENCY_S, lambda: self.scheduler.call(call, replied))

    def _hear(self, call: Message, reply: Message, kind: str) -> None:
        epoch = self.head.epoch
        self.head.take(call, reply)
        heard = self._keep(reply)
        if self.head.epoch != epoch:
            heard.append(("epoch", self.head.epoch))
        if reply["nodes"] is not None:
            heard.append(("nodes", {**self.head.nodes}))
        self.worker.tell(*heard)
        self.has_heard |= bool(heard)
        if kind == self._flying:
            self._call()


class ScaleLocal:
    """In the place of this machine's executor: lets the virtual time pass."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.carrier: ScaleCarrier | None = None

    def start(self, jobs: object) -> list[Any]:
        raise AssertionError("nothing lands here")

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Any]:
        queue, carrier = self.world._queue, self.carrier
        assert carrier is not None
        until = float("inf") if timeout_s is None else self.world.now + timeout_s
        while not carrier.has_heard and queue and queue[0][0] <= until:
            self.world.now, _, action = heapq.heappop(queue)
            action()
        if not carrier.has_heard and until != float("inf"):
            self.world.now = max(self.world.now, until)
        carrier.has_heard = False
        return []

    def close(self) -> None:
        pass


SHOW_S: Final = 1e-5
"""What it takes to show a task in status.json (seconds): in the virtual time this is all that a turn takes."""


class QuietSession(SessionDir):
    """Writes the end alone; to show anything before takes virtual time, so that it is shown as rarely as it is."""

    __slots__ = ("world",)
    world: World

    def replace_status(self, status: dict[str, Any], summary: dict[str, Any], *, durable: bool) -> None:
        self.world.now += SHOW_S * status["total"]
        if durable:
            super().replace_status(status, summary, durable=durable)


def make_spec(place: Path, tasks: int, choose: random.Random) -> SessionSpec:
    return SessionSpec(
        session_id=SESSION_ID,
        created_at="2026-01-01T00:00:00.000Z",
        dialect="prompts",
        source="test",
        cwd=str(place),
        agent="shell",
        agents={"shell": AgentSpec("shell", ("/bin/sh", "{prompt_file}"), stdin="none", prompt_kind="script")},
        tasks=tuple(
            TaskSpec(f"t{number}", ("true",), env={"SECONDS": f"{choose.uniform(30, 90):.1f}"})
            for number in range(tasks)
        ),
        cluster=Cluster("tls://127.0.0.1:1"),
    )


def play(place: Path, nodes: int, tasks: int, seed: int) -> tuple[dict[str, float], Fate, dict[str, Any]]:
    """One session; a twentieth of the nodes loses power, another one its cable for two minutes."""
    choose = random.Random(seed)
    spec = make_spec(place, tasks, choose)
    session = QuietSession(place / "results" / f"session-{SESSION_ID}")
    create_session(session, spec)
    fate = Fate()
    world = World(seed, Truth())
    world.faulty = False
    session.world = world
    scheduler = Scheduler(world, TIMERS, CLOCK_S)
    machines = [ScaleNode(world, scheduler, f"n{number}@x", fate) for number in range(nodes)]
    local = ScaleLocal(world)

    def connect(cluster: Cluster, head: Head, contact: object, keep: Callable[[Message], list[Any]]) -> Any:
        local.carrier = ScaleCarrier(world, scheduler, fate, head, keep)
        return local.carrier

    unlucky = choose.sample(machines, max(2, nodes // 10))
    for number, machine in enumerate(unlucky):
        at = choose.uniform(40.0, 200.0)
        if number % 2:
            world.at(at, machine.die)
        else:
            world.at(at, lambda name=machine.name: world.cut.add(name))  # type: ignore[misc]
            world.at(at + 120.0, lambda name=machine.name: world.cut.discard(name))  # type: ignore[misc]
    state, journal = begin(spec), AppendLog(session.journal_path)
    stand_in: Any = local
    clock = Clock(lambda: 1_800_000_000.0 + world.now, lambda: world.now)
    executor = DaskExecutor(session, spec, stand_in, 1, {}, (), print, connect=connect, clock=lambda: world.now)
    begun, cpu = time.monotonic(), time.process_time()
    Supervisor(session, state, journal, Partners(executor), JobMaker(session, lambda: spec), clock).run()
    wall_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu
    journal.close()
    shown = project(state)
    figures = {
        "nodes": nodes,
        "tasks": tasks,
        "lost": sum(task["outcome"] == "lost" for task in shown["tasks"]),
        "virtual_s": round(world.now),
        "wall_s": round(wall_s, 1),
        "cpu_ms_per_task": round(cpu_s / tasks * 1000, 2),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "journal_mb": round(session.journal_path.stat().st_size / 1e6, 1),
        "messages": fate.messages,
    }
    return figures, fate, shown
