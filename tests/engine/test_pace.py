"""When a session starts work: at its time, in which order, how much at once, and while the machine has room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from hypothesis import given
from hypothesis import strategies as st
from simulated import Fate, SimulatedExecutor
from simulation import PLACES, Drive, Planned, Scripted, make_session

from sessionrun.client.planning.plan import Planned as PlannedSession
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.engine.fold import apply
from sessionrun.engine.status import project
from sessionrun.engine.tokens import MACHINE, START, find_width_fault
from sessionrun.model.events import Entry, HoldPlaced, JobClaimed, JobFinished, RequestReceived, TasksAdded
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT, WORKSPACE_TIMEOUT_S, Limits, TaskSpec, Workspace
from sessionrun.model.units import parse_coming
from sessionrun.session.history import begin
from sessionrun.session.partners import LOOK_S, RENEW_S, MachineWatch, measure_free_memory, measure_load

GIB = 1 << 30


class Machine(Scripted):
    """A session on a machine whose load and memory are set."""

    def __init__(self, limits: Limits, tasks: int = 2, slots: int | None = None) -> None:
        specs = [TaskSpec(f"t{number}", ("x",)) for number in range(tasks)]
        resources = {SLOT: slots} if slots else {}
        super().__init__(replace(make_session(specs, resources=resources), limits=limits))
        self.load, self.free = 1.0, 8 * GIB
        self.looks, self.at = 0, 0.0
        self.started: list[str] = []
        self.watch = MachineWatch(limits, self._measure, lambda: self.free)

    def now(self) -> float:
        return self.at

    def _measure(self) -> float:
        self.looks += 1
        return self.load

    def begins(self, key: JobKey) -> None:
        self.started.append(key.task)

    def settle(self, now: float) -> list[str]:
        """Turn until nothing is left but to wait; the tasks that were started."""
        self.at, self.started, acts = now, [], True
        while acts:
            for event in self.watch.hear(self.state, 1000.0 + now, now):
                self.record(event)
            acts = self.take_turn(now)
        return self.started

    def reasons(self) -> list[str | None]:
        return [task["reason"] for task in project(self.state)["tasks"]]


def test_load_holds_what_has_not_begun_and_is_looked_at_now_and_then() -> None:
    machine = Machine(Limits(max_load=8.0))
    machine.load = 9.34
    assert machine.settle(0.0) == []
    assert machine.reasons() == ["paced: load 9.34 is above 8"] * 2
    assert machine.watch.look_at == LOOK_S
    events = len(machine.entries)
    for now in (1.0, 2.0, LOOK_S, LOOK_S + 1, 2 * LOOK_S):
        machine.settle(now)
    assert (machine.looks, len(machine.entries)) == (3, events), (
        "a look records nothing, and is not taken too early"
    )
    machine.load = 12.0
    machine.settle(RENEW_S)
    assert machine.reasons()[0] == "paced: load 12 is above 8"
    machine.load = 8.0
    assert machine.settle(RENEW_S + LOOK_S) == ["t0", "t1"]
    assert MACHINE not in machine.state.holds
    assert MachineWatch(Limits()).look_at is None


def test_memory_holds_too_and_a_full_session_is_not_looked_at() -> None:
    machine = Machine(Limits(max_load=8.0, min_free_memory=4 * GIB), slots=1)
    assert machine.settle(0.0) == ["t0"]
    machine.free, looks = 3 * GIB, machine.looks
    assert machine.settle(1.0) == []
    assert machine.watch.look_at is None
    assert (machine.looks, machine.reasons()) == (looks, [None, None])
    machine.record(JobFinished(JobKey("t0", 1, 1, "work", 1), "passed", wait_status=0))
    assert machine.settle(2.0) == []
    assert machine.reasons()[1] == "paced: free memory 3G is below 4G"
    machine.record(RequestReceived("r", "cancel"))
    machine.go_on()
    assert [task["outcome"] for task in project(machine.state)["tasks"]] == ["succeeded", "cancelled"]


def test_a_hold_of_the_slot_shows_on_a_task_that_has_its_own() -> None:
    """It keeps every job from starting, also the next one of a task that has begun."""
    tasks = [TaskSpec("a", ("x",), workspace=Workspace("worktree")), TaskSpec("b", ("x",))]
    world = Scripted(make_session(tasks, resources={SLOT: 1}))
    world.go_on()
    world.record(HoldPlaced(SLOT, "the disk is full", 100.0))
    world.record(JobFinished(JobKey("a", 1, 1, "prepare", 1), "passed", wait_status=0, place=PLACES["prepare"]))
    world.go_on()
    assert (world["a"].active, world["a"].job, world.state.free) == (True, None, {SLOT: 0})
    shown = [(task["word"], task["reason"]) for task in project(world.state)["tasks"]]
    assert shown == [("held", "held: the disk is full")] * 2


def test_this_machine_says_what_it_has() -> None:
    load, free = measure_load(), measure_free_memory()
    assert load is not None and load >= 0.0
    assert (free is not None and free > 1 << 20) == Path("/proc/meminfo").exists()


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\nHugePages_Total: 0\n")
    assert measure_free_memory(proc, groups) == 8000 * 1024
    (proc / "self" / "cgroup").write_text("1:cpu:/x\n0::/outer/inner\n")
    for name, most in (("outer", "5000000"), ("outer/inner", "max")):
        (groups / name).mkdir(parents=True)
        (groups / name / "memory.max").write_text(f"{most}\n")
        (groups / name / "memory.current").write_text("3000000\n")
        (groups / name / "memory.stat").write_text("anon 7\ninactive_file 1000000\n")
    assert measure_free_memory(proc, groups) == 3000000
    assert measure_free_memory(tmp_path / "none", groups) is None


@pytest.fixture
def place(own_place: Path) -> Iterator[Path]:
    (own_place / "sessionrun.toml").write_text('max_load = 3\nstagger = "9s"\nhalt = "now"\n')
    yield own_place


def settle(limits: dict[str, object], **asked: Any) -> Limits:
    Path("p.json").write_text(json.dumps({"prompts": ["true"], "agent": "shell", "limits": limits}))
    planned = plan_input("p.json", asked)
    assert isinstance(planned, PlannedSession)
    return planned.spec.limits


def test_the_command_line_wins_over_the_input_and_that_over_the_configuration(place: Path) -> None:
    limits = settle({"max_load": 5, "min_free_memory": "512M", "stagger": 0, "halt": "soon"})
    expected = (5.0, GIB >> 1, None, "soon")
    assert (limits.max_load, limits.min_free_memory, limits.stagger_s, limits.halt) == expected
    asked = {"halt": "soon", "max_load": 0.0, "min_free_memory": GIB, "stagger_s": 2.0}
    limits = settle({"max_load": 5}, stop_on_fail=True, **asked)
    assert (limits.max_load, limits.min_free_memory, limits.stagger_s, limits.halt) == (None, GIB, 2.0, "soon")
    limits = settle({})
    assert (limits.max_load, limits.stagger_s, limits.halt) == (3.0, 9.0, "now")
    assert (limits.workspace_timeout_s, limits.min_free_memory) == (WORKSPACE_TIMEOUT_S, None)


@pytest.mark.parametrize(
    ("config", "said", "limit"),
    [("0", None, None), ("0", 90, 90), ("90", 0, None), ('"1.5m"', None, 90)],
)
def test_a_limit_of_0_is_none_where_there_is_a_usual_one(
    own_place: Path, config: str, said: float | None, limit: float | None
) -> None:
    (own_place / "sessionrun.toml").write_text(f"workspace_timeout = {config}\n")
    assert settle({"workspace_timeout": said}).workspace_timeout_s == limit


def test_halt_needs_a_number_of_failures(own_place: Path) -> None:
    assert settle({"max_failures": 2}, halt="now").halt == "now"


@pytest.mark.slow
def test_a_session_waits_for_memory_without_doing_anything(sessionrun: Command) -> None:
    words = ("--agent", "shell", "--min-free-memory", "900000T", "--max-load", "900000", "-q")
    session_id = sessionrun(*words, stdin='["true"]').stdout.strip()
    view = sessionrun.until(session_id, lambda view: view["tasks"][0]["reason"])
    assert view["tasks"][0]["reason"].startswith("paced: free memory ")
    assert view["tasks"][0]["reason"].endswith(" is below 9e+05T")
    seq = view["seq"]
    sessionrun.kill_chain(session_id)
    assert sessionrun("resume", session_id).returncode == 0
    view = sessionrun.until(session_id, lambda view: view["epoch"] == 2 and view["tasks"][0]["reason"])
    assert view["seq"] <= seq + 2, "that another supervisor began, and what it measured, is all that is new"
    assert sessionrun("cancel", session_id).returncode == 0


def test_the_machine_is_not_asked_before_a_session_begins() -> None:
    machine = Machine(Limits(max_load=8.0, starts_at=9999.0))
    machine.record(HoldPlaced(START, "later", 8999.0))
    machine.load = 9.0
    assert machine.settle(0.0) == []
    assert (machine.looks, machine.watch.look_at) == (0, None)


# --- at its time ---


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("+90s", 90.0),
        ("13:00", 3600.0),
        ("9:05", 75900.0),
        ("11:00", 23 * 3600.0),
        ("2026-01-02T12:00", 24 * 3600.0),
    ],
)
def test_a_moment_to_come(text: str, seconds: float) -> None:
    now = datetime(2026, 1, 1, 12).timestamp()
    assert parse_coming(text, now) - now == seconds


@pytest.mark.parametrize("text", ["soon", "2025-12-31", "+x", "25:00"])
def test_what_is_no_moment_to_come(text: str) -> None:
    with pytest.raises(ValueError, match=r"over|not a time|must be"):
        parse_coming(text, 1_767_268_800.0)


def test_held_from_the_start_and_at_a_time(sessionrun: Command) -> None:
    done = sessionrun("-q", "--agent", "shell", "--hold", "-p", "echo x > done")
    session_id = done.stdout.strip()
    eventually(lambda: sessionrun.status(session_id)["tasks"][0]["reason_class"] == "held")
    assert sessionrun("release", session_id).returncode == 0
    sessionrun.wait(session_id)
    assert (sessionrun.cwd / "done").exists()
    words = ("--at", "+1h", "--stop-on-fail", "--halt", "now", "-p", "true")
    later = sessionrun("-q", "--agent", "shell", *words).stdout.strip()
    limits = json.loads((sessionrun.directory(later) / "spec.json").read_bytes())["limits"]
    assert (limits["max_failures"], limits["halt"]) == (1, "now")
    eventually(lambda: sessionrun.status(later)["tasks"][0]["reason_class"] == "paced")
    assert sessionrun("release", later).returncode == 0
    assert sessionrun.wait(later)["outcome"] == "succeeded"


# --- in which order ---


def drive(tasks: list[TaskSpec], planned: list[Planned], slots: int | None) -> Drive:
    spec = make_session(tasks, resources={SLOT: slots} if slots else {})
    return Drive(spec, SimulatedExecutor(lambda job: Fate(duration_s=1.0)), planned).run()


def task(name: str, priority: int = 0, *needs: str) -> TaskSpec:
    return TaskSpec(name, ("x",), agent="three", priority=priority, needs=needs)


LATE: Planned = (0.5, TasksAdded("r", (task("c"), task("d", 1))))
HELD: list[Planned] = [(0.5, RequestReceived("h", "hold", ("d",))), (1.5, RequestReceived("r", "release", ("d",)))]


@pytest.mark.parametrize(
    ("tasks", "planned", "order"),
    [
        ([task("a"), task("b")], [LATE], "adbc"),
        ([task("a"), task("b", 9, "a"), task("c")], [], "abc"),
        ([task("a"), task("b"), task("c"), task("d", 1)], HELD, "dabc"),
        ([task("a", 2), task("b"), task("c"), task("d", 1)], HELD, "abdc"),
    ],
    ids=["added later", "its need was met", "held too late", "held, and released"],
)
def test_the_bigger_priority_goes_first(tasks: list[TaskSpec], planned: list[Planned], order: str) -> None:
    assert [key[0] for key in drive(tasks, planned, 1).claims()] == [*order]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(1, 4))
def test_tasks_start_by_priority_and_place(priorities: list[int], slots: int) -> None:
    tasks = [task(f"t{num}", priority) for num, priority in enumerate(priorities)]
    expected = sorted(tasks, key=lambda one: -one.priority)  # sorting keeps the order of equals
    assert [key.split("/")[0] for key in drive(tasks, [], slots).claims()] == [one.id for one in expected]


# --- how many at once ---


def ask(width: int, name: str = "r") -> RequestReceived:
    return RequestReceived(name, "set", max_parallel=width)


def test_a_width_that_a_task_cannot_have_is_refused() -> None:
    state = begin(make_session([TaskSpec("b", ("x",), uses={"slot": 3})], resources={"slot": 3}))
    assert find_width_fault(state, ask(2)) == find_width_fault(state, ask(0)) == "task 'b' uses 3 of 'slot'"
    assert find_width_fault(state, ask(3)) is None


@pytest.mark.parametrize("first", [None, 1, 3])
@pytest.mark.parametrize("second", [0, 1, 2, 5])
def test_no_more_run_than_may(first: int | None, second: int) -> None:
    planned: list[Planned] = [(0.5, ask(second)), (3.5, ask(2, "again"))]
    starts = list(drive([task(f"t{num}") for num in range(8)], planned, first).claims().values())
    assert len(starts) == 8
    assert all(starts.count(at) <= 2 for at in starts if at >= 4.0)  # each takes a second


def test_slots_are_counted_from_what_runs() -> None:
    state = begin(make_session([TaskSpec("a", ("x",)), TaskSpec("b", ("x",), uses={})], resources={}))
    apply(state, Entry(1, 0.0, 0.0, JobClaimed(JobKey("a", 1, 1, "work", 1))))
    apply(state, Entry(2, 0.0, 0.0, ask(3)))
    assert state.free == {"slot": 2}
    apply(state, Entry(3, 0.0, 0.0, ask(3)))
    apply(state, Entry(4, 0.0, 0.0, ask(9)))  # an id that was taken counts once
    assert (state.free, state.spec.resources) == ({"slot": 2}, {"slot": 3})
    assert find_width_fault(state, ask(1)) is None
