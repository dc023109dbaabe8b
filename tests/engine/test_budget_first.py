"""A budget without task budgets: the first job of each agent and model runs alone until its cost is known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from conftest import Command, eventually
from hypothesis import given
from hypothesis import strategies as st
from simulated import Fate, FateKind
from simulation import Drive
from test_budget import PROFILE, Paid, World, make, paid, run_world, task

from sessionrun.engine.money import to_nano
from sessionrun.engine.state import BUDGET
from sessionrun.model.events import Event, JobClaimed, JobFinished, RequestReceived
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec, Workspace
from sessionrun.model.usage import Usage

__all__ = ["paid"]
AGENTS = {
    "ai": AgentSpec(name="ai", argv=("ai",), output="claude"),
    "other": AgentSpec(name="other", argv=("ai",), output="claude"),
    "text": AgentSpec(name="text", argv=("ai",)),
    "shell": AgentSpec(name="shell", argv=("sh",), prompt_kind="script"),
}


class Fates(dict[str, Fate]):
    """The fates of jobs; a provider's limit is met once."""

    def get(self, key: str, default: Any = None) -> Any:
        """The fate of the next such job."""
        fate = super().get(key, default)
        if fate.wait_status >> 8 in (75, 76):
            self.pop(key, None)
        return fate


class Told(Paid):
    """As `Paid`; a task without a cost tells tokens where `tokens` says so."""

    tokens = False

    def record(self, event: Event) -> None:
        """Put the tokens in."""
        if self.tokens and isinstance(event, JobFinished) and event.key.phase == "work":
            Drive.record(self, replace(event, usage=Usage(10, 10)))
        else:
            super().record(event)


def among(*tasks: TaskSpec, **limits: Any) -> SessionSpec:
    return replace(make(*tasks, **limits), agents=AGENTS)


def works(drive: Drive) -> dict[str, float]:
    """When the first WORK of each task was claimed."""
    times: dict[str, float] = {}
    for entry in drive.entries:
        if isinstance(entry.event, JobClaimed) and entry.event.key.phase == "work":
            times.setdefault(entry.event.key.task, entry.mono)
    return times


def test_the_others_wait_for_the_first_and_start_together() -> None:
    tasks = [task(f"t{num}") for num in range(4)]
    drive = Paid(among(*tasks, budget_usd=10.0), {}).run()
    assert works(drive) == {"t0": 0.0, "t1": 1.0, "t2": 1.0, "t3": 1.0}
    waiting = next(view for view in drive.shown if view["tasks"][0]["phase"] == "running")
    why = "budget: one job of ai runs alone until its cost is known (with a task budget all may start)"
    assert [one["reason"] for one in waiting["tasks"]] == [None, *[f"held: {why}"] * 3]


def test_no_more_is_spent_than_the_budget_or_the_first_job() -> None:
    tasks = [task(f"t{num}") for num in range(9)]
    for budget, ran in ((4.5, 4), (0.5, 1)):
        drive = Paid(among(*tasks, budget_usd=budget), {}).run()
        assert drive.state.money.spent == to_nano(ran)
        assert list(drive.ends.values()) == [("succeeded", None)] * ran + [("skipped", BUDGET)] * (9 - ran)


def test_each_agent_and_each_model_has_its_own_first() -> None:
    tasks = [
        task("a"),
        task("b"),
        task("m", model="m"),
        task("n", model="m"),
        task("o", "other"),
        task("s", "shell"),
    ]
    drive = Paid(among(*tasks, budget_usd=10.0), {}, {"o/work": Fate(duration_s=5.0)}).run()
    assert works(drive) == {"a": 0.0, "b": 1.0, "m": 0.0, "n": 1.0, "o": 0.0, "s": 0.0}


def test_a_task_with_a_budget_waits_for_nobody() -> None:
    tasks = [task("a"), task("b"), task("own", budget_usd=1.0)]
    drive = Paid(among(*tasks, budget_usd=10.0), {}).run()
    assert works(drive) == {"a": 0.0, "b": 1.0, "own": 0.0}


def test_without_a_hard_budget_nothing_waits() -> None:
    drive = Paid(among(task("a"), task("b"), soft_budget_usd=9.0), {}).run()
    assert works(drive) == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize("agent", ["text", "shell"])
def test_what_is_never_told_is_not_waited_for(agent: str) -> None:
    drive = Paid(among(*(task(f"t{num}", agent) for num in range(3)), budget_usd=1.0), {}).run()
    assert set(works(drive).values()) == {0.0}


def test_tokens_without_a_price_are_waited_for_once() -> None:
    drive = Told(among(*(task(f"t{num}") for num in range(4)), budget_usd=1.0), {})
    drive.tokens = True
    assert sorted(works(drive.run()).values()) == [0.0, 1.0, 1.0, 1.0]


def test_silence_is_waited_for_three_times() -> None:
    costs = dict.fromkeys((f"t{num}" for num in range(6)), None)
    drive = Paid(among(*(task(name) for name in costs), budget_usd=1.0), costs).run()
    assert sorted(works(drive).values()) == [0.0, 1.0, 2.0, 3.0, 3.0, 3.0]


ENDS: list[tuple[Fate, dict[str, Any], list[tuple[float, Event]], float]] = [
    (Fate(wait_status=256, duration_s=1.0), {"retries": 2}, [], 1.0),  # its cost is known although it failed
    (Fate("lost", duration_s=1.0), {}, [], 1.0),
    (Fate("void"), {}, [], 0.0),
    (Fate("unstartable"), {}, [], 0.0),
    (Fate(wait_status=75 << 8, duration_s=1.0), {}, [], 30.0),  # its provider's limit holds all
    (Fate(duration_s=9.0), {}, [(2.0, RequestReceived("c", "cancel", ("t0",)))], 2.0),
]


