"""Processes of a session: which belong to a job, what is broken off, who runs it for readers, how it begins."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from calls import Calls, needs_calls
from conftest import Command, eventually, is_gone, slow
from stages import make_program

from sessionrun.cli.wait import PlainProgress
from sessionrun.client.lookup import load_summaries
from sessionrun.client.reading.view import find_stopped, load_summary_view, load_view
from sessionrun.git.git import Git, GitError
from sessionrun.store import processes
from sessionrun.store.processes import JOB_MARKER, Identity, find_tree, identify, is_alive, scan, start_time
from sessionrun.store.programs import leave_task, run, run_abreast
from sessionrun.store.session import SessionDir
from sessionrun.store.trees import sync_files
from sessionrun.walls.shell import Shell

MARKER = f"{uuid.uuid4()}/a/1/1/work/1"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def leader() -> Iterator[Identity]:
    """A process of ours that leads a session of its own and has a child."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    found = identify(process.pid)
    assert found is not None
    yield found
    os.killpg(process.pid, 9)
    process.communicate()


def test_a_tree_and_who_got_the_pid_of_a_leader_that_ended(leader: Identity) -> None:
    """The latter is no member, neither is its session nor what descends from it."""
    tree = find_tree(scan(), leader, MARKER)
    assert leader in tree and len(tree) == 2
    assert find_tree(scan(), Identity(leader.pid, leader.started - 1), MARKER) == set()


def test_the_marker_makes_a_member_until_the_process_is_a_zombie() -> None:
    """Of whatever session.  In a container without an init orphans go to a process that does not reap them."""
    with subprocess.Popen(["sleep", "600"], env={JOB_MARKER: MARKER}, start_new_session=True) as process:
        own = identify(process.pid)
        assert own is not None and start_time(process.pid) == own.started
        gone = Identity(2**22 + 1, own.started - 1)
        try:
            eventually(lambda: find_tree(scan(), gone, MARKER) == {own})  # its environment comes with its exec
            assert find_tree(scan(), gone, "another") == set()
            assert find_tree(scan(), gone, "another", [own, gone]) == {own}
        finally:
            process.kill()
        eventually(lambda: start_time(process.pid) is None)
        assert start_time(process.pid, zombie=True) == own.started
        assert not is_alive(own) and find_tree(scan(), own, MARKER) == set()


@pytest.mark.parametrize("script", ["trap '' TERM; kill 0", "trap '' TERM; kill -- -$$"])
def test_a_script_that_ends_its_group_ends_as_it_says(tmp_path: Path, script: str) -> None:
    """What runs around it is not in that group."""
    with open(os.devnull, "wb") as output:
        assert Shell(tmp_path, os.environ).run(f"{script}; exit 3", output, None).code == 3


@pytest.mark.parametrize("clear", ["", "env -i"])
def test_a_daemon_of_a_script_ends_with_the_script(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], clear: str
) -> None:
    """It has left the script's session and lost its parent; what runs beside the script is not its."""
    daemon = "sh -c 'echo $$ >pid; exec sleep 600' </dev/null >/dev/null 2>&1"
    script = f"({clear} setsid {daemon} &); until [ -s pid ]; do :; done; exit 3"
    with open(os.devnull, "wb") as output:
        assert Shell(tmp_path, os.environ).run(script, output, None).code == 3
    assert identify(int((tmp_path / "pid").read_text())) is None
    assert sleeper.poll() is None


# --- programs of ours that are broken off ---


@pytest.mark.parametrize("in_git", [True, False], ids=["git", "a program"])
def test_what_is_broken_off_leaves_the_children_of_its_caller(tmp_path: Path, in_git: bool) -> None:
    """Those from before, and those that another thread begins meanwhile.

    What git runs has begun another program, in a session of its own, which ends as well.
    """
    place, waits = tmp_path / "pid", f"echo $$ >{tmp_path}/pid; exec sleep 600"
    begins = make_program(tmp_path / "begins", f"setsid sh -c '{waits}'")
    own, failed, begun = [subprocess.Popen(["sleep", "600"])], list[Exception](), list[psutil.Process]()

    def work() -> None:
        try:
            if in_git:
                Git(tmp_path, limit_s=600.0)("-c", f"alias.begin=!{begins}", "begin")
            else:
                run(["sh", "-c", waits], environ=os.environ, limit_s=600.0).check_returncode()
        except (GitError, subprocess.SubprocessError) as error:
            failed.append(error)

    def break_off() -> None:
        other = threading.Thread(target=lambda: own.append(subprocess.Popen(["sleep", "600"])))
        other.start()
        other.join()
        begun.append(psutil.Process(int(eventually(lambda: place.exists() and place.read_text()))))
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            run_abreast([work, break_off], 2)
        assert len(failed) == 1
        eventually(lambda: is_gone(begun[0]))
        assert [child.poll() for child in own] == [None, None]
    finally:
        for child in own:
            child.kill()
            child.wait()


