"""A cluster on a virtual clock: the real permits, waiting calls, heads, links and leases, with model keepers, a
network that loses, delays, repeats and reorders messages, and parties that stop, die and start again at any step.
They also die in the middle of one: between what they put down and what they do then.  Clocks drift, and the clock
of a machine that is started again begins anew.

What is asserted is what the protocol promises:

- no two jobs of a task run at the same time; a job runs at most once;
- each end that a session records is the true one;
- all bytes of a job's output arrive before its end is recorded;
- when the faults stop, every task ends, and every node is one again.

A *job* here is one attempt of a task; a lost one is followed by the next.  `test_scale` has many of these nodes,
and a real supervisor in the place of the simulated sessions.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal

from sessionrun import __version__
from sessionrun.cluster.dask_scheduler import WaitingRoom
from sessionrun.cluster.ends import (
    CALL_SLACK_S,
    GUARD_SLACK_S,
    ROOT_SLACK_S,
    Head,
    Link,
    Opened,
    Timers,
    find_lease,
)
from sessionrun.cluster.messages import ABANDON, TERM, Message, key_of
from sessionrun.cluster.node_jobs import LEASE_WORDS
from sessionrun.cluster.permits import Permits
from sessionrun.keeper.lease import Lease
from sessionrun.model.events import JobLost
from sessionrun.session.executor import Exit, describe_end

TIMERS = Timers(tick=0.5, lease=5.0, grace=0.5, margin=2.2)
FAULTS_S, CALM_S = 60.0, 120.0
"""So long faults come, and so long after the last one everything must have ended."""

CHUNK = 8
LATENCY_S = 0.002
DEATH = 0.003
"""How likely a party dies at one of the points where it could leave something half done."""

DEATH_S = 1.0
"""So long after such a death it is there again."""


@dataclass
class Span:
    """A job's process on a node, as it really was."""

    node: str
    begun: float
    ended: float | None = None

    def lasts(self, now: float) -> bool:
        return self.ended is None or self.ended > now


