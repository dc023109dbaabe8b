"""What a provider's limit means: for the tasks that met it, the others, their retries, and other sessions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import EPOCH_S, Drive, Fate, Planned, SimulatedExecutor, judge, make_session, task

from sessionrun.agents.table import BUILTIN
from sessionrun.engine.fold import apply
from sessionrun.engine.providers import CANARY_S, LIMIT_FIRST_S, LONGEST_S, MARGIN_S, MAX_BACKOFFS, SPREAD_S
from sessionrun.engine.status import project
from sessionrun.model.events import (
    AgentChanged,
    Entry,
    JobClaimed,
    JobFinished,
    LimitHeard,
    RequestReceived,
    SupervisorStarted,
)
from sessionrun.model.spec import AgentSpec, Alternative, Job, TaskSpec, Workspace
from sessionrun.session.executor import Exit
from sessionrun.session.history import begin
from sessionrun.session.partners import MAX_BYTES, LimitSharing, find_files, load_limit, name_file, write_limit
from sessionrun.store.index import limits_path

LIMIT = Fate("exits", 1.0, 75 << 8)
BUSY = Fate("exits", 1.0, 76 << 8)
CRASH = Fate("exits", 1.0, 77 << 8)
LOST = Fate("exits", 1.0, 79 << 8)
GOOD = Fate("exits", 1.0)
TREE = Workspace("worktree")


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


@pytest.mark.parametrize(
    ("until_s", "restart_s", "hold_s", "canary_s"),
    [(1.0, 401.0, 7.0 + 600.0 + MARGIN_S, None), (1001.0 + MARGIN_S, 2000.0, None, 7.0)],
    ids=["a hold outlives it", "the time of a canary is over"],
)
def test_a_restart_of_the_machine(
    until_s: float, restart_s: float, hold_s: float | None, canary_s: float | None
) -> None:
    drive = play([task("a")], {"a/1/1/work/1": LIMIT}, resets_in_s=1000.0)
    state = begin(drive.state.spec)
    for entry in drive.entries:
        if entry.mono <= until_s and state.ended is None:
            apply(state, entry)
    known = state.providers["provider:first"]
    assert ((known.canary_until or 0) > 1000.0) == (canary_s is not None)
    apply(state, Entry(state.seq + 1, EPOCH_S + restart_s, 7.0, SupervisorStarted(2, 1, 1, "b2", "n", "0")))
    hold = state.holds.get("provider:first")
    assert (hold and hold.until, known.canary_until) == (hold_s and pytest.approx(hold_s), canary_s)


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


# --- sessions of one user, beside each other: on simulated time, with real files ---

LIMITED = 75 << 8
GOOD_S = 5.0


@dataclass
class Run:
    """One WORK job of the account."""

    session: str
    task: str
    began: float
    limited: bool
    ended: float = 0.0


class World:
    """Sessions beside each other, an account, and its quota: used up until `limited_until`."""

    def __init__(self, limited_until: float, *, says_end: bool = True, work_s: float = GOOD_S) -> None:
        self.limited_until = limited_until
        self.says_end = says_end
        self.work_s = work_s
        self.now = 0.0
        self.runs: list[Run] = []
        self.drives: dict[str, Drive] = {}
        self.said: list[str] = []

    def add(self, name: str, tasks: list[TaskSpec] | int, **options: Any) -> Drive:
        """A session that starts now; a number is of tasks of the agent `one`."""
        if isinstance(tasks, int):
            tasks = [TaskSpec(f"{name}{number}", ("x",), agent="one") for number in range(tasks)]
        spec = replace(make_session(tasks, **options), session_id=name)
        executor = SimulatedExecutor(lambda job: self._choose(name, job), start_at=self.now)
        sharing = LimitSharing(spec, {"HOME": "/h"}, self.said.append)
        drive = Drive(spec, executor, judged=self._judge, sharing=sharing, replays=True)
        self.drives[name] = drive
        drive.start()
        return drive

    def run(self, until: float | None = None, rng: Random | None = None) -> World:
        """Go on until all have ended, or until that time."""
        while any(drive.state.ended is None for drive in self.drives.values()):
            drives = self.drives.values()
            times = [time for drive in drives for time in (drive.due_at(), drive.executor.next_end()) if time]
            assert times or until is not None, "nothing is due, and not all have ended"
            self.now = max(self.now, min(times, default=float("inf")))
            if until is not None and self.now > until:
                self.now = until
                return self
            names = list(self.drives)
            if rng is not None:
                rng.shuffle(names)
            for drive in map(self.drives.__getitem__, names):
                if drive.state.ended is None:
                    drive.step(self.now)
        return self

    def _choose(self, session: str, job: Job) -> Fate:
        if job.key.phase != "work" or self.drives[session].state.tasks[job.key.task].agent != "one":
            return Fate("exits", 1.0)
        limited = self.now < self.limited_until
        run = Run(session, job.key.task, self.now, limited, self.now + (1.0 if limited else self.work_s))
        self.runs.append(run)
        return Fate("exits", run.ended - run.began, LIMITED if limited else 0)

    def _judge(self, ended: Exit) -> JobFinished:
        verdict = judge(ended)
        limited = verdict.reason_class == "usage_limit" and self.says_end
        return replace(verdict, resets_at=EPOCH_S + self.limited_until) if limited else verdict


def the_file() -> Path:
    """The file of the account of the tests' agents `one` and `two`."""
    spec = make_session([])
    return find_files(spec, {"HOME": "/h"})["provider:first"]


