"""`resume`: a session of which no process is left goes on, and says truly what became of what had been running.

An answer that is whole counts, also when nobody saw how its agent ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from conftest import Command, eventually, is_gone, kill_sessions
from forging import forge, set_words
from test_supervisor import make_session

from sessionrun.agents.table import read_result
from sessionrun.client import ask as control
from sessionrun.engine.task import TaskState
from sessionrun.model.events import JobFinished, JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import AgentSpec, TaskSpec
from sessionrun.session import launch, main
from sessionrun.session.maker import JobMaker
from sessionrun.store import locks
from sessionrun.store.logs import EXITED, fold_ledger, make_record, read_log
from sessionrun.store.processes import Identity, start_time
from sessionrun.store.seal import seal
from sessionrun.store.session import SessionDir

GATE = "while ! [ -e {0} ]; do sleep 0.05; done"
PLAN = {
    "max_parallel": 2,
    "prompts": [
        {"id": "done", "prompt": "exit 7"},
        {"id": "lives", "prompt": f"echo begun >>lives; {GATE.format('go')}; echo over"},
        {"id": "dies", "prompt": "echo begun >>dies; sleep 600"},
        {"id": "waits", "prompt": "echo waits >>waits; echo $GREETING", "needs": ["done"]},
        {"id": "next", "prompt": "echo next >>next; echo $GREETING"},
    ],
}


@pytest.fixture
def crashed(sessionrun: Command) -> str:
    """One task has failed, two run on without anybody, one has not begun."""
    session_id = sessionrun.start(PLAN)
    sessionrun.until(session_id, lambda view: (view["completed"], view["running"]) == (2, 2))
    sessionrun.kill_chain(session_id)
    return session_id


def outcomes(view: dict[str, Any]) -> dict[str, str]:
    return {task["id"]: task["outcome"] for task in view["tasks"]}


def test_it_goes_on_and_nothing_is_done_twice(sessionrun: Command, crashed: str) -> None:
    dies = sessionrun.status(crashed)["tasks"][2]["pid"]
    os.killpg(dies, signal.SIGKILL)
    done = sessionrun("resume", crashed, env={"GREETING": "hello"})
    assert (done.returncode, done.stdout) == (0, f"{crashed[:8]}: goes on\n"), done.stderr
    sessionrun.until(crashed, lambda view: outcomes(view)["dies"] == "lost")
    (sessionrun.cwd / "go").touch()
    view = sessionrun.wait(crashed)
    expected = {"done": "failed", "lives": "lost", "dies": "lost", "waits": "skipped", "next": "succeeded"}
    assert outcomes(view) == expected
    assert (view["status"], view["outcome"], view["epoch"]) == ("completed", "failed", 2)
    assert view["tasks"][0]["exit_code"] == 7
    for name in ("lives", "dies", "next"):
        assert len((sessionrun.cwd / name).read_text().splitlines()) == 1
    directory = sessionrun.directory(crashed)
    assert (directory / "task-lives.txt").read_text() == "over\n"  # its end was seen, its exit code was not
    assert (directory / "task-next.txt").read_text() == "hello\n"  # the environment is that of `resume`
    eventually(lambda: not SessionDir(directory).is_alive())


def test_after_a_restart_of_the_machine(sessionrun: Command, crashed: str) -> None:
    """The processes of another boot are not looked for, whoever has their pids; a code from before it counts.

    The power went between the exit of `dies` and the word that nothing of its tree is left.
    """
    session = SessionDir(sessionrun.directory(crashed))
    jobs = fold_ledger(read_log(session.ledger_path).payloads).jobs.values()
    code = make_record(EXITED, "dies/1/1/work/1", 9 << 8)
    forge(session.ledger_path, set_words(b"K", {3: b"another-boot"}), code)
    assert sessionrun("resume", crashed).returncode == 0
    view = sessionrun.wait(crashed)
    expected = {"lives": "interrupted", "dies": "failed", "next": "succeeded"}
    assert {name: outcomes(view)[name] for name in expected} == expected
    assert view["tasks"][1]["reason"] == "interrupted: the machine was restarted while it ran"
    assert view["tasks"][2]["exit_code"] == 9
    for pid in [job.pid for job in jobs if job.pid is not None and job.wait_status is None]:
        os.kill(pid, 0)  # they were left alone
        os.killpg(pid, signal.SIGKILL)


def test_an_end_that_was_recorded_and_not_published_is_published(sessionrun: Command) -> None:
    """All processes were killed in between: verbs see the end in the journal, other readers see status.json."""
    session = SessionDir(sessionrun.directory(sessionrun.finished({"prompts": ["true"]})))
    journal, status = session.journal_path.read_bytes(), json.loads(session.status_path.read_bytes())
    session.status_path.write_bytes(seal({**status, "ended_at": None, "status": "running", "outcome": None}))
    done = sessionrun("resume", session.session_id)
    assert (done.returncode, done.stdout) == (0, f"{session.session_id[:8]}: has ended (succeeded)\n")
    eventually(lambda: not session.is_alive())
    published = session.load_status()
    assert published is not None
    assert (published["ended_at"], published["outcome"]) == (status["ended_at"], "succeeded")
    assert journal.count(b'"SessionEnded"') == session.journal_path.read_bytes().count(b'"SessionEnded"') == 1


DAMAGED = """
import os, sys
class Damage:
    def find_spec(self, name, *_):
        if name == "sessionrun.session.partners" and os.path.exists(os.environ["DAMAGED"]):
            raise ImportError("it is damaged")
