"""How fast a session starts work: what is asked for on each level, and the hold while the machine has too much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from simulation import make_session

from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.engine.fold import apply
from sessionrun.engine.moves import cancel
from sessionrun.engine.scheduler import Record, StartJob, decide
from sessionrun.engine.status import project
from sessionrun.engine.tokens import MACHINE, START
from sessionrun.model.events import Entry, Event, HoldPlaced, JobClaimed, JobFinished, RequestReceived
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT, WORKSPACE_TIMEOUT_S, Limits, TaskSpec
from sessionrun.session.history import begin
from sessionrun.session.watches import LOOK_S, RENEW_S, MachineWatch, measure_free_memory, measure_load

GIB = 1 << 30


class Machine:
    """A session on a machine whose load and memory are set, driven as the supervisor does."""

    def __init__(self, limits: Limits, tasks: int = 2, slots: int | None = None) -> None:
        specs = [TaskSpec(f"t{number}", ("x",)) for number in range(tasks)]
        resources = {SLOT: slots} if slots else {}
        self.state = begin(replace(make_session(specs, resources=resources), limits=limits))
        self.load, self.free = 1.0, 8 * GIB
        self.looks = 0
        self.now, self.events = 0.0, 0
        self.watch = MachineWatch(limits, self._measure, lambda: self.free)

    def _measure(self) -> float:
        self.looks += 1
        return self.load

    def follow(self, now: float) -> None:
        """Record what is decided; no job is to start."""
        for order in decide(self.state, now):
            assert isinstance(order, Record), order
            self.record(order.event)

    def record(self, event: Event) -> None:
        self.events += 1
        apply(self.state, Entry(self.events, 1000.0 + self.now, self.now, event))

    def settle(self, now: float) -> list[str]:
        """Turn until nothing is left but to wait; the tasks that were started."""
        self.now, started = now, []
        while True:
            for event in self.watch.hear(self.state, 1000.0 + now, now):
                self.record(event)
            keys = [order.key for order in decide(self.state, now) if isinstance(order, StartJob)]
            for key in keys:
                self.record(JobClaimed(key))
                started.append(key.task)
            if not keys:
                return started

    def reasons(self) -> list[str | None]:
        return [task["reason"] for task in project(self.state)["tasks"]]


def test_load_holds_what_has_not_begun_and_is_looked_at_now_and_then() -> None:
    machine = Machine(Limits(max_load=8.0))
    machine.load = 9.34
    assert machine.settle(0.0) == []
    assert machine.reasons() == ["paced: load 9.34 is above 8"] * 2
    assert machine.watch.look_at == LOOK_S
    events = machine.events
    for now in (1.0, 2.0, LOOK_S, LOOK_S + 1, 2 * LOOK_S):
        machine.settle(now)
    assert (machine.looks, machine.events) == (3, events), "a look records nothing, and is not taken too early"
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
    machine.follow(2.0)
    assert machine.settle(2.0) == []
    assert machine.reasons()[1] == "paced: free memory 3G is below 4G"
    machine.record(RequestReceived("r", "cancel"))
    machine.follow(3.0)
    assert [task["outcome"] for task in project(machine.state)["tasks"]] == ["succeeded", "cancelled"]


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
    assert isinstance(planned, Planned)
    return planned.spec.limits


def test_the_command_line_wins_over_the_input_and_that_over_the_configuration(place: Path) -> None:
    limits = settle({"max_load": 5, "min_free_memory": "512M", "stagger": 0, "halt": "soon"})
    assert (limits.max_load, limits.min_free_memory, limits.stagger_s, limits.halt) == (
        5.0,
        GIB >> 1,
        None,
        "soon",
    )
    asked = {"halt": "soon", "max_load": 0.0, "min_free_memory": GIB, "stagger_s": 2.0}
    limits = settle({"max_load": 5}, stop_on_fail=True, **asked)
    assert (limits.max_load, limits.min_free_memory, limits.stagger_s, limits.halt) == (None, GIB, 2.0, "soon")
    limits = settle({})
    assert (limits.max_load, limits.stagger_s, limits.halt) == (3.0, 9.0, "now")


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


@pytest.mark.slow
def test_the_last_failure_that_is_allowed_ends_what_runs(sessionrun: Command, own_place: Path) -> None:
    plan: dict[str, Any] = {
        "prompts": [{"id": "long", "prompt": "touch begun; sleep 600"}, {"id": "bad", "prompt": "exit 1"}],
        "defaults": {"agent": "shell"},
    }
    plan["prompts"][1]["setup"] = "until [ -e begun ]; do sleep 0.05; done"
    done = sessionrun("--sync", "--json", "--stop-on-fail", "--halt", "now", stdin=json.dumps(plan))
    tasks = json.loads(done.stdout)["tasks"]
    assert [(task["outcome"], task["reason"]) for task in tasks] == [
        ("cancelled", "cancelled: max_failures: stopped after 1 failed"),
        ("failed", "exit_code: exit code 1"),
    ]


def test_limits_are_settled_without_a_machine_that_must_say_them() -> None:
    planned = plan_input(["true"], {"agent": "shell"})
    assert isinstance(planned, Planned)
    assert planned.spec.limits == Limits(workspace_timeout_s=WORKSPACE_TIMEOUT_S)


def test_the_machine_is_not_asked_before_a_session_begins() -> None:
    machine = Machine(Limits(max_load=8.0, starts_at=9999.0))
    machine.record(HoldPlaced(START, "later", 8999.0))
    machine.load = 9.0
    assert machine.settle(0.0) == []
    assert (machine.looks, machine.watch.look_at) == (0, None)


def test_a_task_that_is_ended_between_two_jobs_says_why() -> None:
    state = begin(make_session([TaskSpec("t", ("x",))]))
    cancel(state, state.tasks["t"], why="max_failures: stopped after 1 failed")
    assert state.tasks["t"].reason == "cancelled: max_failures: stopped after 1 failed"
