"""What a plan will take, by what tasks like its own took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from conftest import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import make_session

from sessionrun.client.planning.forecast import Forecast, Likeness, Past, forecast, load_past
from sessionrun.model.spec import SLOT, AgentSpec, SessionSpec, TaskSpec

AGENTS = {"shell": AgentSpec("shell", ("sh",), prompt_kind="script"), "claude": AgentSpec("claude", ("claude",))}


def make_plan(*tasks: TaskSpec, slots: int | None = None) -> SessionSpec:
    resources = {} if slots is None else {SLOT: slots}
    return replace(make_session(tasks), agents=AGENTS, resources=resources)


def ask(name: str, *needs: str, model: str | None = None) -> TaskSpec:
    return TaskSpec(name, ("do it",), agent="claude", model=model, needs=needs)


def look(spec: SessionSpec, past: Mapping[Likeness, Sequence[Past]]) -> Forecast:
    found = forecast(spec, past)
    assert found is not None
    return found


ALIKE = {("claude", ""): [Past(10.0, 0.5)] * 4}


@pytest.mark.parametrize(
    ("tasks", "slots", "seconds"),
    [
        ([ask("a")], None, 10),
        ([ask("a"), ask("b"), ask("c")], None, 10),
        ([ask("a"), ask("b"), ask("c")], 1, 30),
        ([ask("a"), ask("b"), ask("c")], 2, 20),
        ([ask("a"), ask("b", "a"), ask("c", "b")], 8, 30),
        ([ask("a"), ask("b", "a"), ask("c", "a"), ask("d", "b", "c")], 2, 30),
    ],
)
def test_slots_and_needs_say_how_long_it_takes(tasks: list[TaskSpec], slots: int | None, seconds: float) -> None:
    found = look(make_plan(*tasks, slots=slots), ALIKE)
    assert set(found.seconds) == {seconds}
    assert found.cost_usd is not None and set(found.cost_usd) == {0.5 * len(tasks)}
    assert found.like == 4


def test_only_tasks_like_these_count() -> None:
    past = {
        ("claude", "opus"): [Past(100.0, None)] * 3,
        ("claude", ""): [Past(10.0, 1.0)] * 9,
        ("shell", "make"): [Past(1.0, None)] * 3,
        ("shell", "make test"): [Past(5.0, None)] * 2,
    }
    opus = look(make_plan(ask("a", model="opus")), past)
    assert (opus.seconds.middle, opus.cost_usd, opus.like) == (100.0, None, 3)
    assert look(make_plan(ask("a")), past).seconds.middle == 10.0
    assert look(make_plan(TaskSpec("a", ("make",))), past).seconds.middle == 1.0
    for unknown in (ask("a", model="sonnet"), TaskSpec("a", ("make test",)), TaskSpec("a", ("make all",))):
        assert forecast(make_plan(unknown), past) is None
        assert forecast(make_plan(ask("b"), unknown), past) is None
    assert forecast(make_plan(), past) is None


@settings(max_examples=30)
@given(
    st.lists(st.builds(Past, st.floats(0, 1e6), st.none() | st.floats(0, 100)), min_size=3, max_size=20),
    st.integers(1, 30),
    st.integers(1, 5),
)
def test_the_interval_holds_its_middle(pool: list[Past], size: int, slots: int) -> None:
    plan = make_plan(*(ask(f"t{n}") for n in range(size)), slots=slots)
    found = look(plan, {("claude", ""): pool})
    low, middle, high = found.seconds
    assert low <= middle <= high <= size * max(past.seconds for past in pool) + 0.001
    assert low >= min(past.seconds for past in pool) - 0.001
    assert found == look(plan, {("claude", ""): pool}), "the same plan gets the same forecast"


def test_a_dry_run_says_what_earlier_sessions_took(sessionrun: Command) -> None:
    words = ("--dry-run", "--agent", "shell", "-p", "sleep 0.2")
    assert "Forecast" not in sessionrun(*words).stdout
    for _ in range(2):
        sessionrun.wait(sessionrun.start({"prompts": ["sleep 0.2"] * 2 + ["exit 3"]}))
    past = load_past("prompts", sessionrun.results)
    assert [len(past["shell", title]) for title in ("sleep 0.2", "exit 3")] == [4, 2]
    assert load_past("swebench", sessionrun.results) == load_past("prompts", sessionrun.cwd / "other") == {}
    line = next(line for line in sessionrun(*words).stdout.splitlines() if line.startswith("Forecast: "))
    assert line.endswith(", from 4 tasks like these") and "$" not in line
    record = sessionrun.load(*words)["forecast"]
    assert 0 < record["seconds"]["low"] <= record["seconds"]["high"]
    assert (record["cost_usd"], record["like"]) == (None, 4)
    assert sessionrun.load("--dry-run", "--agent", "shell", "-p", "true")["forecast"] is None