sys.meta_path.insert(0, Damage())
"""


@pytest.mark.long
def test_when_each_supervisor_fails_the_session_is_interrupted_and_can_be_resumed(
    sessionrun: Command, tmp_path: Path
) -> None:
    """The installation is damaged while a job runs, and mended later."""
    damaged = tmp_path / "damaged"
    (tmp_path / "sitecustomize.py").write_text(DAMAGED)
    script = f"echo x >>runs; {GATE.format('go')}; exit 7"
    (sessionrun.cwd / "plan.json").write_text(
        json.dumps({"max_parallel": 1, "prompts": [{"id": "runs", "prompt": script}, "echo x >>next"]})
    )
    env = {"PYTHONPATH": str(tmp_path), "DAMAGED": str(damaged)}
    session_id = sessionrun("-q", "--agent", "shell", "plan.json", env=env, real=True).stdout.strip()
    sessionrun.until(session_id, lambda view: view["tasks"][0]["pid"])
    damaged.touch()
    os.kill(sessionrun.supervisor(session_id), signal.SIGKILL)
    log = sessionrun.directory(session_id) / "supervisor.log"
    eventually(lambda: log.read_text().count("ImportError: it is damaged") >= 9)
    assert SessionDir(log.parent).is_alive()  # what runs is not stopped
    (sessionrun.cwd / "go").touch()
    waited = sessionrun("wait", session_id)
    reason = f"came to nothing, and the last one ended with exit code 1; what they printed is in {log}"
    assert (waited.returncode, reason in waited.stderr) == (4, True), waited
    assert sessionrun.status(session_id)["status"] == "interrupted"
    assert reason in sessionrun("explain", session_id).stdout + sessionrun("doctor", session_id).stdout
    damaged.unlink()
    assert sessionrun("resume", session_id).returncode == 0
    tasks = sessionrun.wait(session_id)["tasks"]
    assert [(task["outcome"], task["exit_code"]) for task in tasks] == [("failed", 7), ("succeeded", 0)]
    assert [(sessionrun.cwd / name).read_text() for name in ("runs", "next")] == ["x\n", "x\n"]


def test_whoever_has_the_pid_now_is_left_alone(sessionrun: Command, crashed: str) -> None:
    """A daemon: its session's leader, which had got the job's pid, is gone as well."""
    session = SessionDir(sessionrun.directory(crashed))
    daemon = subprocess.run(
        ["setsid", "sh", "-c", "sleep 600 >/dev/null & echo $$ $!"], stdout=subprocess.PIPE, check=True
    )
    leader, pid = map(int, daemon.stdout.split())
    job = fold_ledger(read_log(session.ledger_path).payloads).jobs["dies/1/1/work/1"].pid or 0
    assert job
    forge(session.ledger_path, lambda payload: payload.replace(b" %d " % job, b" %d " % leader))
    os.killpg(job, signal.SIGKILL)
    try:
        assert sessionrun("resume", crashed).returncode == 0
        sessionrun.until(crashed, lambda view: outcomes(view)["dies"] == "lost")
        assert not is_gone(psutil.Process(pid))
    finally:
        os.kill(pid, signal.SIGKILL)
        sessionrun("cancel", crashed, "--now")


@pytest.mark.slow
def test_a_session_that_is_moved_while_it_runs(sessionrun: Command) -> None:
    """What runs ends and is recorded, nothing more begins, and at its new place it can be gone on with."""
    plan = {
        "max_parallel": 1,
        "prompts": [
            {"id": "runs", "prompt": f"touch begun; {GATE.format('go')}; echo over; exit 3"},
            {"id": "waits", "prompt": "echo waits >>waits"},
        ],
    }
    session_id = sessionrun.start(plan)
    sessionrun.until(session_id, lambda view: view["tasks"][0]["pid"])
    eventually((sessionrun.cwd / "begun").exists)  # else its script is not open yet
    moved = sessionrun.cwd / "moved"
    sessionrun.results.rename(moved)
    try:
        away = Command(sessionrun.cwd, moved)
        where = ("--results-dir", "moved")
        assert away.load("status", session_id, *where)["status"] == "running"
        (sessionrun.cwd / "go").touch()
        assert sessionrun("wait", session_id, *where).returncode == 4
        view = away.load("status", session_id, *where)
        assert (view["status"], outcomes(view)) == ("interrupted", {"runs": "failed", "waits": None})
        assert view["tasks"][0]["exit_code"] == 3
        assert "is not there any more" in view["tasks"][1]["reason"]
        assert not sessionrun.results.exists()
        assert sessionrun("resume", session_id, *where).stdout.endswith("goes on\n")
        sessionrun("wait", session_id, *where)
        assert outcomes(away.load("status", session_id, *where)) == {"runs": "failed", "waits": "succeeded"}
        assert (sessionrun.cwd / "waits").read_text() == "waits\n"
        assert (moved / f"session-{session_id}" / "task-runs.txt").read_text() == "over\n"
    finally:
        kill_sessions(moved)


def test_a_journal_of_a_newer_version_is_not_gone_on_with(sessionrun: Command, crashed: str) -> None:
    session = SessionDir(sessionrun.directory(crashed))
    records = [orjson.loads(payload) for payload in read_log(session.journal_path).payloads]
    begun = next(record for record in records if record["ev"] == "SupervisorStarted")
    newer = {**begun, "seq": records[-1]["seq"] + 1, "version": "99.0", "journal_version": 2}
    forge(session.journal_path, lambda payload: payload, orjson.dumps(newer))
    for words in (("resume", crashed), ("status", crashed)):
        done = sessionrun(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
        assert "written by sessionrun 99.0: use that one" in done.stderr
    assert not session.is_alive()


def test_a_session_that_ended_since_the_caller_looked_is_not_started_again(
    sessionrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = sessionrun.start(["true"])
    ended = sessionrun.wait(session_id)
    session = SessionDir(sessionrun.directory(session_id))
    eventually(lambda: not session.is_alive())
    monkeypatch.setattr(control, "load_view", lambda session: {**ended, "ended_at": None})
    starts = session.ledger_path.read_bytes()
    assert control.resume(session) is False
    assert session.ledger_path.read_bytes() == starts and not session.is_alive()


def test_a_process_that_dies_is_not_taken_for_one_that_lives(
    sessionrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SessionDir(sessionrun.directory(sessionrun.finished({"prompts": ["true"]})))
    eventually(lambda: not session.is_alive())
    dying = [locks.hold(session.path / "lock")]
    started: list[object] = []

    def start(session: SessionDir, lock_fd: int, **_: object) -> None:
        os.close(lock_fd)
        started.append(session.held_locks())

    def end(_: float) -> None:
        os.close(dying.pop() or -1)

    monkeypatch.setattr(launch, "start_detached", start)
    monkeypatch.setattr(time, "sleep", end)
    assert launch.resume(session)
    assert started == [("root.lock",)]


def test_a_readers_probe_is_not_taken_for_life(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody reads while we resume: the probe's shared lock is there when we try, and gone soon after."""
    session = SessionDir(sessionrun.directory(sessionrun.finished({"prompts": ["true"]})))
    hold = locks.hold

    def hold_beside_a_probe(path: Path, timeout_s: float = 0.0) -> int | None:
        probe = os.open(path, os.O_RDONLY)
        fcntl.flock(probe, fcntl.LOCK_SH)
        threading.Timer(0.05, os.close, [probe]).start()
        return hold(path, timeout_s=timeout_s)

    monkeypatch.setattr(locks, "hold", hold_beside_a_probe)
    monkeypatch.setattr(launch, "start_detached", lambda session, lock_fd, new: os.close(lock_fd))
    assert launch.resume(session)


