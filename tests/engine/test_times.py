"""When a session starts work, and when it ends what prints nothing.

Work starts at its time, in an order, so much at once, and while the machine has room.  Agents that print nothing
are stopped by `idle_timeout`, or wait for a limit that they are silent about.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from conftest import Command, eventually
from hypothesis import given
from hypothesis import strategies as st
from simulation import PLACES, Drive, Fate, Planned, Scripted, SimulatedExecutor, make_session

from sessionrun.agents import table
from sessionrun.client.planning.plan import Planned as PlannedSession
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.engine.fold import apply
from sessionrun.engine.moves import MACHINE, START, find_width_fault
from sessionrun.engine.status import project
from sessionrun.engine.task import RunningJob
from sessionrun.model.events import (
    Entry,
    Event,
    HoldPlaced,
    JobClaimed,
    JobFinished,
    RequestReceived,
    TasksAdded,
    TimerFired,
)
from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.model.spec import SLOT, WORKSPACE_TIMEOUT_S, Limits, TaskSpec, Workspace
from sessionrun.model.units import parse_coming
from sessionrun.session import partners
from sessionrun.session.history import begin
from sessionrun.session.partners import LOOK_S, RENEW_S, MachineWatch, measure_free_memory, measure_load
from sessionrun.session.shared import Site
from sessionrun.store.session import SessionDir

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


def settle(limits: dict[str, object], **asked: Any) -> Limits:
    Path("p.json").write_text(json.dumps({"prompts": ["true"], "agent": "shell", "limits": limits}))
    planned = plan_input("p.json", asked)
    assert isinstance(planned, PlannedSession)
    return planned.spec.limits


def test_the_command_line_wins_over_the_input_and_that_over_the_configuration(own_place: Path) -> None:
    (own_place / "sessionrun.toml").write_text('max_load = 3\nstagger = "9s"\nhalt = "now"\n')
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


# --- agents that print nothing ---

AGENT = """[agents.streaming]
argv = ["/bin/sh", "{prompt_file}"]
stdin = "none"
prompt_kind = "script"
output = "codex"
"""
CHATTY = 'i=0; while [ $i -lt 25 ]; do echo \'{"type":"turn.started"}\' %s; sleep 0.1; i=$((i+1)); done'


@pytest.mark.slow
def test_who_prints_goes_on(sessionrun: Command) -> None:
    """Two and a half seconds of work are fine with one second of patience, whichever file they show in."""
    (sessionrun.cwd / "sessionrun.toml").write_text(AGENT)
    plan = [
        {"prompt": f'{CHATTY % where}; echo \'{{"type":"turn.completed"}}\'', "agent": agent}
        for agent in ("shell", "streaming")
        for where in ("", ">&2")
    ]
    session = sessionrun.start(plan, "--idle-timeout", "1s", "--max-parallel", "4")
    tasks = sessionrun.wait(session)["tasks"]
    assert [(task["outcome"], task["reason"]) for task in tasks] == [("succeeded", None)] * 4
    journal = (sessionrun.directory(session) / "journal").read_text().splitlines()
    for task in tasks:
        looks = sum('"OutputSeen"' in line and f'"{task["id"]}/' in line for line in journal)
        assert 1 <= looks <= task["duration_s"] + 2, "it is looked at once a second, not all the time"


@pytest.mark.parametrize("prompt", ["exec sleep 600", "echo begun; exec sleep 600"])
def test_who_falls_silent_is_stopped(sessionrun: Command, prompt: str) -> None:
    session = sessionrun.start([{"id": "a", "prompt": prompt, "idle_timeout": 0.4}])
    task = sessionrun.wait(session)["tasks"][0]
    assert (task["outcome"], task["reason_class"]) == ("timed_out", "stalled")
    assert task["reason"] == "stalled: no output for 0.4 s"
    assert task["duration_s"] >= 0.4


@pytest.mark.slow
def test_a_new_supervisor_goes_on_watching(sessionrun: Command) -> None:
    prompt = "echo begun; touch begun; exec sleep 600"
    session = sessionrun.start([{"id": "a", "prompt": prompt, "idle_timeout": 1, "retries": 1}])
    eventually((sessionrun.cwd / "begun").exists)
    os.kill(sessionrun.supervisor(session), signal.SIGKILL)
    task = sessionrun.wait(session)["tasks"][0]
    assert (task["reason_class"], task["attempt"]) == ("stalled", 2)
    events = [
        json.loads(line[9:]) for line in (sessionrun.directory(session) / "journal").read_bytes().splitlines()
    ]
    fired = [(event["key"], event["timer"]) for event in events if event["ev"] == "TimerFired"]
    assert fired == [("a/1/1/work/1", "idle_timeout"), ("a/2/1/work/1", "idle_timeout")]


QUOTA = "You exceeded your current quota, please check your plan and billing details."
INIT = '{"type":"system","subtype":"init","session_id":"c-1","model":"m"}\n'
RETRIED = 'Attempt 1 failed with status 429. Retrying with backoff... {"status":"RESOURCE_EXHAUSTED"}\n'
AIDER = "litellm.RateLimitError: no\nThe API provider has rate limited you.\nRetrying in 8.0 seconds...\n"
PLACE = 'level=INFO run={run} message="creating instance" directory={cwd}'
ASKED = "level=INFO run={run} message=stream session.id=s small={small} agent=build"
FAILED = 'level=ERROR run={run} message="stream error" small={small} error.error="AI_APICallError: {words}"'


def opencode_log(*lines: str, **words: str) -> str:
    return "".join(
        line.format(**{"run": "a1", "small": "false", "words": QUOTA, **words}) + "\n" for line in lines
    )


def qwen_log(event: str) -> str:
    error = {"event.name": event, "error_message": f"429 {QUOTA}", "status_code": 429}
    return json.dumps(
        {"type": "system", "systemPayload": {"uiEvent": error}, "timestamp": "2099-01-01T00:00:00.500Z"}
    )


SILENT: dict[str, tuple[str, str, str, str, str | None]] = {
    # what agent, standard output, standard error, its own log -> what it waits for
    "opencode": ("opencode", "", "", opencode_log(PLACE, ASKED, FAILED, cwd="/here"), "usage_limit"),
    "opencode, HTTP 500": ("opencode", "", "", opencode_log(FAILED, words="Internal Server Error"), "api_error"),
    "opencode asks again": ("opencode", "", "", opencode_log(FAILED, ASKED), None),
    "opencode, the title alone": ("opencode", "", "", opencode_log(FAILED, small="true"), None),
    "opencode, somewhere else": ("opencode", "", "", opencode_log(PLACE, FAILED, cwd="/there"), None),
    "opencode, long ago": ("opencode", "", "", "timestamp=2020-01-01T00:00:00.000Z " + opencode_log(FAILED), None),
    "opencode, another conversation": (
        "opencode",
        '{"type":"step_start","sessionID":"ses_1"}\n',
        "",
        opencode_log(FAILED.replace(" small", " session.id=ses_2 small")),
        None,
    ),
    "qwen": ("qwen", INIT, "", qwen_log("qwen-code.api_error"), "usage_limit"),
    "qwen, another event": ("qwen", INIT, "", qwen_log("qwen-code.api_response"), None),
    "gemini": ("gemini", '{"type":"init"}\n', RETRIED, "", "rate_limited"),
    "gemini, other words": ("gemini", '{"type":"init"}\n', "Ripgrep is not available.\n", "", None),
    "aider": ("aider", AIDER, "", "", "rate_limited"),
    "aider, answered": ("aider", AIDER + "Tokens: 10 sent, 5 received.\n", "", "", None),
    "codex": ("codex", '{"type":"error","message":"You\'ve hit your usage limit."}\n', "", "", "usage_limit"),
    "codex reconnects": ("codex", '{"type":"error","message":"Reconnecting... 1/5"}\n', "", "", None),
    "claude works": ("claude", INIT, "", "", None),
    "text": ("shell", "usage limit reached\n", "", "", None),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_a_silent_agent_waits_for(tmp_path: Path, case: str) -> None:
    agent, stdout, stderr, log, expected = SILENT[case]
    for name, content in (("out", stdout), ("err", stderr)):
        (tmp_path / name).write_text(content)
    for path in ("data/opencode/log/opencode.log", ".qwen/projects/-here/chats/c-1.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(log)
    environ = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    found = table.find_silent_limit(table.BUILTIN[agent], tmp_path / "out", tmp_path / "err", environ, "/here")
    assert (found and found.reason_class) == expected


def test_a_request_that_failed_before_it_went_on_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(RETRIED)
    os.utime(tmp_path / "err", (1, 1))
    (tmp_path / "out").write_text('{"type":"init"}\n')
    assert table.find_silent_limit(table.BUILTIN["gemini"], tmp_path / "out", tmp_path / "err", {}, "/") is None


@pytest.mark.parametrize("limit", ["timeout", "idle_timeout"])
def test_a_time_limit_while_an_agent_waits_for_its_provider(sessionrun: Command, limit: str) -> None:
    """That it waited for a limit says more than that its time was up."""
    (sessionrun.cwd / "sessionrun.toml").write_text(AGENT.replace('"codex"', '"gemini"'))
    prompt = f"echo '{RETRIED.strip()}' >&2; exec sleep 600"
    session = sessionrun.start([{"id": "a", "prompt": prompt, "agent": "streaming", limit: 1}])
    view = sessionrun.until(session, lambda view: view["tasks"][0]["held_until"])
    assert view["tasks"][0]["reason"].startswith("held: rate_limited: Attempt 1 failed with status 429.")


@pytest.mark.slow
def test_a_limit_that_an_agent_is_silent_about_is_held(sessionrun: Command) -> None:
    line = opencode_log(FAILED).strip()
    prompt = (
        f"mkdir -p data/opencode/log; printf '%s\\n' '{line}' > data/opencode/log/opencode.log; exec sleep 600"
    )
    env = f'env = {{XDG_DATA_HOME = "{sessionrun.cwd}/data"}}\n'
    (sessionrun.cwd / "sessionrun.toml").write_text(AGENT.replace('"codex"', '"opencode"') + env)
    session = sessionrun.start([{"id": "a", "prompt": prompt, "agent": "streaming", "timeout": 300}])
    view = sessionrun.until(session, lambda view: view["tasks"][0]["held_until"], timeout_s=120)
    assert view["tasks"][0]["reason"].startswith(f"held: usage_limit: AI_APICallError: {QUOTA}")


LAST_WORDS: dict[str, tuple[str, str, str | None]] = {
    # what it prints -> how the task ends
    "success": ('{"type":"turn.completed"}', "succeeded", "lingered"),
    "late": ('{"type":"turn.completed"}', "succeeded", "lingered"),
    "failure": ('{"type":"turn.failed","error":{"message":"odd"}}', "failed", "agent_error"),
    "none": ('{"type":"turn.started"}', "timed_out", "timeout"),
}


@pytest.mark.parametrize("case", LAST_WORDS)
def test_an_agent_that_does_not_exit_after_its_last_word_is_ended(sessionrun: Command, case: str) -> None:
    """Its output says how it ended, whatever it dies of, and it is not done again."""
    printed, outcome, reason_class = LAST_WORDS[case]
    (sessionrun.cwd / "sessionrun.toml").write_text(f"linger = {60 if case == 'late' else 0.5}\n{AGENT}")
    prompt = f"echo x >>runs; echo '{printed}'; trap 'exit 9' TERM; while :; do sleep 0.1; done"
    task = {"id": "a", "prompt": prompt, "agent": "streaming", "timeout": 2 if case in ("late", "none") else 300}
    session = sessionrun.start([task | {"retries": int(outcome == "succeeded")}])
    ended = sessionrun.wait(session)["tasks"][0]
    assert (ended["outcome"], ended["reason_class"]) == (outcome, reason_class), ended["reason"]
    if outcome == "succeeded":
        assert (sessionrun.cwd / "runs").read_text() == "x\n"
        when = "when its time was up" if case == "late" else "after 0.5 s"
        assert ended["reason"] == f"lingered: did not exit by itself; ended {when}"
        for words in (("status", session), ("results", session), ("explain", session, "a")):
            assert ended["reason"].removeprefix("lingered: ") in sessionrun(*words).stdout


def test_what_work_leaves_behind_is_told_and_is_a_failure_where_it_is_said(sessionrun: Command) -> None:
    plan = [{"prompt": "sleep 600 &"}, {"prompt": "sleep 600 &", "leftovers": "fail"}, {"prompt": "true"}]
    session = sessionrun.start([{"id": str(number), **task} for number, task in enumerate(plan)])
    told, failed, clean = sessionrun.wait(session)["tasks"]
    left = [{"command": "sleep 600", "how": "stopped by us"}]
    assert (told["outcome"], told["leftovers"]) == ("succeeded", left)
    assert (failed["outcome"], failed["reason_class"], failed["leftovers"]) == ("failed", "left_running", left)
    assert (clean["outcome"], clean["leftovers"]) == ("succeeded", None)
    for words in (("status", session), ("results", session), ("explain", session, "0")):
        assert "left running: sleep 600 (stopped by us)" in sessionrun(*words).stdout


def test_what_work_leaves_behind_is_kept_for_later_tasks_until_the_session_ends(sessionrun: Command) -> None:
    server = "sh -c 'sleep 600; echo over > over' & echo $! > pid"
    plan = [
        {"id": "server", "prompt": server, "leftovers": "keep"},
        {"id": "user", "prompt": "kill -0 $(cat pid)", "needs": "server"},
    ]
    view = sessionrun.wait(sessionrun.start(plan))
    assert [(task["outcome"], task["leftovers"]) for task in view["tasks"]] == [("succeeded", None)] * 2
    pid = int((sessionrun.cwd / "pid").read_text())
    eventually(lambda: not psutil.pid_exists(pid))
    assert not (sessionrun.cwd / "over").exists()


def test_an_agent_is_looked_at_when_it_has_been_silent_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, key = begin(make_session([TaskSpec("a", ("x",), agent="shell")])), parse_job_key("a/1/1/work/1")
    jobs = SimpleNamespace(size=0, asked=0, waits=False)

    def note_limit(*_: object) -> bool:
        jobs.asked += 1
        return bool(jobs.waits)

    state.tasks["a"].job, state.running_jobs = RunningJob(key, pid=1), 1
    monkeypatch.setattr(partners, "measure_output", lambda *_: jobs.size)
    monkeypatch.setattr(partners, "note_limit", note_limit)
    monkeypatch.setattr(partners, "is_final", lambda *_: False)
    watch = partners.SilenceWatch(Site(SessionDir(tmp_path), lambda: state.spec), tmp_path / "contact.json")
    asked_at: list[int] = []
    fired: list[tuple[int, Event]] = []
    for second in range(0, 360, 5):
        before = jobs.asked
        jobs.size += second <= 100 and second % 20 == 0
        jobs.waits = second > 300
        fired += [(second, event) for event in watch.hear(state, 0.0, float(second))]
        asked_at += [second] * (jobs.asked - before)
    assert asked_at == [130, 160, 220, 340], "each time when the silence is twice as long"
    assert fired == [(340, TimerFired(key, "silent_limit"))]
    (tmp_path / "contact.json").touch()
    assert [event for second in range(360, 960, 5) for event in watch.hear(state, 0.0, float(second))] == []
    (tmp_path / "contact.json").unlink()
    assert list(watch.hear(state, 0.0, 960.0)) == list(watch.hear(state, 0.0, 985.0)) == []
    assert list(watch.hear(state, 0.0, 990.0)) == [TimerFired(key, "silent_limit")]
    state.tasks["a"].job, state.running_jobs = None, 0
    assert (list(watch.hear(state, 0.0, 400.0)), watch.look_at) == ([], None), "a session that waits is not woken"
