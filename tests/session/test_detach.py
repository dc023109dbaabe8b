"""Leaving the caller, whoever that is: the session starts, the caller is free, and its end harms nothing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Command, eventually, is_gone, rests, slow
from terminal import Terminal

from sessionrun.client.reading.view import load_view
from sessionrun.store.session import SessionDir

LONG = '{"prompts": [{"id": "a", "prompt": "echo begun; while ! [ -e go ]; do sleep 0.05; done; echo over"}]}'


def write_plan(sessionrun: Command, text: str = LONG) -> Path:
    file = sessionrun.cwd / "plan.json"
    file.write_text(text)
    return file


def assert_runs_on(sessionrun: Command, session_id: str) -> None:
    """The session still runs, and ends well once it is let go."""
    view = sessionrun.until(session_id, lambda view: view["running"] == 1)
    assert view["status"] == "running"
    (sessionrun.cwd / "go").touch()
    assert sessionrun.wait(session_id)["outcome"] == "succeeded"
    assert (sessionrun.directory(session_id) / "task-a.txt").read_text() == "begun\nover\n"
    (sessionrun.cwd / "go").unlink()


def test_the_detached_process_has_left_everything(sessionrun: Command) -> None:
    session_id = sessionrun("-q", "--agent", "shell", str(write_plan(sessionrun)), real=True).stdout.strip()
    process = psutil.Process(sessionrun.supervisor(session_id))
    assert os.getsid(process.pid) not in (process.pid, os.getsid(0))
    assert process.terminal() is None
    assert process.cwd() == "/"
    assert os.readlink(f"/proc/{process.pid}/fd/0") == "/dev/null"
    for fd in (1, 2):
        assert os.readlink(f"/proc/{process.pid}/fd/{fd}").endswith("/supervisor.log")
    assert str(sessionrun.directory(session_id)) in process.cmdline()
    assert_runs_on(sessionrun, session_id)
    eventually(lambda: is_gone(process))
    assert (sessionrun.directory(session_id) / "supervisor.log").read_bytes() == b""


def test_a_job_inherits_nothing_of_the_caller(sessionrun: Command) -> None:
    read_fd, write_fd = os.pipe()
    file = write_plan(sessionrun, '{"prompts": [{"id": "a", "prompt": "exec ls /proc/self/fd"}]}')
    words = ["-q", "--agent", "shell", str(file)]
    process = sessionrun.popen(*words, pass_fds=(read_fd, write_fd), stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=60)
    os.close(read_fd)
    os.close(write_fd)
    session_id = output.decode().strip()
    sessionrun.wait(session_id)
    listed = (sessionrun.directory(session_id) / "task-a.txt").read_text()
    assert listed.split() == ["0", "1", "2", "3"]  # 3: the directory that ls reads


def test_it_rests_when_nothing_happens(sessionrun: Command) -> None:
    """No idle wake-ups: no CPU time passes while the tasks sleep."""
    session_id = sessionrun.start({"prompts": ["sleep 600"] * 3})
    sessionrun.until(session_id, lambda view: view["running"] == 3)
    eventually(rests(*sessionrun.chain(session_id)))


@pytest.mark.parametrize("kind", ["terminal", *slow("socket", "pipe", "file")])
def test_standard_input_may_be_anything(sessionrun: Command, kind: str) -> None:
    """That it may be a socket the next test shows as well, and that from which nothing is read the one of Node."""
    file = write_plan(sessionrun)
    argv = [*sessionrun.argv, "-q", "--agent", "shell", str(file)]
    if kind == "terminal":
        with Terminal(argv, sessionrun.cwd) as terminal:
            assert terminal.finish() == 0
        session_id = terminal.output.decode().strip()
    else:
        ours, theirs = socket.socketpair()
        streams = {"socket": theirs.fileno(), "pipe": subprocess.PIPE, "file": os.open(file, os.O_RDONLY)}
        process = subprocess.Popen(argv, cwd=sessionrun.cwd, stdin=streams[kind], stdout=subprocess.PIPE)
        output, _ = process.communicate(timeout=60)
        session_id = output.decode().strip()
        ours.close()
        theirs.close()
        os.close(streams["file"])
    assert_runs_on(sessionrun, session_id)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["socket", "pipe", "file"])
def test_prompts_may_come_from_any_of_them(sessionrun: Command, kind: str) -> None:
    file = write_plan(sessionrun)
    ours, theirs = socket.socketpair()
    read_fd, write_fd = os.pipe()
    ours.sendall(LONG.encode())
    ours.shutdown(socket.SHUT_WR)
    os.write(write_fd, LONG.encode())
    os.close(write_fd)
    streams = {"socket": theirs.fileno(), "pipe": read_fd, "file": os.open(file, os.O_RDONLY)}
    words = ["-q", "--agent", "shell"]
    process = sessionrun.popen(*words, real=True, stdin=streams[kind], stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=60)
    for fd in streams.values():
        os.close(fd)
    theirs.detach()
    ours.close()
    assert_runs_on(sessionrun, output.decode().strip())


@pytest.mark.slow
@pytest.mark.parametrize("closed", [(0, 1, 2), *slow((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))], ids=str)
def test_closed_descriptors(sessionrun: Command, closed: tuple[int, ...]) -> None:
    file = write_plan(sessionrun)
    redirections = " ".join(f"{fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    command = " ".join([*sessionrun.argv, "-q", "--agent", "shell", str(file), redirections])
    done = subprocess.run(["sh", "-c", command], cwd=sessionrun.cwd, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    session_id = sessionrun.status("last")["session_id"]
    assert done.stdout == (b"" if 1 in closed else f"{session_id}\n".encode())
    assert_runs_on(sessionrun, session_id)


@pytest.mark.slow
def test_a_command_substitution_ends_at_once(sessionrun: Command) -> None:
    """Nothing of the session holds the caller's pipes: both reach their end while the tasks run."""
    file = write_plan(sessionrun, '{"prompts": ["sleep 600", "sleep 600 & sleep 600"]}')
    words = [*sessionrun.argv, "-q", "--agent", "shell", str(file)]
    script = f"id=$({' '.join(words)} 2>&1); echo $id"
    done = subprocess.run(["sh", "-c", script], cwd=sessionrun.cwd, capture_output=True, timeout=60)
    session_id = done.stdout.decode().strip()
    assert sessionrun.status(session_id)["status"] == "running"
    assert sessionrun("cancel", session_id).returncode == 0