def test_a_supervisor_does_not_leave_because_its_keeper_dies_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a root it is the last of its session: if it left for a lock that is about to go, nothing went on."""
    session = SessionDir(tmp_path)
    keeper = subprocess.Popen(["sleep", "600"])
    keeper_lock, ours = locks.hold(tmp_path / "keeper.lock"), locks.hold(tmp_path / "lock")
    executed: list[str] = []

    def end(_: float) -> None:
        keeper.kill()
        keeper.wait()
        os.close(keeper_lock or -1)

    def execute(path: str, argv: list[str], environ: object) -> None:
        executed.extend(argv)
        raise SystemExit(75)

    monkeypatch.setattr(time, "sleep", end)
    monkeypatch.setattr(os, "execve", execute)
    with pytest.raises(SystemExit, match="75"):
        main._leave_or_lead(session, ours or -1, Identity(keeper.pid, start_time(keeper.pid) or 0))
    root_lock = int(executed[executed.index(str(tmp_path)) + 1])
    os.close(root_lock)  # the program would have it; jobs of tests that follow must not


def test_a_supervisor_that_a_living_keeper_gave_up_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper_lock, ours = locks.hold(tmp_path / "keeper.lock"), locks.hold(tmp_path / "lock")
    monkeypatch.setattr(main, "DEATH_TIMEOUT_S", 0.0)
    with pytest.raises(SystemExit) as left:
        main._leave_or_lead(SessionDir(tmp_path), ours or -1, Identity(os.getpid(), start_time(os.getpid()) or 0))
    assert left.value.code == 0
    os.close(keeper_lock or -1)


# --- agents whose end nobody saw ---

OUTCOMES = Path(__file__).parents[1] / "data" / "outcomes"
SAMPLES = {
    "claude": OUTCOMES / "claude" / "2.1.329" / "ok.raw",
    "codex": OUTCOMES / "codex" / "0.169.0" / "ok.raw",
}
AGENT = """
[agents.fake]
argv = ["/bin/sh", "{script}"]
output = "{output}"
"""
SCRIPT = """echo begun >>{root}/begun
while ! [ -e {root}/said ]; do sleep 0.05; done
cat {root}/said; echo $$ >{root}/pid.new; mv {root}/pid.new {root}/pid
exec sleep 600
"""


def cut(said: bytes) -> bytes:
    """The stream without the end of its last event."""
    return said[: said.rstrip().rindex(b"}")]


@pytest.mark.parametrize(
    ("output", "lives"),
    [("claude", False), ("claude", True), pytest.param("codex", False, marks=pytest.mark.slow)],
)
def test_a_whole_answer_is_a_success_once_its_agent_is_gone(sessionrun: Command, output: str, lives: bool) -> None:
    """One that lives has reported its success, and may still do something: its end counts, not its words."""
    sample, root, pid = SAMPLES[output], sessionrun.cwd, sessionrun.cwd / "pid"
    (root / "agent.sh").write_text(SCRIPT.format(root=root))
    (root / "sessionrun.toml").write_text(AGENT.format(script=root / "agent.sh", output=output))
    shutil.copy(sample, root / "said")
    task: dict[str, Any] = {"id": "a", "prompt": "do it", "check": "touch checked"}
    session_id = sessionrun.start({"prompts": [task]}, "--agent", "fake")
    eventually(pid.exists)
    sessionrun.until(session_id, lambda view: view["tasks"][0]["pid"])
    sessionrun.kill_chain(session_id)
    if not lives:
        os.kill(int(pid.read_text()), signal.SIGKILL)
        (task,) = sessionrun.until(session_id, lambda view: view["tasks"][0]["status"] == "completed")["tasks"]
        assert task["outcome"] == "lost"
        assert task["reason"].endswith("its answer is complete, and resume counts it as a success")
    assert sessionrun("resume", session_id).returncode == 0
    if lives:
        (task,) = sessionrun.until(session_id, lambda view: view["epoch"] == 2)["tasks"]
        entries, _ = SessionDir(sessionrun.directory(session_id)).load_journal()
        assert task["status"] == "running"
        assert not any(isinstance(entry.event, (JobFinished, JobLost)) for entry in entries)
        os.kill(int(pid.read_text()), signal.SIGKILL)
    (task,) = sessionrun.wait(session_id)["tasks"]
    assert (task["outcome"], task["reason_class"]) == ("succeeded", "exit_unseen")
    assert task["reason"].startswith("exit_unseen: its answer is complete")
    assert (task["exit_code"], task["signal"], task["check"]["passed"]) == (None, None, True)
    told = read_result(output, sample, Path("/nowhere"))  # type: ignore[arg-type]
    assert told.usage is not None
    assert task["usage"]["output_tokens"] == told.usage.output_tokens
    assert (task["conversation"], task["model"]) == (told.conversation, told.model)
    assert (sessionrun.directory(session_id) / "task-a.txt").read_text() == told.text
    for verb in ("status", "results"):
        assert "its answer is complete" in sessionrun(verb, session_id).stdout
    assert (root / "begun").read_text() == "begun\n"
    assert (root / "checked").exists()


WORK = JobKey("a", 1, 1, "work", 1)
GONE = JobLost(WORK, "interrupted", "the machine was restarted", gone=True)


@pytest.mark.parametrize("output", SAMPLES)
@pytest.mark.parametrize(
    ("lost", "case", "verdict"),
    [
        (GONE, "ok", "passed"),
        (replace(GONE, verdict="lost"), "ok", "passed"),
        (replace(GONE, gone=None), "ok", None),
        (replace(GONE, verdict="void", gone=None), "ok", None),
        (replace(GONE, key=JobKey("a", 1, 1, "check", 1)), "ok", None),
        (GONE, "cut", None),
        (GONE, "api_error", None),
        (GONE, "gone", None),
    ],
)
def test_what_is_judged(own_place: Path, output: str, lost: JobLost, case: str, verdict: str | None) -> None:
    """Only WORK of which nothing lives any more, and whose report is whole and good."""
    session, spec = make_session(own_place, TaskSpec("a", ("x",)))
    spec = replace(spec, agents={"shell": AgentSpec("shell", ("x",), output=output)})  # type: ignore[arg-type]
    sample = SAMPLES[output].with_name("api_error.raw") if case == "api_error" else SAMPLES[output]
    said = cut(sample.read_bytes()) if case == "cut" else sample.read_bytes()
    if case != "gone":
        session.raw_path("a").write_bytes(said)
    judged = JobMaker(session, lambda: spec).judge_unseen(TaskState(spec.tasks[0], 1), lost)
    assert (judged and judged.verdict) == verdict
