"""What a provider's limit means for the tasks that met it, for those that did not, and for their retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from simulated import Fate, SimulatedExecutor
from simulation import EPOCH_S, Drive, Planned, judge, make_session

from sessionrun.engine.fold import apply
from sessionrun.engine.providers import CANARY_S, LIMIT_FIRST_S, MARGIN_S, MAX_BACKOFFS, SPREAD_S
from sessionrun.engine.state import State
from sessionrun.engine.status import project
from sessionrun.model.events import (
    AgentChanged,
    Entry,
    JobClaimed,
    JobFinished,
    RequestReceived,
    SupervisorStarted,
)
from sessionrun.model.spec import Alternative, Job, SessionSpec, TaskSpec, Workspace
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
    spec: SessionSpec,
    fates: Mapping[str, Fate] | Callable[[Job], Fate],
    planned: list[Planned] = (),  # type: ignore[assignment]
    resets_in_s: float | None = None,
) -> Drive:
    """Run a session; `fates` by key text, else every job is good."""

    def script(job: Job) -> Fate:
        return fates(job) if callable(fates) else fates.get(job.key.text(), GOOD)

    executor = SimulatedExecutor(script)

    def judged(ended: Exit) -> JobFinished:
        verdict = judge(ended)
        if resets_in_s is None or verdict.reason_class != "usage_limit":
            return verdict
        return replace(verdict, resets_at=EPOCH_S + executor.clock() + resets_in_s)

    return Drive(spec, executor, planned, judged=judged).run()


def starts(drive: Drive) -> dict[str, float]:
    """When each job was claimed."""
    return {entry.event.key.text(): entry.mono for entry in drive.entries if isinstance(entry.event, JobClaimed)}


def outcomes(drive: Drive) -> dict[str, str | None]:
    """The tasks' outcomes."""
    return {name: task.outcome for name, task in drive.state.tasks.items()}


def test_one_limit_holds_the_provider_until_it_resets_and_no_other() -> None:
    tasks = [task("a"), task("b", agent="two"), task("c", agent="three"), task("d", agent="three")]
    drive = play(make_session(tasks, resources={"slot": 1}), {"a/1/1/work/1": LIMIT}, resets_in_s=1000.0)
    began = starts(drive)
    assert began["a/1/1/work/1"] == 0.0
    assert (began["c/1/1/work/1"], began["d/1/1/work/1"]) == (1.0, 2.0), "the slot was not given back"
    assert began["a/1/1/work/2"] == pytest.approx(1001.0 + MARGIN_S)
    assert began["b/1/1/work/1"] > began["a/1/1/work/2"], "not after the canary"
    assert set(outcomes(drive).values()) == {"succeeded"}
    assert all(one.attempt == 1 and one.retried == 0 for one in drive.state.tasks.values())


def test_those_that_wait_say_until_when_and_why() -> None:
    seen = []

    def look(job: Job) -> Fate:
        if job.key.task == "c":
            seen.append(project(drive_state[0]))
        return LIMIT if job.key.text() == "a/1/1/work/1" else GOOD

    drive_state: list[State] = []
    spec = make_session([task("a"), task("b"), task("c", agent="three", needs=("z",)), task("z", agent="three")])
    spec = replace(spec, resources={"slot": 1})
    executor = SimulatedExecutor(look)
    drive = Drive(spec, executor, judged=lambda end: replace(judge(end), resets_at=EPOCH_S + 600))
    drive_state.append(drive.state)
    drive.run()
    shown = {one["id"]: one for one in seen[0]["tasks"]}
    assert shown["a"]["reason"] == "held: usage_limit: 75"
    assert shown["a"]["held_until"] == shown["b"]["held_until"] == "2023-11-14T22:23:22.000Z"
    assert shown["a"]["reason_class"] == "held"
    assert shown["c"]["held_until"] is None


