"""A session of very many tasks on very many nodes, on a virtual clock.

Supervisor, engine, journal, executor, head, permits, links and leases are the real ones.  Processes, network and
time are simulated.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from cluster_simulation import Scheduler, SimulatedNode, Truth, World
from conftest import Command, slow_seed

from sessionrun.cluster.dask_executor import DaskExecutor
from sessionrun.cluster.dask_scheduler import CLOCK_S
from sessionrun.cluster.ends import Head, Timers
from sessionrun.cluster.messages import Message
from sessionrun.engine.status import project
from sessionrun.model.asked import Cluster
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec
from sessionrun.session.history import begin, replay
from sessionrun.session.maker import JobMaker
from sessionrun.session.partners import Clock, Partners
from sessionrun.session.supervisor import Supervisor
from sessionrun.session.worker import Worker
from sessionrun.store.creation import create_session
from sessionrun.store.logs import AppendLog
from sessionrun.store.session import SessionDir

TIMERS = Timers(tick=5.0)
SLOTS = 8
LOOK_S = 1.0
SESSION_ID = "0b0e0f3c-0000-4000-8000-000000000001"


class ScaleCarrier:
    """The carrier's work, in the virtual time."""

    def __init__(
        self, world: World, scheduler: Scheduler, head: Head, keep: Callable[[Message], list[Any]]
    ) -> None:
        self.world, self.scheduler, self.head = world, scheduler, head
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

        def replied(reply: Message) -> None:
            self.world.send("scheduler", "head", lambda: self._hear(call, reply, kind))

        self.world.send("head", "scheduler", lambda: self.scheduler.call(call, replied))

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
    """In the place of this machine's executor, where nothing lands: lets the virtual time pass."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.carrier: ScaleCarrier | None = None

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Any]:
        carrier = self.carrier
        assert carrier is not None
        self.world.run(
            float("inf") if timeout_s is None else self.world.now + timeout_s, lambda: carrier.has_heard
        )
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


def check(session: SessionDir, truth: Truth, shown: list[dict[str, Any]]) -> None:
    """No job ran twice, none is lost without being called so, and the journal says the same."""
    assert truth.violations == []
    lost = [task for task in shown if task["outcome"] != "succeeded"]
    assert [task for task in lost if task["outcome"] != "lost" or "lease" not in task["reason"]] == []
    assert project(replay(session)[0])["tasks"] == shown


def play(place: Path, nodes: int, tasks: int, seed: int) -> dict[str, float]:
    """One session; a twentieth of the nodes loses power, another one its cable for two minutes."""
    choose = random.Random(seed)
    spec = make_spec(place, tasks, choose)
    session = QuietSession(place / "results" / f"session-{SESSION_ID}")
    create_session(session, spec)
    truth = Truth()
    world = session.world = World(seed, truth)
    world.faulty = False
    scheduler = Scheduler(world, TIMERS, CLOCK_S)
    machines = [SimulatedNode(world, scheduler, f"n{number}@x", SLOTS, look_s=LOOK_S) for number in range(nodes)]
    local = ScaleLocal(world)

    def connect(cluster: Cluster, head: Head, contact: object, keep: Callable[[Message], list[Any]]) -> Any:
        local.carrier = ScaleCarrier(world, scheduler, head, keep)
        return local.carrier

    for number, machine in enumerate(choose.sample(machines, max(2, nodes // 10))):
        at = choose.uniform(40.0, 200.0)
        if number % 2:
            world.at(at, partial(machine.reboot, float("inf")))  # it has no power any more
        else:
            world.at(at, partial(world.cut.add, machine.name))
            world.at(at + 120.0, partial(world.cut.discard, machine.name))
    state, journal = begin(spec), AppendLog(session.journal_path)
    stand_in: Any = local
    clock = Clock(lambda: 1_800_000_000.0 + world.now, lambda: world.now)
    executor = DaskExecutor(session, spec, stand_in, 1, {}, (), print, connect=connect, clock=lambda: world.now)
    begun, cpu = time.monotonic(), time.process_time()
    Supervisor(session, state, journal, Partners(executor), JobMaker(session, lambda: spec), clock).run()
    wall_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu
    journal.close()
    shown = project(state)["tasks"]
    figures = {
        "nodes": nodes,
        "tasks": tasks,
        "lost": sum(task["outcome"] == "lost" for task in shown),
        "virtual_s": round(world.now),
        "wall_s": round(wall_s, 1),
        "cpu_ms_per_task": round(cpu_s / tasks * 1000, 2),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "journal_mb": round(session.journal_path.stat().st_size / 1e6, 1),
        "messages": world.calls,
    }
    check(session, truth, shown)
    return figures


@pytest.mark.slow
def test_twenty_nodes(own_place: Path) -> None:
    assert 0 < play(own_place, nodes=20, tasks=400, seed=1)["lost"] < 40


@pytest.mark.slow
def test_a_thousand_nodes_and_a_hundred_thousand_tasks(
    own_place: Path, sessionrun: Command, say: Callable[[str], None]
) -> None:
    seed = slow_seed()
    figures = play(own_place, nodes=1000, tasks=100_000, seed=seed)
    spans = {}
    for words in (("status", SESSION_ID, "--brief"), ("list",)):
        begun = time.monotonic()
        assert sessionrun(*words, real=True).returncode == 0
        spans[words[0]] = round(time.monotonic() - begun, 2)
    say(f"scale, seed {seed}: {figures}; seconds to read: {spans}")