def test_another_session_does_not_run_into_a_limit_that_is_known(own_place: Path) -> None:
    world = World(1000.0)
    world.add("a", 1)
    world.run(500.0)
    second = world.add("b", 2)
    reason = second.state.holds["provider:first"].reason
    assert reason == "usage_limit: 75 (met by session a)"
    assert second.state.providers["provider:first"].heard == "a"
    shown = project(second.state)["tasks"][0]
    assert (shown["reason"], shown["held_until"]) == (f"held: {reason}", "2023-11-14T22:30:02.000Z")
    world.run()
    first, *trials = world.runs[:3]
    assert first.limited
    assert {run.session for run in trials} == {"a", "b"}, "each session sends a trial"
    assert all(run.began == pytest.approx(1000.0 + MARGIN_S, abs=0.1) for run in trials)
    (other,) = world.runs[3:]
    assert trials[-1].ended <= other.began <= trials[-1].ended + SPREAD_S
    assert world.said == []


def test_a_trial_that_meets_the_limit_again_tells_all_the_new_end(own_place: Path) -> None:
    world = World(100.0)
    world.add("a", 2)
    world.run(50.0)
    other = world.add("b", 2)
    world.run(90.0)
    world.limited_until = 5000.0
    world.run()
    limited = [run for run in world.runs if run.limited]
    assert len(limited) == 4, "more than the first two and a trial of each session met it"
    assert min(run.began for run in world.runs if not run.limited) >= 5000.0
    assert any(isinstance(entry.event, LimitHeard) for entry in other.entries)


def test_without_auto_release_a_limit_that_is_heard_of_waits_for_a_request_of_the_session(own_place: Path) -> None:
    world = World(100.0)
    first = world.add("a", 1, auto_release=False)
    world.run(10.0)
    second = world.add("b", 1)
    third = world.add("c", 1, auto_release=False)
    assert third.state.holds["provider:first"].until is None
    while second.state.ended is None:
        world.run(world.now + 10.0)
    assert [run.session for run in world.runs] == ["a", "b"]
    assert (first.state.ended, third.state.ended) == (None, None)
    for drive in (first, third):
        assert drive.state.holds["provider:first"].until is None, "the release was not its own"
        drive.step(world.now)
        drive.record(RequestReceived("r", "release"))
        drive.settle()
    world.run()


