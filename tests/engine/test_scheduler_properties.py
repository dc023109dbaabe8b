"""Whatever the graph and whatever befalls its jobs, the scheduler's promises hold after every entry."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import (
    AGENTS,
    CLASSES,
    EPOCH_S,
    Drive,
    Fate,
    Planned,
    SimulatedExecutor,
    as_read,
    judge,
    make_session,
)

from sessionrun.engine.fold import apply
from sessionrun.engine.moves import job_tokens, span_tokens
from sessionrun.engine.scheduler import Order, decide
from sessionrun.engine.state import State, provider_of
from sessionrun.engine.status import project
from sessionrun.engine.task import UP_TO_WORK
from sessionrun.engine.transitions import MAX_STARTS
from sessionrun.model import events
from sessionrun.model.checks import HiddenTests
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import (
    RETRY_FAILED,
    RETRY_LOST,
    SLOT,
    Alternative,
    Check,
    Halt,
    Job,
    Prove,
    SessionSpec,
    TaskSpec,
    Workspace,
)
from sessionrun.model.usage import Usage
from sessionrun.model.words import Effect
from sessionrun.session.executor import Exit
from sessionrun.session.history import begin

PROFILE = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
CAPACITIES = st.fixed_dictionaries(
    {"gpu": st.integers(1, 3), "worktree:w": st.integers(1, 2)},
    optional={SLOT: st.integers(1, 3), "provider:first": st.integers(1, 2)},
)
EFFECTS: tuple[Effect, ...] = ("limit", "backoff")
YEAR_S = 365 * 86400.0
SECONDS = st.integers(0, 12).map(lambda half: half / 2)
LATE_SECONDS = st.integers(0, 30).map(lambda half: half / 2)
FATES = st.one_of(
    st.builds(
        Fate, st.just("exits"), SECONDS, st.just(0), grace_s=SECONDS, prints_at=st.lists(SECONDS).map(tuple)
    ),
    st.builds(Fate, st.just("exits"), SECONDS, st.sampled_from([0, 256, 9]), grace_s=SECONDS),
    st.builds(Fate, st.just("exits"), SECONDS, st.sampled_from([code << 8 for code in CLASSES]), grace_s=SECONDS),
    st.builds(Fate, st.sampled_from(["lost", "interrupted", "void", "refused", "unstartable"]), SECONDS),
)


@dataclass
class World:
    """One generated session and all that will happen to it."""

    spec: SessionSpec
    fates: list[Fate]
    planned: list[Planned]

    def fate_of(self, job: Job) -> Fate:
        """Always the same for the same key; nothing is refused or limited for ever."""
        fate = self.fates[crc32(job.key.text().encode()) % len(self.fates)]
        passes = fate.kind == "refused" or fate.wait_status >> 8 in CLASSES
        return Fate() if passes and job.key.start > 4 else fate


@st.composite
def uses_of(draw: st.DrawFn, resources: dict[str, int], names: tuple[str, ...]) -> dict[str, int]:
    """Some tokens, never more of one than there is."""
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=2))
    return {name: draw(st.integers(1, resources[name])) for name in chosen}


@st.composite
def tasks_of(draw: st.DrawFn, number: int, resources: dict[str, int]) -> TaskSpec:
    """A task that needs some of those with smaller numbers."""
    needs = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
    check_uses = draw(uses_of(resources, ("gpu",)))
    checks = st.builds(Check, st.just(("true",)), st.none() | SECONDS, st.just(check_uses))
    workspace = draw(st.sampled_from([Workspace("none"), Workspace("worktree")]))
    proofs = st.sampled_from([None, None, Prove(), Prove(hidden=HiddenTests("", ("t::a",)))])
    return TaskSpec(
        f"t{number}",
        ("x",),
        workspace=workspace,
        prove=draw(proofs) if workspace.kind == "worktree" else None,
        setup=draw(st.sampled_from([(), ("true",)])),
        needs=tuple(f"t{need}" for need in needs),
        uses=draw(uses_of(resources, tuple(resources))),
        check=draw(st.none() | checks),
        rounds=draw(st.integers(1, 3)),
        timeout_s=draw(st.none() | SECONDS),
        round_timeout_s=draw(st.none() | SECONDS),
        idle_timeout_s=draw(st.none() | SECONDS),
        retries=draw(st.integers(0, 2)),
        agent=draw(st.sampled_from(sorted(AGENTS))),
        fallback=tuple(map(Alternative, draw(st.lists(st.sampled_from(sorted(AGENTS)), max_size=2)))),
        fallback_on=draw(st.sampled_from([(), (), ("start_failed",), ("auth", "agent_crashed")])),
    )


@st.composite
def holds(draw: st.DrawFn) -> list[Planned]:
    """A hold, and its end unless it ends by itself."""
    name = draw(st.sampled_from(["gpu", SLOT]))
    at, more = draw(SECONDS), draw(SECONDS)
    kind = draw(st.sampled_from(["until", "until_exit", "manual"]))
    if kind == "manual":
        return [(at, events.HoldPlaced(name, "stop")), (at + more, events.HoldLifted(name))]
    until = at + more if kind == "until" else None
    return [(at, events.HoldPlaced(name, "stop", until, until_exit=kind == "until_exit"))]


@st.composite
def requests_of(draw: st.DrawFn, name: str, tasks: list[TaskSpec]) -> events.RequestReceived:
    """Anything that a client may ask for, about some tasks or all."""
    known = st.sampled_from([task.id for task in tasks] or ["none"])
    kind = draw(st.sampled_from(events.REQUEST_KINDS))
    outcomes = (*RETRY_FAILED, *RETRY_LOST)
    changes = st.none() | st.builds(
        events.Change, st.sampled_from(sorted(AGENTS)), st.none(), st.sampled_from([None, "y"])
    )
    return events.RequestReceived(
        name,
        kind,
        tuple(draw(st.lists(known, max_size=2))),
        now=kind == "cancel" and draw(st.booleans()),
        outcomes=tuple(draw(st.lists(st.sampled_from(outcomes), max_size=3))) if kind == "retry" else (),
        text="more" if kind == "continue" else None,
        change=draw(changes) if kind == "retry" else None,
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A session of up to eight tasks, the last of them perhaps brought late by a feed."""
    resources = draw(CAPACITIES)
    tasks = [draw(tasks_of(number, resources)) for number in range(draw(st.integers(0, 8)))]
    late = draw(st.integers(0, min(3, len(tasks)))) if draw(st.booleans()) else None
    early = tasks[: len(tasks) - (late or 0)]
    planned: list[Planned] = [(draw(SECONDS), events.TaskAdded(task)) for task in tasks[len(early) :]]
    if late is not None:
        planned.append((13.0, events.FeedClosed()))
    count = draw(st.integers(0, 4))
    planned += [(draw(LATE_SECONDS), draw(requests_of(f"r{place}", tasks))) for place in range(count)]
    planned.append((16.0, events.RequestReceived("last", "release")))  # or what is held would wait for ever
    for hold in draw(st.lists(holds(), max_size=2)):
        planned += hold
    spec = make_session(
        draw(st.permutations(early)),
        resources=resources,
        max_failures=draw(st.sampled_from([None, None, None, 1, 2])),
        workspace_timeout_s=draw(st.none() | st.integers(1, 8).map(lambda half: half / 2)),
        open_feed=late is not None,
    )
    halts: list[Halt | None] = [None, "now"]
    stagger_s = draw(st.sampled_from([None, None, 0.5, 2.0]))
    spec = replace(spec, limits=replace(spec.limits, halt=draw(st.sampled_from(halts)), stagger_s=stagger_s))
    return World(spec, draw(st.lists(FATES, min_size=1, max_size=6)), planned)