NODE_SCRIPT = """
const { spawn } = require('child_process');
const [program, ...words] = process.argv.slice(2);
const child = spawn(program, words);
let text = '';
child.stdout.on('data', chunk => { text += chunk; });
child.on('close', code => { console.log(JSON.stringify({ code, id: text.trim() })); process.exit(0); });
"""


@pytest.mark.slow
def test_from_node_with_default_streams(sessionrun: Command) -> None:
    """Node gives its children socket pairs, and the session must outlive it."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = sessionrun.cwd / "start.js"
    script.write_text(NODE_SCRIPT)
    words = [*sessionrun.argv, "-q", "--agent", "shell", str(write_plan(sessionrun))]
    done = subprocess.run([node, str(script), *words], cwd=sessionrun.cwd, capture_output=True, timeout=60)
    answer = json.loads(done.stdout)
    assert answer["code"] == 0, done.stderr
    assert_runs_on(sessionrun, answer["id"])


# --- odd parents ---


@pytest.mark.slow
def test_as_the_child_of_process_1(sessionrun: Command) -> None:
    """In a new pid namespace the command's parent is pid 1, as in a container."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("needs root and unshare(1)")
    ready = sessionrun.cwd / "id"
    words = " ".join([*sessionrun.argv, "-q", "--agent", "shell", str(write_plan(sessionrun))])
    script = f"{words} >{ready}.part && mv {ready}.part {ready}; while ! [ -e leave ]; do sleep 0.05; done"
    argv = [unshare, "--pid", "--fork", "--mount-proc", "sh", "-c", script]
    if subprocess.run([*argv[:-3], "true"], capture_output=True).returncode != 0:
        pytest.skip("unshare(1) is not allowed here")
    with subprocess.Popen(argv, cwd=sessionrun.cwd) as process:
        eventually(ready.exists)
        session_id = ready.read_text().strip()
        (sessionrun.cwd / "go").touch()
        session = SessionDir(sessionrun.directory(session_id))
        eventually(lambda: load_view(session)["ended_at"])
        (sessionrun.cwd / "leave").touch()
        assert process.wait(60) == 0
    assert sessionrun.status(session_id)["outcome"] == "succeeded"