def test_scripts_and_sessions_without_a_limit_write_nothing(own_place: Path) -> None:
    world = World(0.0)
    world.add("a", 3)
    world.run()
    assert not limits_path().exists()
    shell = AgentSpec("shell", ("sh",), prompt_kind="script")
    assert find_files(replace(make_session([]), agents={"shell": shell}), {}) == {}


@settings(max_examples=settings().max_examples // 2)  # each is several sessions, with files
@given(st.integers(0, 2**32))
def test_sessions_beside_each_other(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """In any order, one perhaps killed: all that live end, and a known limit is met by trials alone."""
    rng = Random(seed)
    place = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        _play(World(100.0, says_end=rng.random() < 0.7, work_s=rng.choice((5.0, 90.0))), rng)


def _play(world: World, rng: Random) -> None:
    world.limited_until = rng.choice((100.0, 700.0, 3000.0))
    names = list("abcde"[: rng.randint(2, 5)])
    for name in names:
        world.add(name, rng.randint(1, 4), resources=rng.choice(({}, {"slot": 1})))
        world.run(world.now + rng.choice((0.0, 3.0, 200.0)), rng)
    killed = rng.random() < 0.4
    if killed:
        world.run(world.now + rng.uniform(0.0, 1000.0), rng)
        del world.drives[rng.choice(names)]
    world.run(None, rng)
    for drive in world.drives.values():
        assert {task.outcome for task in drive.state.tasks.values()} == {"succeeded"}
        assert drive.state.free == drive.state.spec.resources
    assert world.said == []
    limited = [run for run in world.runs if run.limited]
    known_at = min((run.ended for run in limited), default=0.0)
    asked = [run for run in limited if run.began >= known_at]
    if world.says_end:
        assert asked == []
    for name in names:
        own = [run for run in asked if run.session == name]
        for before, after in pairwise(own):
            assert after.began >= before.ended, "two trials of one session at the same time"


# --- files ---

NOW = 1_800_000_000.0
MET = LimitHeard("claude", "limit", "usage_limit: so", NOW + 600.0, NOW - 5.0, 1, "s1")
LATER = replace(MET, until_at=NOW + 60.0, met_at=NOW - 1.0, session="s2")
RECORD = json.loads('{"provider":"claude","effect":"limit","reason":"r","session":"s","strikes":1}')
RECORD |= {"until_at": NOW + 5.0, "met_at": NOW}


@pytest.fixture
def place(own_place: Path) -> Path:
    """An account's file."""
    return limits_path() / "claude-0.json"


def write(path: Path, limit: LimitHeard) -> None:
    write_limit(path, limit, NOW)


def test_what_is_written_is_read_and_the_limit_that_was_met_last_counts(place: Path) -> None:
    for limit, kept in ((MET, MET), (LATER, LATER), (MET, LATER)):
        write(place, limit)
        assert load_limit(place, NOW) == kept
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in place.parent.iterdir()] == [place.name]


@pytest.mark.parametrize(
    "content",
    [
        *(
            json.dumps({**RECORD, **change}).encode()
            for change in (
                {"provider": 7},
                {"effect": "none"},
                {"until_at": "soon"},
                {"until_at": True},
                {"until_at": -1},
                {"until_at": NOW + LONGEST_S + 100.0},
                {"met_at": NOW + 1000.0},
                {"strikes": 0},
            )
        ),
        *(json.dumps({key: RECORD[key] for key in RECORD if key != name}).encode() for name in RECORD),
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"NaN", b"[" * 5000, b'"x"' + b" " * MAX_BYTES, b"{}" * 3),
    ],
)
def test_what_does_not_fit_is_as_if_it_were_not_there(place: Path, content: bytes) -> None:
    write(place, MET)
    place.write_text(json.dumps(RECORD))
    assert load_limit(place, NOW) is not None
    place.write_bytes(content)
    assert load_limit(place, NOW) is None
    write(place, LATER)
    assert load_limit(place, NOW) == LATER


