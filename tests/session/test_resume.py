"""After a crash: what readers show is true, `resume` goes on, and no file's damage is a traceback.

A session of which no process is left says truly what became of what had been running.  An answer that is whole
counts, also when nobody saw how its agent ended.
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
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from conftest import Command, eventually, fill, is_gone, kill_sessions, slow
from forging import damage, find_places, forge, set_words
from test_supervisor import make_session

from sessionrun.agents.table import read_result
from sessionrun.client import ask as control
from sessionrun.client.notices import SessionWarning, begin
from sessionrun.client.reading.view import load_summary_view, load_view
from sessionrun.engine.task import TaskState
from sessionrun.model.events import JobFinished, JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import AgentSpec, TaskSpec
from sessionrun.session import launch, main
from sessionrun.session.maker import JobMaker
from sessionrun.store import locks
from sessionrun.store.logs import EXITED, fold_ledger, make_record, read_log
from sessionrun.store.processes import Identity, start_time
from sessionrun.store.requests import send_request
from sessionrun.store.seal import seal
from sessionrun.store.session import SessionDir

GATE = "while ! [ -e {0} ]; do sleep 0.05; done"
PLAN = {
    "max_parallel": 2,
    "prompts": [
        {"id": "good", "prompt": "echo done"},
        {"id": "bad", "prompt": "exit 7"},
        {
            "id": "lives",
            "prompt": f"echo begun | tee -a lives; {GATE.format('go')}; seq 1000; echo over; touch over",
        },
        {"id": "dies", "prompt": "echo begun >>dies; sleep 600"},
        {"id": "waits", "prompt": "true", "needs": ["bad"]},
        {"id": "next", "prompt": "echo next >>next; echo $GREETING"},
    ],
}


@pytest.fixture
def crashed(sessionrun: Command) -> str:
    """A session whose processes but for the jobs were killed: two run on without anybody, one has not begun."""
    session_id = sessionrun.start(PLAN)
    sessionrun.until(session_id, lambda view: (view["completed"], view["running"]) == (3, 2))
    sessionrun.kill_chain(session_id)
    return session_id


def outcomes(view: dict[str, Any]) -> dict[str, str]:
    return {task["id"]: task["outcome"] for task in view["tasks"]}


def statuses(view: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(task["status"], task["outcome"]) for task in view["tasks"]]


def test_what_runs_is_shown_while_it_lives_then_it_goes_on_and_nothing_is_done_twice(
    sessionrun: Command, crashed: str
) -> None:
    view = sessionrun.status(crashed)
    assert (view["status"], view["outcome"], view["ended_at"]) == ("interrupted", None, None)
    ended = [("completed", "succeeded"), ("completed", "failed")]
    begun = [("running", None), ("running", None), ("completed", "skipped"), ("pending", None)]
    assert statuses(view) == [*ended, *begun]
    assert (view["completed"], view["running"], view["failed"]) == (3, 2, 1)
    for task in view["tasks"][2:4]:
        assert psutil.pid_exists(task["pid"])
    os.killpg(view["tasks"][3]["pid"], signal.SIGKILL)
    view = sessionrun.until(crashed, lambda view: view["running"] == 1)
    assert statuses(view)[2:4] == [("running", None), ("completed", "lost")]
    assert view["tasks"][3]["reason"].startswith("lost: ")
    listed = sessionrun.load("list", "--state", "interrupted")["sessions"]
    assert [(one["session_id"], one["running"], one["failed"]) for one in listed] == [(crashed, 1, 2)]
    assert sessionrun.load("list", "--totals")["session_counts"]["interrupted"] == 1

    done = sessionrun("resume", crashed, env={"GREETING": "hello"})
    assert (done.returncode, done.stdout) == (0, f"{crashed[:8]}: goes on\n"), done.stderr
    (sessionrun.cwd / "go").touch()
    view = sessionrun.wait(crashed)
    known = {"good": "succeeded", "bad": "failed", "waits": "skipped"}
    assert outcomes(view) == {**known, "lives": "lost", "dies": "lost", "next": "succeeded"}
    assert (view["status"], view["outcome"], view["epoch"]) == ("completed", "failed", 2)
    assert view["tasks"][1]["exit_code"] == 7
    for name in ("lives", "dies", "next"):
        assert len((sessionrun.cwd / name).read_text().splitlines()) == 1
    directory = sessionrun.directory(crashed)
    output = (directory / "task-lives.txt").read_text()  # its end was seen, its exit code was not
    assert output == "begun\n" + "".join(f"{n}\n" for n in range(1, 1001)) + "over\n"
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
    assert view["tasks"][2]["reason"] == "interrupted: the machine was restarted while it ran"
    assert view["tasks"][3]["exit_code"] == 9
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
    said = sample.read_bytes()
    if case == "cut":  # without the end of its last event
        said = said[: said.rstrip().rindex(b"}")]
    if case != "gone":
        session.raw_path("a").write_bytes(said)
    judged = JobMaker(session, lambda: spec).judge_unseen(TaskState(spec.tasks[0], 1), lost)
    assert (judged and judged.verdict) == verdict


# --- what readers show ---


def test_a_pid_that_another_process_has_got_is_not_believed(sessionrun: Command, crashed: str) -> None:
    """Start time, boot and pid namespace tell the processes apart."""
    session = SessionDir(sessionrun.directory(crashed))
    content = session.ledger_path.read_bytes()
    for kind, word, value, outcome in (
        (b"S", 3, b"1", "lost"),
        (b"K", 3, b"another-boot", "interrupted"),
        (b"K", 4, b"1", "lost"),
    ):
        session.ledger_path.write_bytes(content)
        forge(session.ledger_path, set_words(kind, {word: value}))
        assert statuses(load_view(session))[2:4] == [("completed", outcome), ("completed", outcome)], (kind, word)


def test_a_task_between_two_jobs_is_not_lost(sessionrun: Command) -> None:
    """Its setup ended and was judged; its work waits for a token that another task holds."""
    plan = {
        "resources": {"one": 1},
        "prompts": [
            {"id": "holds", "prompt": "sleep 600", "uses": "one"},
            {"id": "between", "prompt": "true", "uses": "one", "setup": "while ! [ -e go ]; do sleep 0.05; done"},
        ],
    }
    session_id = sessionrun.start(plan)
    sessionrun.until(session_id, lambda view: view["running"] == 2)
    (sessionrun.cwd / "go").touch()
    sessionrun.until(session_id, lambda view: view["tasks"][1]["phase"] == "running")
    sessionrun.kill_chain(session_id)
    assert statuses(sessionrun.status(session_id)) == [("running", None), ("pending", None)]


# --- what is planted ---


@pytest.mark.slow
def test_nothing_hangs_on_what_is_planted_in_a_dead_session(sessionrun: Command, crashed: str) -> None:
    """In a directory where others may write: `resume` goes on with nothing, and each verb says so in a line."""
    session = SessionDir(sessionrun.directory(crashed))
    aside = session.path / "aside"
    for name in ("spec.json", "journal", "ledger", "status.json", "keeper.lock", "supervisor.log"):
        path = session.path / name
        path.rename(aside)
        os.mkfifo(path, 0o600)
        resumed = sessionrun("resume", crashed)
        assert (resumed.returncode, resumed.stderr.count("\n")) == (3, 1), resumed.stderr
        assert f"{path.parent.name}/{name}" in resumed.stderr and "not a regular file" in resumed.stderr
        assert not session.is_alive()
        shown = sessionrun("status", crashed)
        told = name not in ("keeper.lock", "supervisor.log")
        assert (shown.returncode, shown.stderr.count("\n")) == ((3, 1) if told else (0, 0)), shown.stderr
        checked = sessionrun("doctor", crashed)
        assert checked.returncode == 1
        assert "a FIFO in the place of a regular file" in checked.stdout
        aside.rename(path)
    session.summary_path.unlink()
    os.mkfifo(session.summary_path)
    for words in ("list", "doctor"):
        assert "Traceback" not in sessionrun(words).stderr


# --- damaged logs ---


@pytest.fixture
def copied(sessionrun: Command, crashed: str, tmp_path: Path) -> SessionDir:
    """A copy of a crashed session whose processes are all gone, without its caches."""
    for task in sessionrun.status(crashed)["tasks"]:
        if task["pid"]:
            os.killpg(task["pid"], signal.SIGKILL)
    sessionrun.until(crashed, lambda view: view["running"] == 0)
    copy = tmp_path / "copy" / f"session-{crashed}"
    shutil.copytree(
        sessionrun.directory(crashed), copy, ignore=shutil.ignore_patterns("wake", "status.json", "summary")
    )
    return SessionDir(copy)


def check_view(session: SessionDir) -> int:
    """Whatever is damaged, nothing is shown as running; return how many tasks are known to have succeeded."""
    view = load_view(session)
    assert view["status"] == "interrupted"
    assert view["total"] == len(view["tasks"]) == 6
    assert all(task["status"] in ("pending", "completed") for task in view["tasks"])
    assert view["completed"] == sum(task["status"] == "completed" for task in view["tasks"])
    load_summary_view(session)
    return int(view["successful"])


@pytest.mark.parametrize("kind", ["cut", "flip"])
@pytest.mark.parametrize("file", ["journal", "ledger"])
@pytest.mark.parametrize("step", [15, *slow(1)])
def test_a_damaged_log(copied: SessionDir, file: str, kind: str, step: int) -> None:
    """A torn tail of the journal is normal, and the more there is, the more is known; other damage is told."""
    path, known = copied.path / file, 0
    content = path.read_bytes()
    last_line = content.rindex(b"\n", 0, len(content) - 1) + 1
    for place in find_places(content, step):
        path.write_bytes(damage(content, kind, place))
        begin()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", SessionWarning)
            successful = check_view(copied)
        if (file, kind) == ("journal", "cut"):
            assert (said, successful >= known) == ([], True)
            known = successful
        elif file == "journal" and place < last_line - 1:
            (told,) = said  # one for the view and the summary
            assert "is damaged at byte" in str(told.message)
    path.write_bytes(content)
    assert check_view(copied) == 1


@pytest.mark.slow
@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("name", ["journal", "ledger"])
def test_what_resume_refuses_is_not_advised(sessionrun: Command, crashed: str, name: str, shown: bool) -> None:
    """Which log is damaged is told instead, and what a user can still do; that works."""
    session = SessionDir(sessionrun.directory(crashed))
    path = session.path / name
    jobs = [psutil.Process(task["pid"]) for task in load_view(session)["tasks"] if task["pid"]]
    content = path.read_bytes()
    path.write_bytes(content[:30] + b"#" + content[31:])
    send_request(session, {"kind": "hold", "tasks": [], "reason": None})
    if not shown:
        session.status_path.unlink()
        session.summary_path.unlink()
    assert sessionrun("resume", crashed).returncode == 3
    fault = f"{path} is damaged at byte 0: nothing can be decided from it"
    rest = f"sessionrun logs {crashed}", f"sessionrun clean --state interrupted {crashed}"
    codes = {"explain": 0, "wait": 4, "doctor": 1, "hold": 4}
    for verb, code in codes.items():
        done = sessionrun(verb, crashed)
        said = done.stdout + done.stderr
        assert (done.returncode, "sessionrun resume" in said, "resumed" in said) == (code, False, False), said
        assert (fault in said) == (verb != "doctor"), said
        assert verb == "hold" or all(advice in said for advice in rest), said
    assert f"session-{crashed}/{name}: damaged at byte 0" in sessionrun("doctor", crashed).stdout
    told = json.loads(sessionrun("explain", crashed, "--json").stdout)
    assert (told["resume"], told["damage"]) == (None, fault)
    assert sessionrun("logs", crashed).returncode == 0
    for job in jobs:
        os.killpg(job.pid, signal.SIGKILL)
    eventually(lambda: all(is_gone(job) for job in jobs))
    done = sessionrun("clean", "--state", "interrupted", crashed)
    assert (done.returncode, session.path.exists()) == (0, False), done.stdout + done.stderr


# --- a full disk ---


def test_no_start_on_a_full_disk(sessionrun: Command, small_disk: Path) -> None:
    results = small_disk / "results"
    results.mkdir()
    (results / ".gitignore").write_text("*\n")
    filler = fill(small_disk)
    words = ["--json", "--agent", "shell", "--results-dir", str(results)]
    done = sessionrun(*words, stdin='{"prompts": ["true"]}')
    assert done.returncode == 3
    assert "No space left on device" in json.loads(done.stdout)["error"]["message"]
    assert [line for line in done.stderr.splitlines() if "error" in line][1:] == []
    assert os.listdir(results) == [".gitignore"]
    for room in range(0, 40_000, 4096):  # wherever it runs out on the way
        os.truncate(filler, os.path.getsize(filler) - 4096)
        done = sessionrun(*words, stdin=json.dumps({"prompts": ["true #" + "x" * 5000]}))
        assert done.returncode in (0, 3), room
        if done.returncode == 0:
            break
        assert "Traceback" not in done.stderr
        assert os.listdir(results) == [".gitignore"]
    sessionrun.results = results  # so that what started is ended
