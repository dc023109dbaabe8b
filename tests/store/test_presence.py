"""Who runs a session, as readers see it: stopped processes, a chain that restarts itself, and one that is gone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from typing import Any

import psutil
import pytest
from conftest import Command, eventually, slow

from sessionrun.cli.wait import PlainProgress
from sessionrun.client.lookup import load_summaries
from sessionrun.client.reading.view import find_stopped, load_summary_view, load_view
from sessionrun.store import processes
from sessionrun.store.session import SessionDir

SLEEPING = {"prompts": [{"id": "a", "prompt": "sleep 600"}, {"id": "b", "prompt": "true"}]}


@pytest.fixture
def running(sessionrun: Command) -> str:
    """A session with one task done and one running, as status.json and then the summary already say."""
    session_id = sessionrun.start(SLEEPING)
    session = SessionDir(sessionrun.directory(session_id))
    for load in (load_view, load_summary_view):
        eventually(lambda load=load: (load(session)["completed"], load(session)["running"]) == (1, 1))  # type: ignore[misc]
    return session_id


def test_a_stopped_supervisor_is_shown_by_all_readers_until_it_goes_on(
    sessionrun: Command, running: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = sessionrun.supervisor(running)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    assert sessionrun.status(running)["stopped"] == ["supervisor"]
    assert f"\n  kill -CONT {pid}\n" in sessionrun("doctor", running).stdout
    helps = f"\nStopped: its supervisor, process {pid}.  To let it go on: kill -CONT {pid}\n"
    assert helps in sessionrun("explain", running).stdout
    assert sessionrun.load("status", running, "a")["stopped"] == ["supervisor"]
    (shown,) = sessionrun.load("list")["sessions"]
    assert shown["stopped"] == ["supervisor"]
    assert sessionrun.load("list", "--totals")["session_counts"]["stopped"] == 1
    assert ": running (supervisor stopped), 2 tasks, " in sessionrun("status", running).stdout
    assert "\nrunning (supervisor stopped)  " in sessionrun("list").stdout
    assert "\n1 session: 1 running (supervisor stopped); 2 tasks: " in sessionrun("list", "--totals").stdout
    PlainProgress()(shown)
    line = capsys.readouterr().err
    assert re.fullmatch(r"\w+: 1 of 2 ended: 1 succeeded, 1 running; \d+\.\d s; supervisor stopped\n", line)
    (sessionrun.directory(running) / "status.json").unlink()
    assert sessionrun.status(running)["stopped"] == ["supervisor"]
    os.kill(pid, signal.SIGCONT)
    sessionrun.until(running, lambda view: view["stopped"] == [])
    assert ": running, 2 tasks, " in sessionrun("status", running).stdout
    assert "\n1 session: 1 running; 2 tasks: " in sessionrun("list", "--totals").stdout
    assert sessionrun.load("list", "--totals")["session_counts"]["stopped"] == 0


@pytest.mark.parametrize("key", ["started", "boot_id", "pid_ns", "pid"])
def test_a_pid_alone_is_not_believed(key: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        os.kill(child.pid, signal.SIGSTOP)
        eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
        one: dict[str, Any] = {"pid": child.pid, "started": processes.start_time(child.pid)}
        here = {"boot_id": processes.boot_id(), "pid_ns": processes.pid_namespace()}
        assert find_stopped({**here, "keeper": one}) == ["keeper"]
        assert find_stopped({**here, "supervisor": one, "keeper": one}) == ["keeper", "supervisor"]
        forged = {**one, key: 1} if key in one else one
        assert find_stopped({**here, **({} if key in one else {key: "1"}), "keeper": forged}) == []
        child.kill()


def test_a_chain_without_a_supervisor_is_recovering(sessionrun: Command, running: str) -> None:
    sessionrun.kill_chain(running)
    session = SessionDir(sessionrun.directory(running))
    assert load_view(session)["status"] == "interrupted"
    keeper = session.hold_lock("keeper.lock")
    try:
        for view in (load_view(session), load_summary_view(session), sessionrun.status(running)):
            assert (view["status"], view["running"], view["ended_at"]) == ("recovering", 1, None)
        assert sessionrun.load("list", "--state", "recovering")["sessions"][0]["session_id"] == running
        assert sessionrun.load("list", "--totals")["session_counts"]["recovering"] == 1
        for path in (session.status_path, session.summary_path):
            path.unlink()
        assert load_view(session)["status"] == load_summary_view(session)["status"] == "recovering"
        session.journal_path.unlink()
        session.ledger_path.unlink()
        assert load_view(session)["status"] == "running", "no supervisor began yet"
    finally:
        os.close(keeper)
    view = load_view(session)
    assert (view["status"], {task["status"] for task in view["tasks"]}) == ("interrupted", {"pending"})


@pytest.mark.parametrize(
    "words", [["wait", "--timeout", "0"], ["logs", "-f"], *slow(["wait"], ["wait", "--any", "a"])]
)
def test_gone_is_said_a_second_later(sessionrun: Command, running: str, words: list[str]) -> None:
    """Also by who waits in slices that are shorter: else it would be told 124 for ever."""
    sessionrun.kill_chain(running)
    began = time.monotonic()
    done = sessionrun(words[0], running, *words[1:], "--json")
    assert (done.returncode, time.monotonic() - began >= 1.0) == (4, True)
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error["code"] == 4
    assert f"sessionrun resume {running}" in error["message"] and "no process runs" in error["message"]
    assert sessionrun("wait", running, "b").returncode == 0, "what has ended"


@pytest.mark.slow
def test_a_restart_in_between_is_not_taken_for_the_end(sessionrun: Command) -> None:
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    (sessionrun.cwd / "plan.json").write_text(json.dumps(SLEEPING))
    followers = [sessionrun.popen("--sync", "--agent", "shell", "plan.json", **quiet)]
    eventually(lambda: [one["running"] for one in load_summaries(sessionrun.results, everywhere=False)] == [1])
    followers += [sessionrun.popen(*words, **quiet) for words in (["wait"], ["logs", "-f"])]
    eventually(lambda: all(_has_read(one.pid) for one in followers))
    session_id = sessionrun.status("last")["session_id"]
    sessionrun.kill_chain(session_id)
    lock = SessionDir(sessionrun.directory(session_id)).hold_lock("root.lock")
    until = time.monotonic() + 1.5
    eventually(lambda: time.monotonic() > until)
    assert [one.poll() for one in followers] == [None] * 3
    os.close(lock)
    assert [one.wait(60) for one in followers] == [4] * 3


def _has_read(pid: int) -> bool:
    """Whether the command is up and looks at the session (its modules are loaded, and it sleeps between looks)."""
    try:
        return (
            psutil.Process(pid).cpu_times().user > 0.02 and psutil.Process(pid).status() == psutil.STATUS_SLEEPING
        )
    except psutil.Error:
        return False