def plant(path: Path, kind: str) -> None:
    """A file that would be believed if it were ours alone, or none."""
    target = path.with_name("target") if kind == "link" else path
    if kind in ("link", "readable", "foreign"):
        target.write_text(json.dumps(RECORD))
        target.chmod(0o644 if kind == "readable" else 0o600)
    if kind in ("link", "device"):
        path.symlink_to(target if kind == "link" else "/dev/zero")
    elif kind == "foreign":
        os.chown(path, 12345, 12345)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()


@pytest.mark.parametrize("kind", ["link", "fifo", "readable", "foreign", "directory", "device"])
def test_what_is_not_ours_alone_or_no_file_is_as_if_it_were_not_there(place: Path, kind: str) -> None:
    if kind == "foreign" and os.geteuid() != 0:
        pytest.skip("needs root, to make another user's file")
    place.parent.mkdir(parents=True, mode=0o700)
    plant(place, kind)
    assert load_limit(place, NOW) is None
    if not place.is_dir():  # what was planted is replaced, and what a link leads to stays
        write(place, LATER)
        assert load_limit(place, NOW) == LATER
        target = place.with_name("target")
        assert not target.exists() or json.loads(target.read_text()) == RECORD


def plant_folder(folder: Path, kind: str) -> None:
    """What may lie where the files of limits should."""
    made = folder.parent.with_name("other") if kind == "link" else folder
    made.parent.mkdir(parents=True)
    if kind == "file":
        folder.touch()
        return
    made.mkdir()
    made.chmod(0o777 if kind == "wide" else 0o700)
    if kind == "link":
        folder.parent.mkdir(parents=True)
        folder.symlink_to(made)
    elif kind == "directory in it":
        (the_file() / "x").mkdir(parents=True)
    elif kind == "text in it":
        the_file().write_bytes(b"\0" * 100)


NOT_OURS = "it is not a directory that is yours alone"


@pytest.mark.parametrize(
    ("kind", "tells"),
    [
        ("wide", NOT_OURS),
        ("file", "File exists"),
        ("link", NOT_OURS),
        ("directory in it", "Is a directory"),
        ("text in it", None),
    ],
)
def test_a_session_knows_its_own_limits_whatever_lies_there(own_place: Path, kind: str, tells: str | None) -> None:
    """It meets a limit, waits, has a canary and ends; what is wrong is told in one line."""
    plant_folder(limits_path(), kind)
    world = World(100.0)
    world.add("a", 3)
    assert set(world.run().drives["a"].outcomes.values()) == {"succeeded"}
    assert len(world.said) == (tells is not None), world.said
    assert not tells or (
        world.said[0].startswith("limits are not shared with other sessions: ") and tells in world.said[0]
    )


def test_accounts_are_told_apart_by_what_signs_them_in_and_no_value_is_shown() -> None:
    """Whatever their agents are called."""
    home, claude = {"HOME": "/home/u"}, BUILTIN["claude"]

    def name(environ: dict[str, str], agent: AgentSpec = claude) -> str:
        return name_file("claude", agent, home | environ)

    plain, key = name({}), name({"ANTHROPIC_API_KEY": "sk-secret"})
    others = [
        {"ANTHROPIC_API_KEY": "sk-other"},
        {"CLAUDE_CONFIG_DIR": "/elsewhere"},
        {"ANTHROPIC_BASE_URL": "http://gateway"},
        {"HOME": "/home/v"},
    ]
    assert len({plain, key, *map(name, others)}) == 6
    assert name({"LANG": "C", "OPENAI_API_KEY": "x"}) == plain, "another program's key matters"
    assert plain.startswith("claude-") and plain.endswith(".json") and "secret" not in key
    own = replace(claude, env={"ANTHROPIC_API_KEY": "sk-secret"})
    assert name({}, own) == key, "the agent's own environment does not count"
    assert name({}, AgentSpec("mine", ("claude",), provider="claude")) == plain
    odd = [name_file(name, None, home) for name in ("../../etc/passwd", "a/b", "a_b", "x" * 300, "\n")]
    assert len(set(odd)) == 5
    assert all("/" not in one and "\n" not in one and len(one) < 80 for one in odd)