class Watch:
    """Checks the promises after every entry; a second state lives on what the journal would give back."""

    def __init__(self, spec: SessionSpec) -> None:
        self.replayed = begin(spec)
        self.claimed: set[JobKey] = set()
        self.running: dict[str, JobKey] = {}
        self.owed: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.begun: set[tuple[str, int]] = set()
        self.unwanted: set[str] = set()
        self.unsure: set[str] = set()
        self.attempts: dict[str, int] = {}

    def __call__(self, state: State, entry: events.Entry) -> None:
        event = entry.event
        if isinstance(event, events.JobClaimed):
            self._on_claim(state, event.key)
        elif isinstance(event, (events.JobFinished, events.JobLost)):
            self._on_job_over(event)
        elif isinstance(event, (events.TaskEnded, events.TaskRetried)):
            assert event.task not in self.running
            assert event.task not in self.owed, "RELEASE did not run"
            place = state.tasks[event.task].place
            assert place is None or place.worktree is None or place.kept, "nothing says why the worktree is kept"
            if isinstance(event, events.TaskEnded):
                assert event.task not in self.ended, "ended twice"
                self.ended[event.task] = event.outcome
        elif isinstance(event, events.RequestReceived) and event.kind == "cancel":
            named = set(event.tasks or state.tasks) & set(state.tasks)
            self.unwanted |= named if state.ended is None else set()
        elif isinstance(event, events.SessionEnded):
            assert set(self.ended) == set(state.tasks)
            assert state.free == state.spec.resources, "a token did not come back"
        self._see_what_was_reopened(state)
        self._check_tokens(state)
        apply(self.replayed, as_read(entry))
        assert self.replayed == state

    def _see_what_was_reopened(self, state: State) -> None:
        """An end is taken back on request only, and that of a success only by a follow-up."""
        for name, outcome in list(self.ended.items()):
            task = state.tasks[name]
            if task.outcome is None:
                is_new = task.follow_ups and task.follow_up_attempt == task.attempt
                assert outcome != "succeeded" or is_new, "a success was tried again"
                assert state.ended is None
                del self.ended[name]
        self.unwanted = {name for name in self.unwanted if state.tasks[name].cancelled}
        self.unsure = {name for name in self.unsure if state.tasks[name].attempt == self.attempts[name]}

    def _on_claim(self, state: State, key: JobKey) -> None:
        task = state.tasks[key.task]
        assert key not in self.claimed, "a key was claimed twice"
        assert key.task not in self.running, "two jobs of one task"
        assert key.task not in self.ended, "a job after the end"
        unmet = [need for need in task.spec.needs if self.ended.get(need) != "succeeded"]
        continued = [name for name in (key.task, *unmet) if state.tasks[name].follow_ups]
        assert key.task in continued or unmet == continued, "started before its needs"
        tokens = {SLOT, *dict(job_tokens(state, task, key.phase))}
        if key.phase in UP_TO_WORK:
            tokens.add(provider_of(state, task))
            provider = state.providers.get(provider_of(state, task))
            assert not (provider and provider.probing) or provider.canary == key.task, "two canaries"
        assert not tokens & set(state.holds), "started under a hold"
        assert task.held is None or key.phase not in UP_TO_WORK, "started under a hold on request"
        assert key.task not in self.unsure or key.phase == "release", "what may have run ran again"
        if (key.task, key.attempt) not in self.begun:
            assert not state.halted, "a new attempt after the session was stopped"
            assert key.task not in self.unwanted, "a new attempt after a cancel"
        self.begun.add((key.task, key.attempt))
        self.claimed.add(key)
        self.running[key.task] = key
        if key.phase == "prepare":
            self.owed[key.task] = MAX_STARTS

    def _on_job_over(self, event: events.JobFinished | events.JobLost) -> None:
        task = event.key.task
        assert self.running.pop(task) == event.key
        if event.key.phase in ("setup", "work") and isinstance(event, events.JobLost) and event.verdict != "void":
            self.unsure.add(task)
            self.attempts[task] = event.key.attempt
        if event.key.phase == "release":
            job = self.replayed.tasks[task].job  # as it was before this
            ended = isinstance(event, events.JobFinished) or (job is not None and job.stopping is not None)
            counts = MAX_STARTS if ended or not isinstance(event, events.JobLost) else event.counts
            self.owed[task] -= counts
            if self.owed[task] <= 0:
                del self.owed[task]

    def _check_tokens(self, state: State) -> None:
        held: Counter[str] = Counter()
        for task in state.tasks.values():
            held.update(dict(span_tokens(state, task)))
            held.update(dict(job_tokens(state, task, task.job.key.phase)) if task.job else {})
        assert {name: state.spec.resources[name] - held[name] for name in state.free} == state.free
        assert all(amount >= 0 for amount in state.free.values()), "more was taken than there is"
        assert state.running_jobs == len(self.running)