@pytest.mark.parametrize("path", [".", "", "bin:", "bin:/usr/bin:/bin"])
def test_no_program_is_found_where_it_begins(tmp_path: Path, path: str) -> None:
    """An empty PATH would mean that directory, too."""
    for folder in (tmp_path, tmp_path / "bin"):
        make_program(folder / "true", "echo planted")
    assert run(["true"], cwd=tmp_path, environ=leave_task({"PATH": path}), limit_s=None).stdout == b""


def test_files_are_synced_where_there_is_no_program_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sync_files(tmp_path)


# --- who runs a session: stopped processes, a chain that restarts itself, and one that is gone ---


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
def test_a_pid_alone_is_not_believed(sleeper: subprocess.Popen[bytes], key: str) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED)
    one: dict[str, Any] = {"pid": sleeper.pid, "started": processes.start_time(sleeper.pid)}
    here = {"boot_id": processes.boot_id(), "pid_ns": processes.pid_namespace()}
    assert find_stopped({**here, "keeper": one}) == ["keeper"]
    assert find_stopped({**here, "supervisor": one, "keeper": one}) == ["keeper", "supervisor"]
    forged = {**one, key: 1} if key in one else one
    assert find_stopped({**here, **({} if key in one else {key: "1"}), "keeper": forged}) == []


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


# --- the edges of a beginning: modes, the first status.json, launchers that are killed ---


@pytest.mark.parametrize("umask", [0, 0o777])
def test_any_umask_will_do(sessionrun: Command, own_place: Path, umask: int) -> None:
    plan = own_place / "plan.json"
    plan.write_text('[{"id": "a", "prompt": "umask"}]')
    old = os.umask(umask)
    try:
        done = sessionrun("--sync", "-q", "--agent", "shell", "--results-dir", "deep/results", str(plan))
    finally:
        os.umask(old)
    assert done.returncode == 0, done.stderr
    results = own_place / "deep" / "results"
    (session,) = results.glob("session-*")
    assert (session / "task-a.txt").read_text() == f"{umask:04o}\n"
    for path in (own_place / "deep", results):
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if umask == 0 else 0o700)
    for path in (session, *session.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) in (0o600, 0o700), path
    index = own_place.parent / "home" / "state" / "sessionrun" / "sessions"
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700


@needs_calls
def test_a_launch_whose_daemon_dies_leaves_nothing(sessionrun: Command, own_place: Path) -> None:
    env = Calls(own_place / "calls", "daemon:create:1:kill").environ()
    done = sessionrun("--agent", "shell", "--results-dir", "a/b", stdin='["true"]', env=env)
    assert done.returncode == 3
    assert not (own_place / "a").exists()


def test_an_index_that_cannot_be_written_is_a_warning_beside_the_id(sessionrun: Command) -> None:
    done = sessionrun("-q", "--agent", "shell", stdin='["true"]', env={"XDG_STATE_HOME": "/dev/null"})
    session_id = done.stdout.strip()
    assert done.returncode == 0
    assert done.stderr == (
        f"sessionrun: warning: session {session_id} was started, but is not in your index (/dev/null/sessionrun/"
        f"sessions: File exists); from other directories use --results-dir {sessionrun.results}\n"
    )
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without an entry in passwd")
def test_a_user_without_a_home_has_directories_that_cannot_be_there() -> None:
    code = (
        "import os, platformdirs, sessionrun.store.session; from sessionrun.store import index\n"
        "os.environ.clear(); os.setuid(54321)\n"
        "print([os.path.exists(index.user_directory(kind)) for kind in ('state', 'cache', 'config')])\n"
        "print(index.sessions(), index.limits_path().exists())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[False, False, False]\n[] False\n", "")


@needs_calls
@pytest.mark.slow
def test_processes_that_are_slow_to_come_up_are_no_failed_start(sessionrun: Command) -> None:
    env = Calls(sessionrun.cwd / "calls", "keeper:any:1:stop").environ()
    done = sessionrun("-q", "--agent", "shell", stdin='["true"]', env=env)
    session_id = done.stdout.strip()
    assert (done.returncode, "is slow to come up" in done.stderr) == (0, True)
    for process in psutil.process_iter(["cmdline"]):  # None: of a zombie
        if f"session-{session_id}" in " ".join(process.info["cmdline"] or ()):
            process.send_signal(signal.SIGCONT)
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"


@needs_calls
def test_the_first_status_is_there_before_the_id(sessionrun: Command) -> None:
    """A root that dies at its first step: nobody but the launcher has written anything."""
    env = Calls(sessionrun.cwd / "calls", "supervisor:any:1:kill").environ()
    done = sessionrun("-q", "--agent", "shell", stdin='["true", "sleep 0.1"]', env=env)
    session_id = done.stdout.strip()
    first = SessionDir(sessionrun.directory(session_id)).load_status()
    assert first is not None
    last = sessionrun.wait(session_id)
    assert first["total"] == 2
    assert set(last) - set(first) == {"results_dir", "stopped", "disk_full", "no_contact"}
    assert (first["status"], first["started_at"] <= last["started_at"]) == ("running", True)
    assert first["seq"] < last["seq"]