@pytest.mark.parametrize(("fate", "fields", "planned", "second"), ENDS)
def test_whatever_becomes_of_the_first(
    fate: Fate, fields: dict[str, Any], planned: list[tuple[float, Event]], second: float
) -> None:
    """It is over, so another one may be the first; and when one has told its cost, all others start."""
    tasks = [task("t0", **fields), *(task(f"t{num}") for num in range(1, 4))]
    drive = Paid(
        among(*tasks, budget_usd=20.0),
        {"t0": None} if fate.kind == "lost" else {},
        Fates({"t0/work": fate}),
        planned,
    )
    times = works(drive.run())
    assert drive.state.ended is not None
    assert min(times[name] for name in ("t1", "t2", "t3")) >= second
    assert all(drive.ends[name] == ("succeeded", None) for name in ("t1", "t2", "t3"))


KINDS: tuple[FateKind, ...] = ("exits", "exits", "exits", "lost", "void", "unstartable")
PRICES = {"ai": 1.0, "ai/m": 2.5, "other": 0.25}


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Tasks without budgets; each job of an agent and model costs the same, where it tells."""
    tasks, costs, fates = [], {}, Fates()
    for num in range(draw(st.integers(1, 9))):
        name, agent = f"t{num}", draw(st.sampled_from(["ai", "ai", "other", "text", "shell"]))
        model = draw(st.sampled_from([None, "m"])) if agent == "ai" else None
        tasks.append(
            task(
                name,
                agent,
                model=model,
                retries=draw(st.integers(0, 1)),
                workspace=Workspace(draw(st.sampled_from(["none", "worktree"]))),
                needs=tuple(f"t{draw(st.integers(0, num - 1))}" for _ in range(min(num, draw(st.integers(0, 1))))),
            )
        )
        price = PRICES.get(f"{agent}/{model}" if model else agent)
        costs[name] = draw(st.sampled_from([price, price, None]))
        status = draw(st.sampled_from([0, 0, 256, 75 << 8, 76 << 8]))
        fates[f"{name}/work"] = Fate(draw(st.sampled_from(KINDS)), float(draw(st.integers(0, 4))), status)
    spec = among(*tasks, slots=draw(st.sampled_from([None, 1, 2, 3])), budget_usd=draw(st.integers(1, 20)) / 2)
    kinds: st.SearchStrategy[Any] = st.sampled_from(["cancel", "retry", "hold", "release"])
    chosen = st.sampled_from([(), ("t0",)])
    planned: list[tuple[float, Event]] = [
        (float(draw(st.integers(0, 9))), RequestReceived(f"r{number}", draw(kinds), draw(chosen)))
        for number in range(draw(st.integers(0, 3)))
    ]
    return spec, costs, fates, [*planned, (5000.0, RequestReceived("last", "release"))]


@PROFILE
@given(worlds())
def test_every_session_ends_and_is_overspent_by_first_jobs_alone(world: World) -> None:
    spec, costs, *_ = world
    drive = run_world(world)
    money = drive.state.money
    firsts = sum(to_nano(PRICES.get(name.removeprefix("budget "), 0.0)) for name in money.rates)
    if None not in costs.values():
        assert money.known <= to_nano(spec.limits.budget_usd or 0.0) + firsts
    working: dict[str, int] = {}
    known: set[str] = set()
    for entry in drive.entries:
        event = entry.event
        if isinstance(event, JobClaimed) and event.key.phase == "work":
            kind = kind_of(spec, event.key.task)
            assert kind is None or kind in known or not working.get(kind), "a second first job"
            working[kind or ""] = working.get(kind or "", 0) + 1
        elif getattr(event, "key", None) and event.key.phase == "work" and hasattr(event, "verdict"):  # type: ignore[union-attr]
            kind = kind_of(spec, event.key.task) or ""  # type: ignore[union-attr]
            working[kind] -= 1
            known |= {kind} if money_known(drive, kind) else set()


def kind_of(spec: SessionSpec, name: str) -> str | None:
    """The agent and model of a task for which one job runs alone."""
    one = next(one for one in spec.tasks if one.id == name)
    return f"budget {one.agent}/{one.model}".removesuffix("/None") if one.agent in ("ai", "other") else None


def money_known(drive: Drive, kind: str) -> bool:
    """Whether anything may have been learnt of it in the whole run: after its first end it is no longer alone."""
    rate = drive.state.money.rates.get(kind)
    return rate is not None and (rate.known_jobs > 0 or rate.silent >= 3)


# --- the command


def test_the_command_says_why_tasks_wait(paid: Command) -> None:
    tasks = [{"id": name, "prompt": "wait\n" if name == "a" else "x\n", "agent": "ai"} for name in "abc"]
    done = paid("-q", "--budget", "1", stdin=json.dumps(tasks))
    assert done.stderr == ""
    session_id = done.stdout.strip()
    eventually((paid.cwd / "argv").exists)
    view = paid.until(session_id, lambda view: view["tasks"][2]["reason_class"] == "held")
    why = "budget: one job of ai runs alone until its cost is known (with a task budget all may start)"
    assert [one["reason"] for one in view["tasks"][1:]] == [f"held: {why}"] * 2
    told = paid.load("explain", session_id, "c")["tasks"][0]
    assert (told["cause"], told["why"], told["budget"], told["tokens"]) == ("budget", why, why, [])
    (paid.cwd / "go").touch()
    assert paid.wait(session_id)["outcome"] == "succeeded"