@PROFILE
@given(worlds())
def test_promises_hold_after_every_entry(world: World) -> None:
    watch = Watch(world.spec)
    drive = Drive(world.spec, SimulatedExecutor(world.fate_of), world.planned, watch, suspicious=True).run()
    assert drive.state.ended is not None
    assert Counter(watch.ended.values()) == Counter(drive.state.outcomes)


@PROFILE
@given(
    worlds(), st.floats(0, 1, exclude_max=True), st.sampled_from(["b1", "b2"]), st.sampled_from(["lost", "void"])
)
def test_a_session_cut_anywhere_goes_on_to_one_outcome_per_task(
    world: World, where: float, boot_id: str, verdict: events.Verdict
) -> None:
    whole = Drive(world.spec, SimulatedExecutor(world.fate_of), world.planned).run()
    kept = whole.entries[: int(where * len(whole.entries))]
    state, watch = begin(world.spec), Watch(world.spec)
    for entry in kept:
        apply(state, entry)
        watch(state, entry)
    start_at = kept[-1].mono if kept and boot_id == "b1" else 3.0
    happened = {id(entry.event) for entry in kept}
    planned = [plan for plan in world.planned if id(plan[1]) not in happened]
    rest = Drive(world.spec, SimulatedExecutor(world.fate_of, start_at=start_at), planned, watch, state)
    rest.record(events.SupervisorStarted(1, 1, 1, boot_id, "n", "0"))
    for key in list(watch.running.values()):
        rest.record(events.JobLost(key, verdict, "the machine went down", counts=verdict != "void"))
    rest.run()
    assert rest.state.ended is not None
    assert set(watch.ended) >= {task.id for task in world.spec.tasks}