def test_a_canary_goes_first_and_the_others_are_spread() -> None:
    tasks = [task(f"t{number}") for number in range(20)]
    limited = {f"t{number}/1/1/work/1": LIMIT for number in range(20)}
    drive = play(make_session(tasks), limited, resets_in_s=100.0)
    began = sorted(mono for key, mono in starts(drive).items() if key.endswith("/2"))
    first, second = began[:2]
    assert first == pytest.approx(101.0 + MARGIN_S)
    assert second >= first + 1.0, "before the canary had ended"
    assert len(set(began[1:])) == 19
    assert began[-1] <= first + 1.0 + SPREAD_S
    assert set(outcomes(drive).values()) == {"succeeded"}


def test_a_canary_that_works_for_a_while_is_enough() -> None:
    fates = {"a/1/1/work/1": LIMIT, "a/1/1/work/2": Fate("exits", 5000.0)}
    began = starts(
        play(make_session([task("a"), task("b")], resources={"slot": 2}), {**fates, "b/1/1/work/1": LIMIT})
    )
    assert 0 <= began["b/1/1/work/2"] - began["a/1/1/work/2"] - CANARY_S <= SPREAD_S


def test_an_unknown_end_is_tried_later_and_later_by_one_task_alone() -> None:
    def script(job: Job) -> Fate:
        return LIMIT if job.key.start <= 4 else GOOD

    drive = play(make_session([task("a"), task("b")]), script)
    began = starts(drive)
    waits = [began[f"a/1/1/work/{start + 1}"] - began[f"a/1/1/work/{start}"] - 1.0 for start in (1, 2, 3)]
    assert waits == pytest.approx([LIMIT_FIRST_S, 2 * LIMIT_FIRST_S, 4 * LIMIT_FIRST_S])
    assert set(outcomes(drive).values()) == {"succeeded"}


def test_a_lack_of_capacity_is_waited_out_a_few_times() -> None:
    drive = play(make_session([task("a")]), {"a/1/1/work/1": BUSY, "a/1/1/work/2": BUSY})
    began = starts(drive)
    assert began["a/1/1/work/2"] - 1.0 == pytest.approx(15.0)
    assert began["a/1/1/work/3"] - began["a/1/1/work/2"] - 1.0 == pytest.approx(30.0)
    assert outcomes(drive) == {"a": "succeeded"}
    drive = play(make_session([task("a")]), lambda job: BUSY)
    assert len(starts(drive)) == MAX_BACKOFFS + 1
    assert (outcomes(drive)["a"], drive.state.tasks["a"].reason_class) == ("failed", "rate_limited")


def test_another_agent_takes_over_at_once_also_for_those_that_wait() -> None:
    more = (Alternative("two"), Alternative("three", "m3"))
    drive = play(
        make_session([task("a", fallback=more), task("b", fallback=more)], resources={"slot": 1}),
        {"a/1/1/work/1": LIMIT},
    )
    state = drive.state
    assert (state.tasks["a"].agent, state.tasks["a"].asked_model) == ("three", "m3")
    assert (state.tasks["b"].agent, state.tasks["b"].attempt) == ("three", 1)
    assert set(outcomes(drive).values()) == {"succeeded"}
    assert max(starts(drive).values()) < 10.0
    changed = [entry.event for entry in drive.entries if isinstance(entry.event, AgentChanged)]
    assert all(event.reason == "usage_limit: 75" for event in changed) and changed


def test_who_has_to_wait_for_the_other_agent_too_gives_its_slot_back() -> None:
    tasks = [task("a", agent="three"), task("b", fallback=(Alternative("three"),)), task("c", agent="shell")]
    fates = {"a/1/1/work/1": LIMIT, "b/1/1/work/1": LIMIT, "c/1/1/work/1": Fate("exits", 5.0)}
    drive = play(make_session(tasks, resources={"slot": 1}), fates, resets_in_s=500.0)
    began = starts(drive)
    assert began["c/1/1/work/1"] == 2.0
    assert began["b/1/1/work/2"] > 500.0
    assert set(outcomes(drive).values()) == {"succeeded"}


