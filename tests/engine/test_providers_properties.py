"""Limits, crashes, other agents, budgets and requests in any order: every task ends, and no token is lost."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from simulated import Fate, SimulatedExecutor
from simulation import EPOCH_S, Drive, Planned, judge, make_session

from sessionrun.engine.fold import apply
from sessionrun.engine.state import State
from sessionrun.engine.status import project
from sessionrun.model.events import Entry, JobFinished, LimitHeard, RequestReceived
from sessionrun.model.reasons import Effect
from sessionrun.model.spec import Alternative, Check, Job, Limits, SessionSpec, TaskSpec, Workspace
from sessionrun.model.usage import Usage
from sessionrun.session.executor import Exit
from sessionrun.session.history import begin

AGENTS = ("one", "two", "three", "shell")
KINDS: tuple[Literal["hold", "release", "cancel", "retry"], ...] = ("hold", "hold", "release", "cancel", "retry")
EFFECTS: tuple[Effect, ...] = ("limit", "backoff")
GOOD = Fate("exits", 1.0)
SAID = [Fate("exits", seconds, code << 8) for seconds in (1.0, 70.0) for code in (75, 76, 77, 78)]
"""What only an agent says: see `simulation.CLASSES`."""

FATES = [
    GOOD,
    GOOD,
    Fate("exits", 40.0),
    *(Fate(kind) for kind in ("lost", "void", "refused", "unstartable")),
    *SAID,
]
MOST_FATES = 300
"""After so many jobs all is good: who may always fail may never end."""


def draw_task(rng: Random, name: str, before: list[str]) -> TaskSpec:
    return TaskSpec(
        name,
        ("x",),
        agent=rng.choice(AGENTS),
        retries=rng.choice((0, 0, 2)),
        fallback=tuple(Alternative(rng.choice(AGENTS)) for _ in range(rng.choice((0, 0, 1, 2)))),
        fallback_on=rng.choice(((), ("start_failed",), ("auth", "agent_crashed"))),
        workspace=Workspace(rng.choice(("none", "worktree"))),
        setup=rng.choice(((), ("x",))),
        check=rng.choice((None, Check(("c",)))),
        rounds=rng.choice((1, 2)),
        needs=tuple(one for one in before if rng.random() < 0.15),
        timeout_s=rng.choice((None, 30.0)),
        idle_timeout_s=rng.choice((None, 5.0)),
    )


def draw_session(rng: Random) -> SessionSpec:
    names = [f"t{number}" for number in range(rng.randint(1, 7))]
    tasks = [draw_task(rng, name, names[:number]) for number, name in enumerate(names)]
    resources = rng.choice(({}, {"slot": 1}, {"slot": 2, "provider:first": 1}))
    limits = Limits(None, rng.choice((None, 3.0)), rng.choice((None, 2.0)), rng.choice((None, 1.0)))
    return replace(make_session(tasks, resources=resources, auto_release=rng.random() < 0.8), limits=limits)


def draw_rumours(rng: Random) -> list[Planned]:
    """What other sessions of the user say of the accounts, at any time."""
    told: list[Planned] = []
    for _ in range(rng.choice((0, 0, 3, 8))):
        provider, time = rng.choice(("provider:first", "provider:three")), rng.uniform(0.0, 700.0)
        until_at = EPOCH_S + time + rng.choice((-50.0, 5.0, 300.0))
        told.append((time, LimitHeard(provider, rng.choice(EFFECTS), "r", until_at, EPOCH_S, session="z")))
    return told


def draw_requests(rng: Random, names: list[str]) -> list[Planned]:
    """Anything at any time; in the end what is held is released, again and again."""
    asked: list[Planned] = []
    for number in range(rng.randint(0, 8)):
        kind = rng.choice(KINDS)
        tasks = (rng.choice(names),) if kind == "cancel" or rng.random() < 0.8 else ()
        asked.append((rng.uniform(0.0, 700.0), RequestReceived(f"r{number}", kind, tasks)))
    return asked + [(1e4 * number, RequestReceived(f"z{number}", "release")) for number in range(1, 13)]


@given(st.integers(0, 2**32))
def test_every_task_ends_and_no_token_is_lost(seed: int) -> None:
    rng = Random(seed)
    spec = draw_session(rng)
    replayed, weights, jobs = begin(spec), [rng.choice((0, 1, 3)) + (fate is GOOD) for fate in FATES], [0]

    def script(job: Job) -> Fate:
        jobs[0] += 1
        fate = rng.choices(FATES, weights)[0] if jobs[0] < MOST_FATES else GOOD
        return Fate("exits", 1.0, 1 << 8) if fate in SAID and job.key.phase != "work" else fate

    def judged(ended: Exit) -> JobFinished:
        resets_at = rng.choice((None, EPOCH_S + executor.clock() + rng.choice((0.5, 900.0))))
        usage = Usage(10, rng.choice((0, 10)), rng.choice((None, 0.3, 0.9)), cost_source="agent")
        ran = ended.key.phase == "work" and ended.wait_status is not None
        return replace(judge(ended), resets_at=resets_at, usage=usage if ran else None, conversation="c")

    def watch(state: State, entry: Entry) -> None:
        apply(replayed, entry)
        assert replayed == state
        project(state)

    executor = SimulatedExecutor(script)
    planned = [*draw_requests(rng, [task.id for task in spec.tasks]), *draw_rumours(rng)]
    state = Drive(spec, executor, planned, watch, judged=judged).run().state
    assert state.free == spec.resources
    assert (state.running_jobs, state.money.reserved, state.money.working) == (0, 0, 0)