def draw_rumours(rng: Random) -> list[Planned]:
    """What other sessions of the user say of the accounts, at any time."""
    told: list[Planned] = []
    for _ in range(rng.choice((0, 0, 3, 8))):
        provider, time = rng.choice(("provider:first", "provider:three")), rng.uniform(0.0, 700.0)
        until_at = EPOCH_S + time + rng.choice((-50.0, 5.0, 300.0))
        told.append((time, events.LimitHeard(provider, rng.choice(EFFECTS), "r", until_at, EPOCH_S, 1, "z")))
    return told


@PROFILE
@given(worlds(), st.integers(0, 2**32))
def test_promises_hold_under_limits_and_budgets(world: World, seed: int) -> None:
    rng = Random(seed)
    budgets: dict[str, Any] = {
        name: rng.choice((None, 1.0, 3.0)) for name in ("budget_usd", "soft_budget_usd", "task_budget_usd")
    }
    spec = replace(world.spec, limits=replace(world.spec.limits, **budgets), auto_release=rng.random() < 0.8)
    executor, watch = SimulatedExecutor(world.fate_of), Watch(spec)

    def judged(ended: Exit) -> events.JobFinished:
        resets_at = rng.choice((None, EPOCH_S + executor.clock() + rng.choice((0.5, 900.0))))
        usage = Usage(10, rng.choice((0, 10)), rng.choice((None, 0.3, 0.9)), cost_source="agent")
        ran = ended.key.phase == "work" and ended.wait_status is not None
        return replace(judge(ended), resets_at=resets_at, usage=usage if ran else None, conversation="c")

    def look(state: State, entry: events.Entry) -> None:
        watch(state, entry)
        project(state)

    # what is held, for a limit or a soft budget, is released again and again
    released = [(1e4 * number, events.RequestReceived(f"z{number}", "release")) for number in range(1, 31)]
    planned = [*world.planned, *draw_rumours(rng), *released]
    state = Drive(spec, executor, planned, look, judged=judged).run().state
    assert state.free == state.spec.resources
    assert (state.running_jobs, state.money.reserved, state.money.working) == (0, 0, 0)


def refold(spec: SessionSpec, entries: list[events.Entry]) -> tuple[list[list[Order]], Any]:
    """What would be decided after each entry, and the status at the end without its wall times."""
    state, decided = begin(spec), []
    for entry in entries:
        apply(state, entry)
        decided.append([*decide(state, entry.mono)])
    return decided, without_times(project(state))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if not key.endswith("_at")}
    return [without_times(one) for one in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.slow
@PROFILE
@given(worlds(), st.lists(st.sampled_from([0.0, 0.0, -3600.0, 3600.0, -40 * YEAR_S, 86400.0]), min_size=1))
def test_a_jump_of_the_wall_clock_decides_nothing(world: World, jumps: list[float]) -> None:
    drive = Drive(world.spec, SimulatedExecutor(world.fate_of), world.planned).run()
    offset, moved = 0.0, []
    for number, entry in enumerate(drive.entries):
        offset = max(-50 * YEAR_S, min(offset + jumps[number % len(jumps)], 1000 * YEAR_S))
        moved.append(replace(entry, at=entry.at + offset))
    assert refold(world.spec, moved) == refold(world.spec, drive.entries)