def test_another_agent_takes_over_only_for_the_classes_that_were_named() -> None:
    fates = {"a/1/1/work/1": Fate("exits", 1.0, 78 << 8), "b/1/1/work/1": Fate("exits", 1.0, 78 << 8)}
    more = (Alternative("three"),)
    tasks = [task("a", fallback=more), task("b", fallback=more, fallback_on=("usage_limit",))]
    drive = play(make_session(tasks), fates)
    assert outcomes(drive) == {"a": "succeeded", "b": "failed"}


def test_without_auto_release_only_a_request_lifts_the_hold() -> None:
    spec = make_session([task("a"), task("b", agent="three")], auto_release=False)
    released: list[Planned] = [(5000.0, RequestReceived("r", "release"))]
    drive = play(spec, {"a/1/1/work/1": LIMIT}, released, resets_in_s=10.0)
    assert starts(drive)["a/1/1/work/2"] == 5000.0
    assert outcomes(drive) == {"a": "succeeded", "b": "succeeded"}


def test_who_waits_can_be_cancelled_and_is_released() -> None:
    spec = make_session([task("a", workspace=TREE), task("b")])
    cancel: list[Planned] = [(10.0, RequestReceived("r", "cancel"))]
    drive = play(spec, {"a/1/1/work/1": LIMIT}, cancel, resets_in_s=1000.0)
    assert outcomes(drive) == {"a": "cancelled", "b": "succeeded"}
    assert starts(drive)["a/1/1/release/1"] == 10.0


def test_a_canary_that_is_cancelled_lets_the_next_one_go() -> None:
    fates = {f"{name}/1/1/work/1": LIMIT for name in "abc"} | {"a/1/1/work/2": Fate("exits", 50.0)}
    cancel: list[Planned] = [(110.0, RequestReceived("r", "cancel", ("a",)))]
    drive = play(make_session([task("a"), task("b"), task("c")]), fates, cancel, resets_in_s=100.0)
    began = starts(drive)
    assert began["b/1/1/work/2"] == 110.0
    assert began["c/1/1/work/2"] >= 111.0
    assert outcomes(drive) == {"a": "cancelled", "b": "succeeded", "c": "succeeded"}


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
    began = starts(play(make_session(tasks), fates, asked, resets_in_s=100.0))
    assert began["b/1/1/setup/1"] == 105.0, "it was not the canary"
    assert (began["c/1/1/work/1"], began["b/1/1/work/1"]) == (120.0, 900.0)


def test_a_canary_that_takes_another_agent_lets_the_others_go() -> None:
    tasks = [task("a", fallback=(Alternative("three"),), fallback_on=("start_failed",)), task("b"), task("c")]
    fates = {"a/1/1/work/1": LIMIT, "b/1/1/work/1": LIMIT, "c/1/1/work/1": LIMIT}
    fates["a/1/1/work/2"] = Fate("unstartable")
    drive = play(make_session(tasks), fates, resets_in_s=100.0)
    assert set(outcomes(drive).values()) == {"succeeded"}


def test_who_came_while_one_tried_takes_another_agent_when_that_meets_the_limit_again() -> None:
    more = (Alternative("three"),)
    tasks = [task("a"), task("b", fallback=more, needs=("z",)), task("z", agent="three")]
    fates = {
        "a/1/1/work/1": LIMIT,
        "a/1/1/work/2": Fate("exits", 20.0, 75 << 8),
        "z/1/1/work/1": Fate("exits", 110.0),
    }
    drive = play(make_session(tasks), fates, resets_in_s=100.0)
    assert starts(drive)["b/1/1/work/1"] == pytest.approx(101.0 + MARGIN_S + 20.0)


def test_who_says_in_a_second_again_and_again_is_asked_less_and_less() -> None:
    drive = play(make_session([task("a")]), lambda job: LIMIT if job.key.start < 5 else GOOD, resets_in_s=1.0)
    began = list(starts(drive).values())
    waits = [after - before - 1.0 for before, after in pairwise(began)]
    assert waits == pytest.approx([1.0 + MARGIN_S, 15.0, 30.0, 60.0])


