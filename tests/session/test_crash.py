"""After a crash: what readers show is true, what was running goes on, and no file's damage is a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Command, eventually, fill, is_gone, slow
from forging import damage, find_places, forge, set_words

from sessionrun.client.notices import SessionWarning, begin
from sessionrun.client.reading.view import load_summary_view, load_view
from sessionrun.store.requests import send_request
from sessionrun.store.session import SessionDir

GATE = "while ! [ -e {0} ]; do sleep 0.05; done"
PLAN = {
    "prompts": [
        {"id": "done", "prompt": "echo done"},
        {"id": "lives", "prompt": f"echo begun; {GATE.format('go')}; seq 1000; echo over; touch over"},
        {"id": "dies", "prompt": "echo begun; sleep 600"},
        {"id": "waits", "prompt": "true", "needs": ["lives"]},
    ]
}


@pytest.fixture
def crashed(sessionrun: Command) -> str:
    """A session whose processes but for the jobs were killed: one task done, two alive, one pending."""
    session_id = sessionrun.start(PLAN)
    sessionrun.until(session_id, lambda view: (view["completed"], view["running"]) == (1, 2))
    sessionrun.kill_chain(session_id)
    return session_id


def statuses(view: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(task["status"], task["outcome"]) for task in view["tasks"]]


# --- kill -9 of root, keeper and supervisor ---


def test_running_tasks_go_on_and_are_shown_as_long_as_they_live(sessionrun: Command, crashed: str) -> None:
    view = sessionrun.status(crashed)
    assert (view["status"], view["outcome"], view["ended_at"]) == ("interrupted", None, None)
    assert statuses(view) == [("completed", "succeeded"), ("running", None), ("running", None), ("pending", None)]
    assert (view["completed"], view["running"], view["failed"]) == (1, 2, 0)
    for task in view["tasks"][1:3]:
        assert psutil.pid_exists(task["pid"])
    dies = view["tasks"][2]["pid"]
    os.killpg(dies, signal.SIGKILL)
    view = sessionrun.until(crashed, lambda view: view["running"] == 1)
    assert statuses(view)[1:3] == [("running", None), ("completed", "lost")]
    assert view["tasks"][2]["reason"].startswith("lost: ")
    (sessionrun.cwd / "go").touch()
    eventually((sessionrun.cwd / "over").exists)
    view = sessionrun.until(crashed, lambda view: view["running"] == 0)
    assert statuses(view)[1:] == [("completed", "lost"), ("completed", "lost"), ("pending", None)]
    output = (sessionrun.directory(crashed) / "task-lives.txt").read_text()
    assert output == "begun\n" + "".join(f"{n}\n" for n in range(1, 1001)) + "over\n"
    listed = sessionrun.load("list", "--state", "interrupted")["sessions"]
    assert [(one["session_id"], one["running"], one["failed"]) for one in listed] == [(crashed, 0, 2)]
    assert sessionrun.load("list", "--totals")["session_counts"]["interrupted"] == 1


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
        assert statuses(load_view(session))[1:3] == [("completed", outcome), ("completed", outcome)], (kind, word)


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
    assert view["total"] == len(view["tasks"]) == 4
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
