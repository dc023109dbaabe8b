"""The loop with a real session directory and a simulated executor: what is written and what it adds up to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simulated import Fate, SimulatedExecutor

from sessionrun.engine.fold import apply
from sessionrun.engine.state import State
from sessionrun.model.checks import CheckReport
from sessionrun.model.errors import StoreError
from sessionrun.model.events import HoldPlaced, SessionEnded, TaskEnded
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT, AgentSpec, Check, Job, SessionSpec, TaskSpec
from sessionrun.session.executor import Notice
from sessionrun.session.history import begin
from sessionrun.session.maker import JobMaker
from sessionrun.session.partners import Clock, Partners
from sessionrun.session.supervisor import Supervisor
from sessionrun.store.creation import create_session
from sessionrun.store.jobfiles import ANSWER, write_record
from sessionrun.store.logs import AppendLog
from sessionrun.store.requests import load_requests, send_request
from sessionrun.store.session import SessionDir


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
    spec = SessionSpec(
        session_id="0b0e0f3c-0000-4000-8000-000000000001",
        created_at="2026-01-01T00:00:00.000Z",
        dialect="prompts",
        source="test",
        cwd=str(root),
        agent="shell",
        agents={"shell": AgentSpec("shell", ("/bin/sh", "{prompt_file}"), stdin="none", prompt_kind="script")},
        tasks=tasks,
        resources={} if slots is None else {SLOT: slots},
    )
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
    state, executor = run(
        leaving, spec, lambda job: Fate(duration_s=1, wait_status=0 if job.key.attempt == 3 else 1 << 8)
    )
    assert [job.key.attempt for job in executor.started] == [1, 2, 3]
    assert leaving.ends == ["failed", "failed", "succeeded", "succeeded"]
    assert state.ended == SessionEnded("completed", "succeeded")
    assert load_requests(session) == []
    assert replay(session) == state


def test_an_ended_session_is_re_opened_by_a_request_that_waited(own_place: Path) -> None:
    """What is shown goes from ended to running and to ended; its older entries stay as they are."""
    session, spec = make_session(own_place, TaskSpec("a", ("true",)), TaskSpec("b", ("true",), needs=("a",)))
    run(session, spec, lambda job: Fate(wait_status=1 << 8))
    before = session.journal_path.read_bytes()
    first = session.load_status()
    assert first is not None and first["ended_at"] is not None
    send_request(session, {"kind": "retry"})
    seen: list[tuple[object, object]] = []

    def look() -> None:
        status, summary = session.load_status(), session.load_summary()
        assert status is not None and summary is not None
        seen.append((status["ended_at"], summary["ended_at"]))
        assert load_requests(session) == []

    state, executor = run(session, spec, lambda job: Fate(duration_s=1), on_wait=look, state=replay(session))
    assert [(job.key.task, job.key.attempt) for job in executor.started] == [("a", 2), ("b", 1)]
    assert seen and set(seen) == {(None, None)}
    assert state.ended == SessionEnded("completed", "succeeded")
    assert session.journal_path.read_bytes().startswith(before)
    last = session.load_status()
    assert last is not None and last["ended_at"] > first["ended_at"]
    assert last["started_at"] == first["started_at"]


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