@pytest.mark.slow
def test_a_pid_of_another_namespace_is_not_believed(sessionrun: Command) -> None:
    """All of a container ends with its process 1; a reader outside knows, whatever its own pids are."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("needs root and unshare(1)")
    words = " ".join([*sessionrun.argv, "-q", "--agent", "shell", str(write_plan(sessionrun))])
    script = f"{words} >id; while ! [ -s results/*/task-a.txt ]; do sleep 0.05; done"
    done = subprocess.run([unshare, "--pid", "--fork", "--mount-proc", "sh", "-c", script], cwd=sessionrun.cwd)
    if done.returncode != 0:
        pytest.skip("unshare(1) is not allowed here")
    view = sessionrun.status("last")
    assert (view["status"], view["tasks"][0]["outcome"]) == ("interrupted", "lost")


@pytest.mark.slow
def test_as_an_orphan(sessionrun: Command) -> None:
    """The launcher's own parent is gone before it has finished."""
    ready = sessionrun.cwd / "id"
    words = " ".join([*sessionrun.argv, "-q", "--agent", "shell", str(write_plan(sessionrun))])
    script = f"(({words} >{ready}.part && mv {ready}.part {ready}) &) ; exit 0"
    subprocess.run(["sh", "-c", script], cwd=sessionrun.cwd, check=True)
    eventually(ready.exists)
    assert_runs_on(sessionrun, ready.read_text().strip())


