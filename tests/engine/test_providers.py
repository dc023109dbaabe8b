"""What a provider's limit means for the tasks that met it, for those that did not, and for their retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from simulated import Fate, SimulatedExecutor
from simulation import EPOCH_S, Drive, Planned, judge, make_session

from sessionrun.engine.fold import apply
from sessionrun.engine.providers import CANARY_S, LIMIT_FIRST_S, MARGIN_S, MAX_BACKOFFS, SPREAD_S
from sessionrun.engine.state import State
from sessionrun.model.events import (
    AgentChanged,
    Entry,
    JobClaimed,
    JobFinished,
    RequestReceived,
    SupervisorStarted,
)
from sessionrun.model.spec import Alternative, Job, TaskSpec, Workspace
from sessionrun.model.usage import Usage
from sessionrun.session.executor import Exit
from sessionrun.session.history import begin
from sessionrun.session.prompt import word_prompt

LIMIT = Fate("exits", 1.0, 75 << 8)
BUSY = Fate("exits", 1.0, 76 << 8)
CRASH = Fate("exits", 1.0, 77 << 8)
LOST = Fate("exits", 1.0, 79 << 8)
GOOD = Fate("exits", 1.0)
TREE = Workspace("worktree")


def task(name: str, agent: str = "one", **fields: object) -> TaskSpec:
    """A task whose prompt does not matter."""
    return TaskSpec(name, ("x",), agent=agent, **fields)  # type: ignore[arg-type]


def play(
    tasks: list[TaskSpec],
    fates: Mapping[str, Fate] | Callable[[Job], Fate],
    planned: Sequence[Planned] = (),
    *,
    resets_in_s: float | None = None,
    ends: Mapping[str, str] | None = None,
    slots: int | None = None,
) -> Drive:
    """Run a session; `fates` by key text, else every job is good.  Tasks succeed, but for those in `ends`."""

    def script(job: Job) -> Fate:
        return fates(job) if callable(fates) else fates.get(job.key.text(), GOOD)

    executor = SimulatedExecutor(script)

    def judged(ended: Exit) -> JobFinished:
        verdict = judge(ended)
        if resets_in_s is None or verdict.reason_class != "usage_limit":
            return verdict
        return replace(verdict, resets_at=EPOCH_S + executor.clock() + resets_in_s)

    spec = make_session(tasks, resources={"slot": slots} if slots else {})
    drive = Drive(spec, executor, planned, judged=judged).run()
    assert drive.outcomes == {one.id: "succeeded" for one in tasks} | dict(ends or {})
    return drive


def tell_starts(*given: Any, **options: Any) -> dict[str, float]:
    """When each job was claimed of a session as in `play`."""
    return play(*given, **options).claims()


def test_one_limit_holds_the_provider_until_it_resets_and_no_other() -> None:
    tasks = [task("a"), task("b", agent="two"), task("c", agent="three"), task("d", agent="three")]
    drive = play(tasks, {"a/1/1/work/1": LIMIT}, resets_in_s=1000.0, slots=1)
    began = drive.claims()
    assert began["a/1/1/work/1"] == 0.0
    assert (began["c/1/1/work/1"], began["d/1/1/work/1"]) == (1.0, 2.0), "the slot was not given back"
    assert began["a/1/1/work/2"] == pytest.approx(1001.0 + MARGIN_S)
    assert began["b/1/1/work/1"] > began["a/1/1/work/2"], "not after the canary"
    assert all(one.attempt == 1 and one.retried == 0 for one in drive.state.tasks.values())


def test_a_canary_goes_first_and_the_others_are_spread() -> None:
    tasks = [task(f"t{number}") for number in range(20)]
    starts = tell_starts(tasks, {f"t{number}/1/1/work/1": LIMIT for number in range(20)}, resets_in_s=100.0)
    began = sorted(mono for key, mono in starts.items() if key.endswith("/2"))
    first, second = began[:2]
    assert first == pytest.approx(101.0 + MARGIN_S)
    assert second >= first + 1.0, "before the canary had ended"
    assert len(set(began[1:])) == 19
    assert began[-1] <= first + 1.0 + SPREAD_S


def test_a_canary_that_works_for_a_while_is_enough() -> None:
    fates = {"a/1/1/work/1": LIMIT, "a/1/1/work/2": Fate("exits", 5000.0), "b/1/1/work/1": LIMIT}
    began = tell_starts([task("a"), task("b")], fates, slots=2)
    assert 0 <= began["b/1/1/work/2"] - began["a/1/1/work/2"] - CANARY_S <= SPREAD_S


@pytest.mark.parametrize(
    ("fate", "resets_in_s", "waits"),
    [
        (LIMIT, None, [LIMIT_FIRST_S, 2 * LIMIT_FIRST_S, 4 * LIMIT_FIRST_S]),
        (LIMIT, 1.0, [1.0 + MARGIN_S, 15.0, 30.0]),  # who says in a second is asked less and less
        (BUSY, None, [15.0, 30.0, 60.0]),
    ],
    ids=["unknown end", "in a second", "no capacity"],
)
def test_what_lasts_is_tried_later_and_later_by_one_task_alone(
    fate: Fate, resets_in_s: float | None, waits: list[float]
) -> None:
    def script(job: Job) -> Fate:
        return fate if job.key.start <= 3 else GOOD

    began = tell_starts([task("a"), task("b")], script, resets_in_s=resets_in_s)
    starts = [began[f"a/1/1/work/{start}"] for start in (1, 2, 3, 4)]
    assert [after - before - 1.0 for before, after in pairwise(starts)] == pytest.approx(waits)


def test_a_lack_of_capacity_is_waited_out_a_few_times() -> None:
    drive = play([task("a")], lambda job: BUSY, ends={"a": "failed"})
    assert (len(drive.claims()), drive.state.tasks["a"].reason_class) == (MAX_BACKOFFS + 1, "rate_limited")


def test_another_agent_takes_over_at_once_also_for_those_that_wait() -> None:
    more = (Alternative("two"), Alternative("three", "m3"))
    drive = play([task("a", fallback=more), task("b", fallback=more)], {"a/1/1/work/1": LIMIT}, slots=1)
    state = drive.state
    assert (state.tasks["a"].agent, state.tasks["a"].asked_model) == ("three", "m3")
    assert (state.tasks["b"].agent, state.tasks["b"].attempt) == ("three", 1)
    assert max(drive.claims().values()) < 10.0
    changed = [entry.event for entry in drive.entries if isinstance(entry.event, AgentChanged)]
    assert all(event.reason == "usage_limit: 75" for event in changed) and changed


def test_who_has_to_wait_for_the_other_agent_too_gives_its_slot_back() -> None:
    tasks = [task("a", agent="three"), task("b", fallback=(Alternative("three"),)), task("c", agent="shell")]
    fates = {"a/1/1/work/1": LIMIT, "b/1/1/work/1": LIMIT, "c/1/1/work/1": Fate("exits", 5.0)}
    began = tell_starts(tasks, fates, resets_in_s=500.0, slots=1)
    assert began["c/1/1/work/1"] == 2.0
    assert began["b/1/1/work/2"] > 500.0


def test_another_agent_takes_over_only_for_the_classes_that_were_named() -> None:
    fates = {f"{name}/1/1/work/1": Fate("exits", 1.0, 78 << 8) for name in "ab"}
    more = (Alternative("three"),)
    tasks = [task("a", fallback=more), task("b", fallback=more, fallback_on=("usage_limit",))]
    play(tasks, fates, ends={"b": "failed"})


@pytest.mark.parametrize(("fate", "at"), [(LIMIT, 10.0), (CRASH, 2.5)])
def test_who_waits_can_be_cancelled_and_is_released_at_once(fate: Fate, at: float) -> None:
    cancel: list[Planned] = [(at, RequestReceived("r", "cancel"))]
    tasks, ends = [task("a", workspace=TREE, retries=1), task("b")], {"a": "cancelled"}
    began = tell_starts(tasks, {"a/1/1/work/1": fate}, cancel, resets_in_s=1000.0, ends=ends)
    assert began["a/1/1/release/1"] == at


def test_a_canary_that_is_cancelled_lets_the_next_one_go() -> None:
    fates = {f"{name}/1/1/work/1": LIMIT for name in "abc"} | {"a/1/1/work/2": Fate("exits", 50.0)}
    cancel: list[Planned] = [(110.0, RequestReceived("r", "cancel", ("a",)))]
    began = tell_starts([*map(task, "abc")], fates, cancel, resets_in_s=100.0, ends={"a": "cancelled"})
    assert began["b/1/1/work/2"] == 110.0
    assert began["c/1/1/work/2"] >= 111.0


def test_a_canary_that_is_held_lets_the_next_one_go() -> None:
    tasks = [
        task("a"),
        task("b", setup=("true",), needs=("z",)),
        task("c", needs=("z",)),
        task("z", agent="three"),
    ]
    fates = {"a/1/1/work/1": LIMIT, "z/1/1/work/1": Fate("exits", 105.0), "b/1/1/setup/1": Fate("exits", 50.0)}
    asked: list[Planned] = [
        (10.0, RequestReceived("r1", "cancel", ("a",))),
        (120.0, RequestReceived("r2", "hold", ("b",))),
        (900.0, RequestReceived("r3", "release", ("b",))),
    ]
    began = tell_starts(tasks, fates, asked, resets_in_s=100.0, ends={"a": "cancelled"})
    assert began["b/1/1/setup/1"] == 105.0, "it was not the canary"
    assert (began["c/1/1/work/1"], began["b/1/1/work/1"]) == (120.0, 900.0)


def test_a_canary_that_takes_another_agent_lets_the_others_go() -> None:
    other = task("a", fallback=(Alternative("three"),), fallback_on=("start_failed",))
    limited = {f"{name}/1/1/work/1": LIMIT for name in "abc"}
    play([other, task("b"), task("c")], {**limited, "a/1/1/work/2": Fate("unstartable")}, resets_in_s=100.0)


def test_who_came_while_one_tried_takes_another_agent_when_that_meets_the_limit_again() -> None:
    tasks = [task("a"), task("b", fallback=(Alternative("three"),), needs=("z",)), task("z", agent="three")]
    fates = {
        "a/1/1/work/1": LIMIT,
        "a/1/1/work/2": Fate("exits", 20.0, 75 << 8),
        "z/1/1/work/1": Fate("exits", 110.0),
    }
    began = tell_starts(tasks, fates, resets_in_s=100.0)
    assert began["b/1/1/work/1"] == pytest.approx(101.0 + MARGIN_S + 20.0)


def test_nothing_of_a_held_provider_is_even_prepared() -> None:
    tasks = [task("a"), task("b", workspace=TREE, setup=("true",))]
    began = tell_starts(tasks, {"a/1/1/work/1": LIMIT}, resets_in_s=500.0, slots=1)
    assert began["b/1/1/prepare/1"] > 500.0


def test_a_hold_outlives_a_restart_of_the_machine() -> None:
    drive = play([task("a")], {"a/1/1/work/1": LIMIT}, resets_in_s=1000.0)
    state = begin(drive.state.spec)
    for entry in drive.entries:
        if entry.mono <= 1.0:
            apply(state, entry)
    apply(state, Entry(state.seq + 1, EPOCH_S + 401.0, 7.0, SupervisorStarted(2, 1, 1, "b2", "n", "0")))
    until = state.holds["provider:first"].until
    assert until == pytest.approx(7.0 + 600.0 + MARGIN_S)


def test_a_crash_goes_on_with_its_conversation_where_a_retry_is_left() -> None:
    drive = play([task("a", retries=1, workspace=TREE)], {"a/1/1/work/1": CRASH})
    jobs = ["a/1/1/prepare/1", "a/1/1/work/1", "a/1/1/work/2", "a/1/1/release/1"]
    assert (list(drive.claims()), drive.state.tasks["a"].retried) == (jobs, 1)
    # an agent that cannot go on with a conversation begins anew, and so does everyone without a retry left
    began = tell_starts([task("a", agent="three", retries=1)], {"a/1/1/work/1": CRASH})
    assert list(began) == ["a/1/1/work/1", "a/2/1/work/1"]
    play([task("a")], {"a/1/1/work/1": CRASH}, ends={"a": "failed"})


def test_a_provider_has_a_capacity() -> None:
    spec = make_session([task(f"t{number}") for number in range(6)], resources={"provider:first": 2})
    drive = Drive(spec, SimulatedExecutor(lambda job: GOOD)).run()
    assert sorted(drive.claims().values()) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_an_unanswered_conversation_is_not_gone_on_with() -> None:
    spec = make_session([task("a"), task("b")])
    threads = {}

    def look(job: Job) -> Fate:
        threads[job.key.text()] = holder[0].tasks[job.key.task].thread.conversation
        return LIMIT if job.key.start == 1 else GOOD

    holder: list[State] = []

    def judged(ended: Exit) -> JobFinished:
        used = Usage(5, 7) if ended.key.task == "b" else None
        return replace(judge(ended), usage=used)

    drive = Drive(spec, SimulatedExecutor(look), judged=judged)
    holder.append(drive.state)
    drive.run()
    assert (threads["a/1/1/work/2"], threads["b/1/1/work/2"]) == (None, "c1")


def test_a_conversation_that_is_not_there_is_begun_anew_without_a_retry() -> None:
    drive = play([task("a", retries=1)], {"a/1/1/work/1": CRASH, "a/1/1/work/2": LOST})
    began = drive.claims()
    assert list(began) == ["a/1/1/work/1", "a/1/1/work/2", "a/1/1/work/3"]
    assert began["a/1/1/work/3"] - began["a/1/1/work/2"] == 1.0, "it did not go on at once"
    assert drive.state.tasks["a"].retried == 1
    state = begin(drive.state.spec)
    for entry in drive.entries:
        if isinstance(entry.event, JobClaimed) and entry.event.key.start == 3:
            break
        apply(state, entry)
    left = state.tasks["a"].thread
    assert (left.conversation, left.broken_off) == (None, "agent_crashed: 77"), "what broke it off was forgotten"


def test_who_began_no_conversation_cannot_lose_one() -> None:
    lost = {"a/1/1/work/2": LOST, "a/1/1/work/3": LOST}
    drive = play([task("a", retries=1)], {"a/1/1/work/1": CRASH, **lost}, ends={"a": "failed"})
    assert (len(drive.claims()), drive.state.tasks["a"].reason_class) == (3, "no_conversation")
    assert len(tell_starts([task("a")], {"a/1/1/work/1": LOST}, ends={"a": "failed"})) == 1


def test_a_turn_that_met_a_limit_is_asked_again() -> None:
    """In the conversation of those before; after another attempt's start all turns come again."""
    spec = make_session([TaskSpec("a", ("x", "y", "z"), "continue", agent="one", retries=1)])
    fates = {"a/1/1/work/2": LIMIT, "a/1/1/work/4": Fate("exits", 1.0, 78 << 8)}
    seen: dict[str, tuple[int, str | None, bytes]] = {}
    states: list[State] = []

    def look(job: Job) -> Fate:
        one = states[0].tasks["a"]
        agent = spec.agents["one"]
        told = word_prompt(spec, one, agent, prompt="", red_check=None, conversation=one.thread.conversation)
        seen[job.key.text()] = (one.thread.turn, one.thread.conversation, told)
        return fates.get(job.key.text(), GOOD)

    def judged(ended: Exit) -> JobFinished:
        verdict = judge(ended)
        return replace(verdict, conversation="c1") if verdict.verdict == "passed" else verdict

    drive = Drive(spec, SimulatedExecutor(look), judged=judged)
    states.append(drive.state)
    assert drive.run().state.tasks["a"].outcome == "succeeded"
    assert seen["a/1/1/work/1"] == (1, None, b"x")
    assert seen["a/1/1/work/2"] == (2, "c1", b"y")
    turn, thread, told = seen["a/1/1/work/3"]
    assert (turn, thread, told.endswith(b"You were asked:\n\ny")) == (2, "c1", True)
    assert seen["a/1/1/work/4"] == (3, "c1", b"z")
    assert seen["a/2/1/work/1"][:2] == (1, None)
