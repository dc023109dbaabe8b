"""The supervisor: what its loop writes and what that adds up to, any requests, and what goes wrong with a job.

It has a real session directory, and a simulated executor where a test does not say otherwise.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
import simulation
from conftest import Command, eventually, slow
from hostile import Hostile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import AGENTS, Drive, Fate, Planned, SimulatedExecutor
from test_workspaces import Project
from test_worktrees import project

from sessionrun.agents.table import BUILTIN
from sessionrun.engine.fold import apply
from sessionrun.engine.state import State
from sessionrun.engine.status import project as project_state
from sessionrun.engine.task import TaskState
from sessionrun.model.checks import Brief, CheckReport
from sessionrun.model.errors import StoreError
from sessionrun.model.events import (
    Event,
    HoldPlaced,
    JobFinished,
    RequestReceived,
    SessionEnded,
    TaskEnded,
    TasksAdded,
)
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.places import Place
from sessionrun.model.spec import SLOT, AgentSpec, Check, Job, SessionSpec, TaskSpec, Workspace
from sessionrun.session import history
from sessionrun.session.executor import Exit, Notice
from sessionrun.session.history import begin
from sessionrun.session.maker import JobMaker, _render
from sessionrun.session.partners import Clock, Partners
from sessionrun.session.prompt import BriefProblem, read_earlier_answer
from sessionrun.session.supervisor import Supervisor
from sessionrun.session.worker import Worker, serve
from sessionrun.store.creation import create_session
from sessionrun.store.files import NotRegular
from sessionrun.store.jobfiles import ANSWER, write_record
from sessionrun.store.logs import AppendLog
from sessionrun.store.requests import load_requests, open_wake, parse_request, ring, speak
from sessionrun.store.session import SessionDir

__all__ = ["project"]


class Observed(SimulatedExecutor):
    """Also tells the test whenever the supervisor waits."""

    def __init__(self, script: Callable[[Job], Fate], on_wait: Callable[[], None]) -> None:
        super().__init__(script)
        self.started: list[Job] = []
        self._on_wait = on_wait

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        self.started += jobs
        return super().start(jobs)

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        self._on_wait()
        return super().wait(timeout_s, *wake_fds)


class FullDisk(AppendLog):
    """A journal on a disk that is full for the first few writes that come after the session began."""

    def __init__(self, path: Path, refusals: int) -> None:
        super().__init__(path)
        self.refusals = refusals

    def append(self, payloads: object) -> int:
        if self.refusals:
            self.refusals -= 1
            raise StoreError("cannot write journal: no space left on device")
        return super().append(payloads)  # type: ignore[arg-type]


def make_session(root: Path, *tasks: TaskSpec, slots: int | None = None) -> tuple[SessionDir, SessionSpec]:
    shell = AgentSpec("shell", ("/bin/sh", "{prompt_file}"), stdin="none", prompt_kind="script")
    spec = simulation.make_session(tasks, resources={} if slots is None else {SLOT: slots})
    spec = replace(spec, session_id="0b0e0f3c-0000-4000-8000-000000000001", cwd=str(root), agents={"shell": shell})
    session = SessionDir(root / "results" / f"session-{spec.session_id}")
    create_session(session, spec)
    return session, spec


def run(
    session: SessionDir,
    spec: SessionSpec,
    script: Callable[[Job], Fate],
    *,
    on_wait: Callable[[], None] = lambda: None,
    refusals: int = 0,
    state: State | None = None,
    jobs: JobMaker | None = None,
) -> tuple[State, Observed]:
    executor = Observed(script, on_wait)
    state = begin(spec) if state is None else state
    journal = FullDisk(session.journal_path, refusals)
    jobs = jobs or JobMaker(session, lambda: spec)
    clock = Clock(lambda: 1_800_000_000.0 + executor.clock(), executor.clock)
    Supervisor(session, state, journal, Partners(executor), jobs, clock).run()
    journal.close()
    return state, executor


def replay(session: SessionDir) -> State:
    state = begin(session.load_spec())
    entries, contents = session.load_journal()
    assert contents.damage_at is None
    for entry in entries:
        apply(state, entry)
    return state


def test_what_is_shown_is_always_in_the_journal(own_place: Path) -> None:
    """Whenever status.json was written, the journal on disk already tells all of it."""
    session, spec = make_session(own_place, *(TaskSpec(f"t{n}", ("true",)) for n in range(20)), slots=3)

    def compare() -> None:
        status = session.load_status()
        if status is not None:
            told = {e.event.task for e in session.load_journal()[0] if isinstance(e.event, TaskEnded)}
            assert {task["id"] for task in status["tasks"] if task["outcome"]} <= told

    run(session, spec, lambda job: Fate(duration_s=0.2), on_wait=compare)


def write_request(session: SessionDir, name: str, **record: object) -> None:
    """A request whose bell was not heard."""
    path = session.path / "requests" / f"{name}.json"
    path.write_text(json.dumps({"request_id": name, **record}))


class Leaving(SessionDir):
    """Gets one request each time an end was shown, without a bell: as if that was rung too late."""

    def __init__(self, path: Path, requests: list[dict[str, object]]) -> None:
        super().__init__(path)
        self.requests = requests
        self.ends: list[str] = []

    __slots__ = ("ends", "requests")

    def replace_status(self, status: dict[str, Any], summary: dict[str, Any], *, durable: bool) -> None:
        super().replace_status(status, summary, durable=durable)
        if status["ended_at"] is not None:
            self.ends.append(status["outcome"])
            if self.requests:
                write_request(self, f"r{len(self.requests)}", **self.requests.pop(0))


def test_a_request_that_comes_while_it_leaves_is_taken(own_place: Path) -> None:
    """Two retries and, at last, a cancel that has nothing left to hit."""
    session, spec = make_session(own_place, TaskSpec("a", ("true",)))
    retry: dict[str, object] = {"kind": "retry", "outcomes": ["failed"]}
    leaving = Leaving(session.path, [retry, retry, {"kind": "cancel"}])

    def look() -> None:
        shown = (session.load_status(), session.load_summary())
        assert [one and one["ended_at"] for one in shown] == [None, None], "it is re-opened"
        assert load_requests(session) == []

    fates = [Fate(duration_s=1, wait_status=code << 8) for code in (1, 1, 0)]
    state, executor = run(leaving, spec, lambda job: fates[job.key.attempt - 1], on_wait=look)
    assert [job.key.attempt for job in executor.started] == [1, 2, 3]
    assert leaving.ends == ["failed", "failed", "succeeded", "succeeded"]
    assert state.ended == SessionEnded("completed", "succeeded")
    assert load_requests(session) == []
    assert replay(session) == state


def test_a_request_taken_before_is_not_taken_again(own_place: Path) -> None:
    """A crash between its record and its acknowledgment leaves the file."""
    session, spec = make_session(own_place, TaskSpec("a", ("true",)))
    write_request(session, "r", kind="cancel", tasks=["a"])
    run(session, spec, lambda job: Fate())
    before = len(session.load_journal()[0])
    write_request(session, "r", kind="cancel", tasks=["a"])
    run(session, spec, lambda job: Fate(), state=replay(session))
    assert load_requests(session) == []
    assert len(session.load_journal()[0]) == before


def test_a_request_that_cannot_be_put_aside_keeps_nobody(own_place: Path) -> None:
    """It is told once, and the session ends all the same."""
    session, spec = make_session(own_place, TaskSpec("a", ("true",)))
    write_request(session, "bad", kind="frobnicate")
    in_its_place = session.path / "requests" / "bad.refused"
    in_its_place.mkdir()
    (in_its_place / "x").touch()
    state, _ = run(session, spec, lambda job: Fate(duration_s=1))
    assert state.ended is not None


def test_a_full_disk_delays_and_loses_nothing(own_place: Path) -> None:
    """While the journal cannot be written nothing starts; then everything runs once and is all recorded."""
    session, spec = make_session(own_place, *(TaskSpec(f"t{n}", ("true",)) for n in range(5)))
    state, executor = run(session, spec, lambda job: Fate(duration_s=1), refusals=4)
    assert len({job.key for job in executor.started}) == len(executor.started) == 5
    assert all(task.outcome == "succeeded" for task in state.tasks.values())
    assert replay(session) == state
    assert any(isinstance(entry.event, HoldPlaced) for entry in session.load_journal()[0])


def test_a_prompt_that_cannot_be_written_is_a_hold(own_place: Path) -> None:
    """The session directory loses its prompts folder and gets it back: the task runs after all."""
    session, spec = make_session(own_place, TaskSpec("a", ("true",)))
    (session.path / "prompts").rmdir()
    waits: list[int] = []

    def repair() -> None:
        waits.append(1)
        if len(waits) == 3:
            (session.path / "prompts").mkdir()

    state, executor = run(session, spec, lambda job: Fate(duration_s=1), on_wait=repair)
    assert state.tasks["a"].outcome == "succeeded"
    assert len(executor.started) == 1


def test_a_link_in_the_place_of_a_prompt_is_replaced_and_not_followed(own_place: Path) -> None:
    session, spec = make_session(own_place, TaskSpec("a", ("true",)))
    victim = own_place / "victim"
    victim.write_text("precious")
    prompt = session.prompt_path(JobKey("a", 1, 1, "work", 1))
    prompt.symlink_to(victim)
    state, _ = run(session, spec, lambda job: Fate(duration_s=1))
    assert (state.tasks["a"].outcome, victim.read_text()) == ("succeeded", "precious")
    assert prompt.read_text() == "true" and not prompt.is_symlink()


def test_it_leaves_when_its_directory_is_removed(own_place: Path) -> None:
    """What runs may end; without the directory nothing else can begin, and nobody could cancel it."""
    session, spec = make_session(own_place, TaskSpec("a", ("true",)), TaskSpec("b", ("true",)), slots=1)
    state, executor = run(
        session, spec, lambda job: Fate(duration_s=1), on_wait=lambda: shutil.rmtree(session.path, True)
    )
    assert [job.key.task for job in executor.started] == ["a"]
    assert (state.tasks["a"].outcome, state.tasks["b"].outcome, state.ended) == ("succeeded", None, None)


def report(job: Job, *, passes: bool) -> Fate:
    """The end of a job; a check leaves a report."""
    if job.key.phase == "check":
        write_record(Path(job.stdout).with_name(ANSWER), CheckReport(problem=None if passes else "red"))
    return Fate(wait_status=0 if passes else 1 << 8)


def test_rounds_and_attempts_keep_the_outputs_of_earlier_ones(own_place: Path) -> None:
    """A failed check sends the task back to work; older outputs are put away, the prompt stays a script."""
    check = Check(("test -f ready",))
    session, spec = make_session(own_place, TaskSpec("a", ("echo work",), check=check, rounds=2, retries=1))
    jobs: list[Job] = []

    def script(job: Job) -> Fate:
        jobs.append(job)
        Path(job.stdout).write_text(f"{job.key.phase} {job.key.attempt}.{job.key.round}\n")
        return report(job, passes=job.key.phase == "work" or job.key.attempt == 2)

    state, _ = run(session, spec, script)
    keys = [(job.key.phase, job.key.attempt, job.key.round) for job in jobs]
    assert keys == [(phase, *turn) for turn in ((1, 1), (1, 2), (2, 1)) for phase in ("work", "check")]
    assert state.tasks["a"].outcome == "succeeded" and state.tasks["a"].check_passed is True
    assert session.output_path("a").read_text() == "work 2.1\n"
    for turn in (1, 2):
        older = session.path / "jobs" / "a" / f"a1-r{turn}-work"
        assert (older / "stdout").read_text() == f"work 1.{turn}\n"
    second = jobs[2]
    assert Path(second.argv[1]).read_text() == "echo work"
    assert Path(second.env["SESSIONRUN_FEEDBACK"]).read_text() == "check 1.1\n"


# --- what goes wrong with one job, its files or our own code for it, is that job's failure ---

PLACE = Place(branch="main-task-a", worktree="/w/a", base_commit="0" * 40)
Damage = Callable[[Path], object]


def instead(plant: Damage) -> Damage:
    """Something else lies where the file was."""

    def damage(path: Path) -> None:
        path.unlink()
        plant(path)

    return damage


DAMAGES: dict[str, Damage] = {
    "no JSON": lambda path: path.write_bytes(b"{"),
    "no object": lambda path: path.write_bytes(b"[]"),
    "of other types": lambda path: path.write_bytes(b'{"worktree":7,"written":7}'),
    "a link": instead(lambda path: os.symlink("/dev/zero", path)),
    "a FIFO": instead(os.mkfifo),
    "a directory": instead(os.mkdir),
    "gone": instead(lambda path: None),
    "names no worktree": lambda path: path.write_bytes(b"{}"),  # else the task would run in the user's checkout
}


# --- judged ---


WORKTREE = TaskSpec("a", ("x",), workspace=Workspace("worktree"))
ANSWERED: dict[Phase, tuple[TaskSpec, Place | None, str]] = {
    "prepare": (WORKTREE, None, "workspace_failed: its answer cannot be used: "),
    "release": (WORKTREE, PLACE, "release_failed: its answer cannot be used: "),
    "check": (TaskSpec("a", ("x",), brief=Brief(outputs=("a.py",))), None, "check_failed: its report "),
}


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        (phase, kind)
        for phase in ANSWERED
        for kind in DAMAGES
        if kind != "names no worktree" or phase == "prepare"  # the others need not name one
    ],
)
def test_a_job_whose_answer_cannot_be_used_has_failed(phase: Phase, kind: str, own_place: Path) -> None:
    """It ended well, and its answer was damaged since.  A RELEASE leaves the worktree."""
    task, place, says = ANSWERED[phase]
    key = JobKey("a", 1, 1, phase, 1)
    session, spec = make_session(own_place, task)
    spec = replace(spec, agents={"shell": AgentSpec("shell", ("x",))})  # a script is not shown a brief
    answer = session.make_job_path(key) / ANSWER
    answer.write_bytes(orjson.dumps(PLACE))
    DAMAGES[kind](answer)
    (verdict,) = JobMaker(session, lambda: spec).judge(TaskState(task, 1, place=place), Exit(key, 0))
    assert isinstance(verdict, JobFinished)
    assert (verdict.verdict, verdict.reason_class) == ("failed", says.partition(":")[0])
    assert verdict.reason is not None and verdict.reason.startswith(says)
    assert verdict.place == (place and replace(place, kept=verdict.reason))


# --- our own code ---


class Faulty(JobMaker):
    """Raises for one job, when it is built or when it is judged."""

    fault: tuple[str, str, Exception] = ("", "", Exception())

    def build(self, key: JobKey, whole: State) -> Job:
        self._raise("build", key)
        return super().build(key, whole)

    def judge(self, state: TaskState, ended: Exit) -> list[Event]:
        self._raise("judge", ended.key)
        return super().judge(state, ended)

    def _raise(self, where: str, key: JobKey) -> None:
        if (where, key.task) == self.fault[:2]:
            raise self.fault[2]


def run_faulty(own_place: Path, where: str, error: Exception) -> tuple[State, SessionDir]:
    """Three tasks, of which `b` meets the error; without `where` it fails, and its next folder cannot be made."""
    session, spec = make_session(own_place, *(TaskSpec(name, ("true",), retries=1) for name in "abc"))
    if not where:
        (session.path / "jobs").mkdir()
        (session.path / "jobs" / "b").touch()
    fates = {"b": Fate(wait_status=0 if where else 256)}
    comes_to_an_end = partial(next, iter([None] * 1000))
    jobs = Faulty(session, lambda: spec)
    jobs.fault = (where, "b", error)
    state, _ = run(session, spec, lambda job: fates.get(job.key.task, Fate()), on_wait=comes_to_an_end, jobs=jobs)
    return state, session


@pytest.mark.parametrize("where", ["build", "judge"])
def test_a_bug_met_by_one_job_ends_that_job(
    own_place: Path, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    state, session = run_faulty(own_place, where, KeyError("surprise"))
    ends = {task.spec.id: (task.outcome, task.reason_class) for task in state.tasks.values()}
    assert ends == {"a": ("succeeded", None), "b": ("failed", "internal"), "c": ("succeeded", None)}
    assert state.tasks["b"].reason == "internal: KeyError: 'surprise' (see supervisor.log)"
    logged = capfd.readouterr().err
    assert "b/1/1/work/1" in logged and "Traceback" in logged and "raise self.fault[2]" in logged
    assert replay(session) == state


@pytest.mark.parametrize("where", ["", "build"])
def test_what_lies_in_the_way_of_one_job_fails_it(own_place: Path, where: str) -> None:
    state, _ = run_faulty(own_place, where, PermissionError(13, "Permission denied"))
    reasons = {task.spec.id: task.reason_class for task in state.tasks.values()}
    assert reasons == {"a": None, "b": "infra", "c": None}


def test_a_brief_that_cannot_be_shown_starts_nothing_and_costs_nothing(own_place: Path) -> None:
    session, spec = make_session(own_place, TaskSpec("a", ("x",), brief=Brief(context=("gone",))))
    state, executor = run(session, replace(spec, agents={"shell": AgentSpec("a", ("x",))}), lambda job: Fate())
    said, used = state.tasks["a"].reason, state.usage_by_model
    assert (said, executor.started, used) == ("bad_context: gone: No such file or directory", [], {})


def test_what_an_earlier_attempt_printed_is_not_shown_of_one_whose_brief_cannot_be_shown(own_place: Path) -> None:
    session, spec = make_session(own_place, TaskSpec("a", ("x",), brief=Brief(context=("gone",))))
    spec = replace(spec, agents={"shell": AgentSpec("shell", ("x",))})
    session.output_path("a").write_text("of the first")
    state, key = begin(spec), JobKey("a", 2, 1, "work", 1)
    with pytest.raises(BriefProblem):
        JobMaker(session, lambda: spec).build(key, state)
    assert not session.output_path("a").exists()
    assert (session.job_path(key._replace(attempt=1)) / "stdout").read_text() == "of the first"
    asked = TaskState(spec.tasks[0], 1, attempt=3, follow_ups=("more", "more"))
    assert read_earlier_answer(session, asked) == "of the first", "it is what the next follow-up is told"


@pytest.mark.parametrize("where", ["build", "judge"])
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), SystemExit()])
def test_what_is_no_jobs_fault_passes(own_place: Path, where: str, error: Exception) -> None:
    with pytest.raises(type(error)):
        run_faulty(own_place, where, error)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_an_answer_that_cannot_be_opened_leaves_no_file_open(own_place: Path) -> None:
    raw = own_place / "raw"
    raw.write_text("{}\n")
    (own_place / "answer").mkdir()
    with pytest.raises(NotRegular) as told:
        _render(BUILTIN["claude"], raw, own_place / "answer")
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert told.value.filename == str(own_place / "answer") and str(raw) not in opened


# --- real processes ---


@pytest.mark.slow
def test_a_damaged_claim_keeps_the_worktree_of_its_task_alone(sessionrun: Command, project: Project) -> None:
    sessionrun.cwd = project.top
    claim = f"{sessionrun.results}/session-$SESSIONRUN_SESSION/jobs/a/a1-r1-prepare/claim.json"
    prompts = [{"id": "a", "prompt": f"echo a >made.txt; : >{claim}"}, {"id": "b", "prompt": "echo b >made.txt"}]
    a, b = sessionrun.wait(sessionrun.start({"prompts": prompts}, "--worktree"))["tasks"]
    assert (a["outcome"], b["outcome"]) == ("succeeded", "succeeded")
    assert a["worktree_kept"].startswith("release_failed: ") and "claim.json" in a["worktree_kept"]
    assert Path(a["worktree"], "made.txt").read_text() == "a\n"
    assert (b["worktree"], project.run("show", "main-task-b:made.txt")) == (None, "b")


# --- whatever lies among a session's requests, it goes on, ends, and answers the truth ---


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.randoms(use_true_random=False))
def test_what_is_taken_can_be_folded_again_and_the_session_ends(random: Random) -> None:
    tasks = [TaskSpec(f"t{number}", ("x",), agent="one", needs=("t0",) * (number == 3)) for number in range(4)]
    spec = simulation.make_session(tasks, resources={"slot": 2})
    hostile = Hostile(random, [task.id for task in tasks], sorted(AGENTS))
    planned: list[Planned] = [(40.0, RequestReceived("last", "cancel", now=True))]
    for _ in range(10):
        record = hostile.make()
        try:
            request = parse_request(orjson.loads(hostile.spoil(record)), str(record["request_id"]))
        except ValueError:
            continue
        planned.append((random.randrange(20), request))
    fates = [Fate("exits", random.randrange(5), random.choice((0, 0, 256, 9))) for _ in range(3)]
    drive = Drive(spec, SimulatedExecutor(lambda job: fates[job.key.attempt % 3]), planned, replays=True)
    state = drive.run().state
    assert state.ended is not None and state.free == state.spec.resources
    assert drive.replayed is not None and project_state(state) == project_state(drive.replayed)


@pytest.mark.parametrize("many", [200, *slow(5000)])
def test_a_running_session_outlives_whatever_is_left_among_its_requests(sessionrun: Command, many: int) -> None:
    """It ends, each request has its answer, and each answer is true."""
    marks, names = sessionrun.cwd / "marks", [f"t{number}" for number in range(10)]
    marks.mkdir()
    own = f"{marks}/$SESSIONRUN_TASK"
    script = f"echo begun >> {own}; sleep 0.2; [ -e {marks}/go ] || exit 4; echo done >> {own}"
    tasks = [{"id": name, "prompt": script} for name in names]
    anchor = {"id": "anchor", "prompt": f"until [ -e {marks}/go ]; do sleep 0.1; done"}  # it goes on meanwhile
    session_id = sessionrun.start({"prompts": [anchor, *tasks], "max_parallel": 3})
    session = SessionDir(sessionrun.directory(session_id))
    random = Random(os.environ.get("SEED", "37"))
    hostile = Hostile(random, names, ["shell"])
    odd = session.path / "requests" / os.fsdecode(b"\xff.json")
    odd.write_bytes(b'{"request_id": "x"}')
    told = [(odd.stem, True), *(_leave(session, hostile, random) for _ in range(many))]
    eventually(lambda: ring(session) and not any((session.path / "requests").glob("*.json")), timeout_s=300)
    (marks / "go").touch()
    sessionrun("cancel", session_id, "--now")
    eventually(lambda: not session.is_alive())
    state, contents = history.replay(session)
    assert contents.damage_at is None and state.ended is not None
    assert state.epoch == 1 and "Traceback" not in session.log_path.read_text(errors="replace")
    _compare_answers(session, told, [entry.event for entry in session.load_journal()[0]])
    shown = {task["id"]: task for task in sessionrun.load("status", session_id)["tasks"]}
    assert {name: task["outcome"] for name, task in shown.items()} == {
        name: task.outcome for name, task in state.tasks.items()
    }
    for name in names:
        if state.tasks[name].follow_ups or state.tasks[name].spec.prompts != (script,):
            continue  # a request gave it another script: `a=b` succeeds without a word
        said = (marks / name).read_text() if (marks / name).exists() else ""
        assert shown[name]["outcome"] != "succeeded" or "done" in said, f"{name} is told as done, and is not"
        assert shown[name]["outcome"] != "skipped" or not said or shown[name]["attempt"] > 1, name


def _leave(session: SessionDir, hostile: Hostile, random: Random) -> tuple[str, bool]:
    """Leave a request, or something else in its place; its id, and whether it lies in a file."""
    record = hostile.make()
    name, content = str(record["request_id"]), hostile.spoil(record)
    path = session.path / "requests" / f"{name}.json"
    chance = random.random()
    if chance < 0.1 and len(content) < 4000 and (fd := open_wake(session)) is not None:
        speak(fd, b"\n%b\n" % content)
        os.close(fd)
        return name, False
    if chance < 0.12 and not os.path.lexists(path):
        random.choice((os.mkdir, os.mkfifo, lambda place: os.symlink("/dev/zero", place)))(path)
    else:
        draft = session.path / "requests" / f"{name}.draft"
        draft.write_bytes(content if chance < 0.99 else content + b" " * (9 << 20))
        try:
            os.replace(draft, path)
        except OSError:
            draft.unlink()  # a directory lies there
    ring(session)
    return name, True


def _compare_answers(session: SessionDir, told: Sequence[tuple[str, bool]], events: Sequence[object]) -> None:
    """Each request is in the journal once, or refused; one whose id was used again may be both."""
    taken = Counter(event.request_id for event in events if isinstance(event, (RequestReceived, TasksAdded)))
    refused = {path.stem for path in (session.path / "requests").glob("*.refused")}
    assert max(taken.values()) == 1
    counts, in_files = Counter(name for name, _ in told), {name for name, in_file in told if in_file}
    for name, count in counts.items():
        assert name not in in_files or name in taken or name in refused, f"{name} has no answer"
        assert count > 1 or not (name in taken and name in refused), f"{name} has two answers"
    log = session.log_path.read_text(errors="replace")
    for stem in refused:  # behind a name of which something else was put aside before stands an inode
        name = stem if stem in counts else stem.rpartition("-")[0]
        assert f"request {f'{name}.json'!r} is refused: " in log, f"{stem} is refused without a reason"


# --- its threads: what they are asked they do in that order, what they tell wakes it, and they end in time ---


def is_ready(worker: Worker[int, int]) -> bool:
    return bool(select.select([worker.fd], [], [], 0)[0])


def test_what_it_is_asked_it_does_in_order_and_a_descriptor_says_that_there_is_news() -> None:
    worker: Worker[int, int] = Worker("w", serve(lambda asked: [asked, -asked]))
    assert not is_ready(worker) and worker.take() == []
    for number in range(1, 4):
        worker.ask(number)
    worker.stop(60)
    assert is_ready(worker) and worker.take() == [1, -1, 2, -2, 3, -3]
    assert not is_ready(worker) and worker.take() == []
    worker.ask(4)  # it lives again
    worker.stop(60)
    assert worker.take() == [4, -4] and "w" not in {thread.name for thread in threading.enumerate()}


def serve_after(goes_on: threading.Event) -> Callable[[Worker[int, int]], None]:
    """Answers with what is asked, once that is set."""

    def answer(asked: int) -> Iterator[int]:
        goes_on.wait()
        yield asked

    return serve(answer)


def test_its_end_is_waited_for_no_longer_than_the_limit_and_what_it_is_asked_then_it_does() -> None:
    goes_on = threading.Event()
    worker: Worker[int, int] = Worker("w", serve_after(goes_on))
    worker.ask(1)
    worker.stop(0.01)
    worker.ask(2)
    goes_on.set()
    worker.stop(60)
    assert worker.take() == [1, 2]


def test_one_that_fails_says_so_and_begins_no_more() -> None:
    worker: Worker[int, int] = Worker("w", serve(lambda asked: [1 // asked]))
    worker.ask(0)
    assert select.select([worker.fd], [], [], 60)[0]
    worker.ask(1)
    worker.stop(60)
    assert (worker.fault or "").startswith("ZeroDivisionError") and worker.take() == []