SIGNALS = "CHLD HUP PIPE INT TERM"
BLOCK = (
    "import os, signal, sys;"
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize(
    ("ignored", "blocked"),
    [
        (SIGNALS, True),
        pytest.param("", True, marks=pytest.mark.slow),
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in (SIGNALS, *SIGNALS.split())),
    ],
)
def test_with_signals_ignored_and_blocked_by_the_caller(sessionrun: Command, ignored: str, blocked: bool) -> None:
    words = [*sessionrun.argv, "-q", "--agent", "shell", str(write_plan(sessionrun))]
    if blocked:
        words = [sys.executable, "-I", "-S", "-c", BLOCK, *words]
    script = (f"trap '' {ignored}; " if ignored else "") + shlex.join(words)
    done = subprocess.run(["sh", "-c", script], cwd=sessionrun.cwd, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert_runs_on(sessionrun, done.stdout.decode().strip())


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_the_callers_terminal_is_closed(sessionrun: Command, *, killed: bool) -> None:
    """Closing the window sends SIGHUP to all that still belong to it; or its group was killed before."""
    words = " ".join([*sessionrun.argv, "-q", "--agent", "shell", str(write_plan(sessionrun))])
    with Terminal(["/bin/sh", "-c", f"{words}; exec sleep 600"], sessionrun.cwd) as terminal:
        session_id = terminal.read_until(b"\n").decode().strip()
        if killed:
            sessionrun.until(session_id, lambda view: view["running"] == 1)
            os.killpg(terminal.pid, signal.SIGKILL)
        terminal.close()
        if not killed:
            _, status = os.waitpid(terminal.pid, 0)
            terminal.reaped(status)
            assert os.WTERMSIG(status) == signal.SIGHUP
        assert_runs_on(sessionrun, session_id)


# --- sessions within sessions ---


def environment_of(pid: int) -> dict[str, str]:
    return dict(psutil.Process(pid).environ())


def test_a_session_within_a_session(sessionrun: Command) -> None:
    """Cancelling the outer one, or its end, leaves the inner one alone."""
    inner_plan = write_plan(sessionrun)
    start = " ".join(["SESSIONRUN_FEEDBACK=/x", *sessionrun.argv, "-q", "--agent", "shell", str(inner_plan)])
    outer = sessionrun.start(
        {"prompts": [{"id": "o", "prompt": f"{start} >id.part; mv id.part id; exec sleep 600"}]}
    )
    ready = sessionrun.cwd / "id"
    eventually(ready.exists)
    inner = ready.read_text().strip()
    view = sessionrun.until(inner, lambda view: view["running"] == 1)
    job, supervisor = view["tasks"][0]["pid"], sessionrun.supervisor(inner)
    assert "SESSIONRUN_JOB" not in environment_of(supervisor)
    # While the program is being exchanged its environment reads as empty.
    assert eventually(lambda: environment_of(job).get("SESSIONRUN_JOB")).startswith(f"{inner}/a/")
    assert "SESSIONRUN_FEEDBACK" not in environment_of(job)
    for pid in (supervisor, job):
        assert environment_of(pid)["SESSIONRUN_PARENT"] == f"{outer}/o/1/1/work/1"
    assert sessionrun("cancel", outer).returncode == 0
    assert sessionrun.status(outer)["status"] == "cancelled"
    assert psutil.pid_exists(supervisor)
    assert_runs_on(sessionrun, inner)


# --- many at once, and failed starts ---


@pytest.mark.slow
@pytest.mark.parametrize(("launchers", "real"), [(6, False), pytest.param(20, True, marks=pytest.mark.slow)])
def test_many_at_once(sessionrun: Command, launchers: int, real: bool) -> None:
    write_plan(sessionrun, '{"prompts": ["true", "echo x"]}')
    words = ["-q", "--agent", "shell", "plan.json"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launches = [sessionrun.popen(*words, real=real, **streams) for _ in range(launchers)]
    ids = set()
    for process in launches:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"")
        ids.add(output.decode().strip())
    assert len(ids) == launchers
    assert {view["session_id"] for view in sessionrun.load("list")["sessions"]} == ids
    for session_id in ids:
        assert sessionrun.wait(session_id)["outcome"] == "succeeded"


@pytest.mark.parametrize("real", [False, *slow(True)])
def test_a_session_is_never_seen_dead_while_it_starts(sessionrun: Command, real: bool) -> None:
    """From the first moment that a reader can find a session, somebody lives for it."""
    from sessionrun.client.reading.selection import load_summaries

    write_plan(sessionrun, '{"prompts": ["true"]}')
    for _ in range(5):
        words = ["-q", "--agent", "shell", "plan.json"]
        with sessionrun.popen(*words, real=real, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                views = load_summaries(sessionrun.results, everywhere=False)
                assert {view["status"] for view in views} <= {"running", "completed"}


def test_a_start_that_fails_leaves_nothing(sessionrun: Command) -> None:
    """A results directory that cannot be written: one line, exit 3, no half session."""
    blocked = sessionrun.cwd / "file"
    blocked.write_text("")
    for results in (blocked, Path("/proc/results")):
        done = sessionrun(
            "--json", "--agent", "shell", "--results-dir", str(results), stdin='{"prompts": ["true"]}', real=True
        )
        assert done.returncode in (2, 3)
        assert json.loads(done.stdout)["error"]["message"]
        assert "error: " not in done.stderr and "Traceback" not in done.stderr