@dataclass
class Truth:
    """What really happened: the spans of each task by its jobs, and what was wrong with them."""

    spans: dict[str, dict[str, Span]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    lost: int = 0
    faults: int = 0

    def of_task(self, job: str) -> dict[str, Span]:
        return self.spans.setdefault(job.rsplit("/", 4)[0], {})

    def begin(self, job: str, node: str, now: float) -> Span:
        spans = self.of_task(job)
        if job in spans:
            self.violations.append(f"{job} runs a second time on {node}")
        for other, one in spans.items():
            if other != job and one.lasts(now):
                self.violations.append(f"{job} on {node} begins while {other} runs on {one.node}")
        spans[job] = Span(node, now)
        return spans[job]


class World:
    """The virtual clock, and the messages on their way."""

    def __init__(self, seed: int, truth: Truth) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.truth = truth
        self.cut: set[str] = set()
        self.faulty = True
        self.calls = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(time, self.now), next(self._number), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def send(self, one: str, other: str, action: Callable[[], None]) -> None:
        """A message: between parties of which one is cut off it is lost; else it may be late, lost or doubled."""
        self.calls += other == "scheduler"
        if one in self.cut or other in self.cut:
            return
        delay = LATENCY_S
        if self.faulty:
            delay = self.random.expovariate(200.0)
            chance = self.random.random()
            if chance < 0.01:
                return
            if chance < 0.03:
                delay += self.random.uniform(0.0, 9.0)
            elif chance < 0.04:
                self.after(delay + self.random.uniform(0.0, 3.0), action)
        self.after(delay, action)

    def dies(self) -> bool:
        """Whether a party dies at this point of a step."""
        return self.faulty and self.random.random() < DEATH

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Let the time pass until then, or until something is so."""
        while self._queue and self._queue[0][0] <= until and not done():
            self.now, _, action = heapq.heappop(self._queue)
            action()
        if not done() and until < float("inf"):
            self.now = max(self.now, until)


class Scheduler:
    """The scheduler's process, with the real calls that wait; how often it looks at its clock."""

    def __init__(self, world: World, timers: Timers, clock_s: float = 0.02) -> None:
        self._clock_s = clock_s
        self.world = world
        self.timers = timers
        self.stopped = False
        self._epochs = count(1)
        self._late: list[Callable[[], None]] = []
        self.restart()

    def restart(self) -> None:
        """Die, and start again with empty memory."""
        permits = Permits(f"e{next(self._epochs)}", self.world.now, self.timers)
        self.room: WaitingRoom | None
        self.room = room = WaitingRoom(permits, lambda: self.world.now)
        self._look_at_clock(room)

    def die(self, seconds: float) -> None:
        self.room = None
        self.world.after(seconds, self.restart)

    def stop(self, seconds: float) -> None:
        if not self.stopped:
            self.stopped = True
            self.world.after(seconds, self.resume)

    def has(self, node: str) -> bool:
        """Whether the node lives, for all that is known here."""
        nodes = {} if self.room is None else self.room.permits.nodes
        return node in nodes and nodes[node].lives

    def resume(self) -> None:
        self.stopped, late = False, self._late
        self._late = []
        for action in late:
            action()

    def tick(self, tick: Message, answer: Callable[[Message], None]) -> None:
        self._do(lambda room: room.take_tick(tick, partial(self._leave, room, answer)))

    def call(self, call: Message, reply: Callable[[Message], None]) -> None:
        self._do(lambda room: room.take_call(call, partial(self._leave, room, reply)))

    def _do(self, work: Callable[[WaitingRoom], None]) -> None:
        """Work, if this process runs; what comes while it is stopped it takes up when it goes on."""
        if self.stopped:
            self._late.append(partial(self._do, work))
        elif self.room is not None:
            work(self.room)

    def _leave(self, room: WaitingRoom, answer: Callable[[Message], None], told: Message) -> None:
        """Let an answer leave, unless this process has died before, or does so now."""
        if room is self.room and told.get("orders") and self.world.dies():
            self.die(DEATH_S)
        elif room is self.room:
            answer(told)

    def _look_at_clock(self, room: WaitingRoom) -> None:
        if room is self.room and not self.stopped:
            room.look_at_clock()
        if room is self.room:
            self.world.after(self._clock_s, partial(self._look_at_clock, room))


@dataclass
class Process:
    """A job on a node: what its keeper and its ledger know."""

    job: str
    size: int
    span: Span | None = None
    end: Literal["exit", "lease", "void", "interrupted"] | None = None
    over: bool = False
    wrote: int = 0

    def describe_end(self) -> Message:
        """Its end as a node tells it."""
        key = key_of(self.job)
        about: Message = {"job": self.job, "files": {"out": self.size} if self.size else {}}
        if self.end == "exit":
            return {**describe_end(Exit(key, 0)), **about}
        lease = {"kind": "lease"} if self.end == "lease" else {}
        verdict = self.end if self.end == "void" or self.end == "interrupted" else "lost"
        return {**describe_end(JobLost(key, verdict, LEASE_WORDS)), **about, **lease}


class SimulatedNode:
    """A node: a model keeper with the real lease and link, and its two other watchers, which look so often."""

    def __init__(
        self, world: World, scheduler: Scheduler, name: str, slots: int, drift: float = 1.0, look_s: float = 0.05
    ) -> None:
        self.world, self.scheduler, self.name = world, scheduler, name
        self.slots = slots
        self.drift = drift
        self.look_s = look_s
        self.jobs: dict[str, Process] = {}
        self.claimed: set[str] = set()
        self.lease = Lease()
        self.down: set[str] = set()
        self.stopped: set[str] = set()
        self._life = 0
        self._boot, self._booted_at = 1, -1000.0
        self._begin_link()
        self._watch()

    def clock(self) -> int:
        return round((self.world.now - self._booted_at) * self.drift * 1e9)

    # --- the link and its ticks ---

    def _begin_link(self) -> None:
        self._life += 1
        about: Message = {"node": self.name, "name": self.name, "slots": self.slots, "version": __version__}
        self.link = Link({**about, "walls": {}, "boot": self._boot})
        self._tick(self.link.timers.tick)

    def _goes_on(self, life: int, action: Callable[[], None]) -> bool:
        """Whether the link can do something now; one that is stopped does it when it goes on, a dead one never."""
        if life != self._life or {"link", "keeper"} & self.down:
            return False
        if not {"link", "keeper"} & self.stopped:
            return True
        self.world.after(0.3, action)
        return False

    def _tick(self, wait_s: float = 0.0) -> None:
        """A tick, and the next one if that is not answered in time."""
        ends = [p.describe_end() for p in self.jobs.values() if p.end is not None]
        held = [job for job, p in self.jobs.items() if p.end is None]
        out: list[Message] = []
        for job, p in self.jobs.items():
            content = min(CHUNK, (p.size if p.end is not None else p.size // 2) - p.wrote)
            if content > 0:
                out.append({"job": job, "name": "out", "at": p.wrote, "content": content})
        tick = self.link.make_tick(self.clock(), held=held, ends=ends, out=out, wait=wait_s)
        life, scheduler = self._life, self.scheduler

        def answered(answer: Message) -> None:
            self.world.send("scheduler", self.name, lambda: self._hear(life, answer))

        def go_on() -> None:
            if self.link._last == tick["seq"] and self._goes_on(life, go_on):
                self._tick(self.link.timers.tick)

        self.world.send(self.name, "scheduler", lambda: scheduler.tick(tick, answered))
        self.world.after(wait_s + CALL_SLACK_S, go_on)

    def _hear(self, life: int, answer: Message) -> None:
        if self._goes_on(life, lambda: self._hear(life, answer)) and self.link.take(answer):
            news = self._obey(answer)
            if life == self._life:
                self._tick(0.0 if news else self.link.timers.tick)

    def _obey(self, answer: Message) -> bool:
        """Do what an answer says; whether there is something to tell then."""
        news = False
        if (lease := find_lease(answer)) is not None:
            self.lease.renew(*lease, self.clock())
        life = self._life
        for job, order in answer["orders"].items():
            if life == self._life:
                news |= self._start(job, order)
        for job, level in answer["stop"]:
            process = self.jobs.get(job)
            if process is not None and process.end is None:
                process.over = process.over or level == ABANDON
                self._finish(process, after=self.world.random.uniform(0, 0.3) if level == TERM else 0.0)
        for job in answer["void"]:
            if (process := self.jobs.get(job)) is not None:
                self._finish(process)
                if process.end is not None:
                    del self.jobs[job]
        for job, _, size in answer["wrote"]:
            if job in self.jobs and size > self.jobs[job].wrote:
                self.jobs[job].wrote = size
                news = True
        for job in answer["ack"]:
            if job in self.jobs and self.jobs[job].end is not None:
                del self.jobs[job]
        return news

    def _start(self, job: str, order: Message) -> bool:
        if job in self.claimed:
            return False
        self.claimed.add(job)
        about = order["env"]
        process = self.jobs[job] = Process(job, int(about.get("SIZE", 0)))
        if not self.lease.may_start(self.clock()):
            process.end, process.size = "void", 0
            return True
        if self.world.dies():
            self.kill("keeper", DEATH_S)  # the next one finds that it was claimed and not started
            process.end, process.size = "void", 0
            return False
        process.span = self.world.truth.begin(job, self.name, self.world.now)
        self.world.after(float(about["SECONDS"]), lambda: self._finish(process))
        return True

    def _finish(self, process: Process, after: float = 0.0) -> None:
        if after:
            self.world.after(after, lambda: self._finish(process))
            return
        if process.span is None or process.span.ended is not None:
            return
        process.span.ended = self.world.now
        process.end = "lease" if process.over else "exit"
        if self.world.dies():
            self.kill("keeper", DEATH_S)
        if not {"link", "keeper"} & (self.down | self.stopped):
            self._tick()

    # --- the watchers: keeper, root, guard; each with its slack ---

    def _watch(self) -> None:
        now = self.clock()
        running = [p for p in self.jobs.values() if p.span is not None and p.span.ended is None]
        for who, slack_s in (("keeper", 0.0), ("root", ROOT_SLACK_S), ("guard", GUARD_SLACK_S)):
            if who in self.down or who in self.stopped:
                continue
            if who == "keeper" and not self.lease.may_start(now):
                for process in running:
                    process.over = True
            if self.lease.is_over(now, round(slack_s * 1e9)):
                for process in running:
                    process.over = True
                    self._finish(process)
        self.world.after(self.look_s, self._watch)

    # --- faults ---

    def kill(self, who: str, seconds: float) -> None:
        self.down.add(who)
        if who in ("link", "keeper"):
            self._life += 1
        self.world.after(seconds, lambda: self._back(who))

    def _back(self, who: str) -> None:
        self.down.discard(who)
        if who in ("link", "keeper") and not {"link", "keeper"} & self.down:
            self._begin_link()

    def reboot(self, seconds: float) -> None:
        """All that runs on the machine is gone, and so is its lease; what it has on disk is there."""
        for process in self.jobs.values():
            if process.span is not None and process.span.ended is None:
                process.span.ended, process.end = self.world.now, "interrupted"
        for who in ("link", "keeper", "root", "guard"):
            self.kill(who, seconds)
        self.lease = Lease()
        self._boot, self._booted_at = self._boot + 1, self.world.now

    def stop(self, seconds: float, *who: str) -> None:
        """Stop these for a while; a stopped keeper does nothing, but its jobs go on."""
        self.stopped.update(who)
        self.world.after(seconds, lambda: self.stopped.difference_update(who))


class SimulatedSession:
    """A session's supervisor with its journal: tasks that run until one attempt of each has ended well."""

    def __init__(self, world: World, scheduler: Scheduler, name: str, tasks: int, cancels: float) -> None:
        self.world, self.scheduler, self.name = world, scheduler, name
        self.attempt = dict.fromkeys(range(tasks), 1)
        self.done: set[int] = set()
        self.journal: dict[str, Opened] = {}
        self.written: dict[str, int] = {}
        self.early: dict[str, Message] = {}
        self.down = False
        self._cancels = cancels
        self._gen = 0
        self._begin()

    def _begin(self) -> None:
        self._gen += 1
        self.head = Head(self.name, self._gen, self.journal)
        self._flying: Message | None = None
        self.early.clear()
        self._turn(self._gen)

    def kill(self, seconds: float) -> None:
        self.down = True
        self._gen += 1
        self.world.after(seconds, self._back)

    def _back(self) -> None:
        if self.down:
            self.down = False
            self._begin()

    def _turn(self, gen: int) -> None:
        """Start what can be started, and have a call on its way, with news or for news; again in a moment."""
        if gen == self._gen:
            self._submit()
        if gen == self._gen:
            if self._flying is None or (self._flying["wait"] and self.head.has_news):
                self._call(0.0 if self.head.has_news else TIMERS.tick)
            self.world.after(0.02, lambda: self._turn(gen))

    def _submit(self) -> None:
        if self.head.epoch is None:
            return
        used: dict[str, int] = {}
        for at in self.journal.values():
            used[at.node] = used.get(at.node, 0) + 1
        nodes = [n for n in self.head.nodes.values() if n["lives"] and used.get(n["id"], 0) < n["slots"]]
        busy = {job.split("/")[1] for job in self.journal}
        for task in self.attempt:
            if task in self.done or str(task) in busy or not nodes:
                continue
            node = self.world.random.choice(nodes)
            job = f"{self.name}/{task}/{self.attempt[task]}/1/work/1"
            self.journal[job] = at = Opened(node["id"], self.head.epoch)
            if self.world.dies():
                self.kill(DEATH_S)
                return
            seconds = self.world.random.uniform(0.0, 6.0)
            self.head.submit(job, at, {"env": {"SIZE": self.world.random.randrange(30), "SECONDS": seconds}})
            if self.world.random.random() < self._cancels:
                self.world.after(seconds / 2, partial(self.head.stop, job, TERM))
            return

    def _call(self, wait_s: float) -> None:
        call, gen, head = self.head.make_call(wait_s), self._gen, self.head
        self._flying = call
        heard: list[Any] = []

        def replied(reply: Message) -> None:
            self.world.send("scheduler", self.name, lambda: self._hear(gen, head, call, reply, heard))

        def overdue() -> None:
            if not heard and gen == self._gen:
                heard.append("overdue")
                if self._flying is call:
                    self._flying = None
                head.fail()

        self.world.after(wait_s + CALL_SLACK_S, overdue)
        self.world.send(self.name, "scheduler", lambda: self.scheduler.call(call, replied))

    def _hear(self, gen: int, head: Head, call: Message, reply: Message, heard: list[Any]) -> None:
        if gen != self._gen or heard:
            return
        heard.append(reply)
        if self._flying is call:
            self._flying = None
        head.take(call, reply)
        for chunk in reply["out"]:
            at = self.written.get(chunk["job"], 0)
            if chunk["at"] <= at:
                self.written[chunk["job"]] = max(at, chunk["at"] + chunk["content"])
            head.wrote(chunk["job"], chunk["name"], self.written.get(chunk["job"], 0))
        ends = [about for kind, about in reply["news"] if kind == "ended"]
        for end in (*self.early.values(), *ends):
            job, what = end["job"], "exit" if end["kind"] == "exit" else end["verdict"]
            if job in self.journal and self.written.get(job, 0) < end["files"].get("out", 0):
                self.early[job] = end
            elif gen == self._gen:
                self._record(job, what, "so says its node")
        for kind, dead in reply["news"]:
            if kind == "dead" and gen == self._gen:
                self._record(dead["job"], "lost" if dead["ran"] else "void", dead["reason"])

    def _record(self, job: str, what: str, why: str) -> None:
        if job not in self.journal:
            self.head.drop(job)
            return
        truth, task = self.world.truth, int(job.split("/")[1])
        span = truth.of_task(job).get(job)
        if what == "void" and span is not None:
            truth.violations.append(f"{job} ran, and was called void: {why}")
        if what == "exit" and span is None:
            truth.violations.append(f"{job} never ran, and was called ended: {why}")
        if span is not None and span.lasts(self.world.now):
            truth.violations.append(f"{job} was called {what} while it runs: {why}")
        if what == "exit":
            self.done.add(task)
        else:
            truth.lost += what != "void"
            self.attempt[task] += 1
        del self.journal[job]
        self.early.pop(job, None)
        if self.world.dies():
            self.kill(DEATH_S)
        else:
            self.head.drop(job)

    @property
    def has_ended(self) -> bool:
        return len(self.done) == len(self.attempt)


def play(seed: int, *, timers: Timers = TIMERS) -> Truth:
    """One cluster, its faults by `seed`."""
    truth = Truth()
    world = World(seed, truth)
    scheduler = Scheduler(world, timers)
    drifts = [1.0 + world.random.uniform(-0.001, 0.001) for _ in range(4)]
    nodes = [SimulatedNode(world, scheduler, f"n{i}", world.random.randint(1, 4), drifts[i]) for i in range(4)]
    sessions = [SimulatedSession(world, scheduler, f"s{i}", world.random.randint(2, 12), 0.1) for i in range(2)]
    _plan_faults(world, scheduler, nodes, sessions, FAULTS_S)

    def find_missing() -> list[str]:
        return [node.name for node in nodes if not scheduler.has(node.name)]

    def is_done() -> bool:
        return world.now > FAULTS_S and all(session.has_ended for session in sessions) and not find_missing()

    world.run(FAULTS_S + CALM_S, is_done)
    for session in sessions:
        if not session.has_ended:
            missing = sorted(set(session.attempt) - session.done)
            truth.violations.append(f"{session.name}: tasks {missing} never ended; open: {session.journal}")
    truth.violations += [f"{name} never came back" for name in find_missing()]
    return truth


def _plan_faults(
    world: World, scheduler: Scheduler, nodes: list[SimulatedNode], sessions: list[SimulatedSession], until: float
) -> None:
    choose = world.random

    def cut(name: str, seconds: float) -> None:
        world.cut.add(name)
        world.after(seconds, lambda: world.cut.discard(name))

    def fault() -> None:
        if world.now > until:
            world.faulty = False
            return
        world.truth.faults += 1
        node, session = choose.choice(nodes), choose.choice(sessions)
        seconds = choose.choice((0.2, 1.0, 3.0, 12.0))
        short = min(seconds, 3.0)
        kinds: dict[Callable[[], None], int] = {  # and how often each comes
            lambda: node.kill(choose.choice(("link", "keeper", "root", "guard")), short): 30,
            lambda: node.stop(seconds, choose.choice(("link", "keeper", "root"))): 10,
            lambda: node.stop(seconds, "link", "keeper", "root"): 5,  # only the last watcher is left
            lambda: node.reboot(short): 3,
            lambda: cut(node.name, seconds): 12,
            lambda: cut(session.name, seconds): 10,
            lambda: session.kill(short): 15,
            lambda: scheduler.die(seconds): 10,
            lambda: scheduler.stop(seconds): 5,
        }
        choose.choices([*kinds], [*kinds.values()])[0]()
        world.after(choose.uniform(0.5, 5.0), fault)

    world.after(2.0, fault)