def test_nothing_of_a_held_provider_is_even_prepared() -> None:
    tasks = [task("a"), task("b", workspace=TREE, setup=("true",))]
    drive = play(make_session(tasks, resources={"slot": 1}), {"a/1/1/work/1": LIMIT}, resets_in_s=500.0)
    assert starts(drive)["b/1/1/prepare/1"] > 500.0


def test_a_hold_outlives_a_restart_of_the_machine() -> None:
    drive = play(make_session([task("a")]), {"a/1/1/work/1": LIMIT}, resets_in_s=1000.0)
    entries = [entry for entry in drive.entries if entry.mono <= 1.0]
    state = begin(drive.state.spec)
    for entry in entries:
        apply(state, entry)
    apply(state, Entry(state.seq + 1, EPOCH_S + 401.0, 7.0, SupervisorStarted(2, 1, 1, "b2", "n", "0")))
    until = state.holds["provider:first"].until
    assert until == pytest.approx(7.0 + 600.0 + MARGIN_S)


def test_a_crash_goes_on_with_its_conversation_where_a_retry_is_left() -> None:
    drive = play(make_session([task("a", retries=1, workspace=TREE)]), {"a/1/1/work/1": CRASH})
    assert list(starts(drive)) == [
        "a/1/1/prepare/1",
        "a/1/1/work/1",
        "a/1/1/work/2",
        "a/1/1/release/1",
    ]
    assert drive.state.tasks["a"].retried == 1
    # an agent that cannot go on with a conversation begins anew, and so does everyone without a retry left
    drive = play(make_session([task("a", agent="three", retries=1)]), {"a/1/1/work/1": CRASH})
    assert list(starts(drive)) == ["a/1/1/work/1", "a/2/1/work/1"]
    drive = play(make_session([task("a")]), {"a/1/1/work/1": CRASH})
    assert outcomes(drive) == {"a": "failed"}


def test_a_provider_has_a_capacity() -> None:
    tasks = [task(f"t{number}") for number in range(6)]
    drive = play(make_session(tasks, resources={"provider:first": 2}), {})
    assert sorted(starts(drive).values()) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


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


def play_lost(*lasts: Fate) -> tuple[dict[str, float], Drive]:
    """A crash, then a conversation that is not there, then these: when each job began."""
    fates = {f"a/1/1/work/{start}": fate for start, fate in enumerate((CRASH, LOST, *lasts), 1)}
    drive = play(make_session([task("a", retries=1, workspace=TREE)]), fates)
    return {key: mono for key, mono in starts(drive).items() if "/work/" in key}, drive


def test_a_conversation_that_is_not_there_is_begun_anew_without_a_retry() -> None:
    began, drive = play_lost()
    assert list(began) == ["a/1/1/work/1", "a/1/1/work/2", "a/1/1/work/3"]
    assert began["a/1/1/work/3"] - began["a/1/1/work/2"] == 1.0, "it did not go on at once"
    assert (drive.state.tasks["a"].retried, drive.state.tasks["a"].outcome) == (1, "succeeded")
    state = begin(drive.state.spec)
    for entry in drive.entries:
        if isinstance(entry.event, JobClaimed) and entry.event.key.start == 3:
            break
        apply(state, entry)
    left = state.tasks["a"]
    assert (left.thread.conversation, left.thread.broken_off) == (None, "agent_crashed: 77"), (
        "what broke it off was forgotten"
    )


def test_who_began_no_conversation_cannot_lose_one() -> None:
    began, drive = play_lost(LOST)
    assert (len(began), drive.state.tasks["a"].reason_class) == (3, "no_conversation")
    drive = play(make_session([task("a")]), {"a/1/1/work/1": LOST})
    assert (list(starts(drive)), outcomes(drive)) == (["a/1/1/work/1"], {"a": "failed"})


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
