"""Leaving the caller, whoever that is: the session starts, the caller is free, and its end harms nothing."""

from __future__ import annotations

import os
import re
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

from sessionrun.client.lookup import load_summaries

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


# --- callers of all kinds ---

SIGNALS = "CHLD HUP PIPE INT TERM"
BLOCK = (
    "import os, signal, sys;"
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
NODE = """\
const child = require('child_process').spawn(process.argv[1], process.argv.slice(2));
child.stdout.on('data', text => process.stdout.write(text));
child.on('close', code => { process.exitCode = code; });
"""
CALLERS = {
    "signals ignored and blocked": f"trap '' {SIGNALS}; {sys.executable} -IS -c '{BLOCK}' RUN PLAN",
    "signals ignored": f"trap '' {SIGNALS}; RUN PLAN",
    "a command substitution": "id=$(RUN PLAN 2>&1); echo $id",
    "no input": "RUN PLAN 0<&-",
    "no output": "RUN PLAN 1>&-",
    "no errors": "RUN PLAN 2>&-",
    "nothing open": "RUN PLAN 0<&- 1>&- 2>&-",
    "prompts of a file": "RUN < PLAN",
    "prompts of a pipe": "cat PLAN | RUN",
    "prompts of a socket": "RUN",
    "a parent that is gone": "((RUN PLAN) &)",
    "node": f"node -e {shlex.quote(NODE)} RUN PLAN",
}


@pytest.mark.parametrize("caller", ["signals ignored and blocked", *slow(*list(CALLERS)[1:])])
def test_callers(sessionrun: Command, caller: str) -> None:
    """Nothing of the session holds the caller's pipes: both reach their end while the task runs.

    What lies on standard input beside a plan is not read: a socket, as Node gives its children, without an end.
    """
    if caller == "node" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    words = {"RUN": shlex.join([*sessionrun.argv, "-q", "--agent", "shell"]), "PLAN": str(write_plan(sessionrun))}
    script = re.sub("RUN|PLAN", lambda found: words[found[0]], CALLERS[caller])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if caller == "prompts of a socket":
            ours.sendall(LONG.encode())
            ours.shutdown(socket.SHUT_WR)
        argv = ["sh", "-c", script]
        done = subprocess.run(argv, cwd=sessionrun.cwd, stdin=theirs.fileno(), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    session_id = sessionrun.status("last")["session_id"]
    assert done.stdout == (b"" if "1>&-" in script else f"{session_id}\n".encode())
    assert_runs_on(sessionrun, session_id)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "status", "outcome"),
    [
        (
            "touch go; until grep -q '\"SessionEnded\"' results/*/journal; do sleep 0.05; done",
            "completed",
            "succeeded",
        ),
        ("until [ -s results/*/task-a.txt ]; do sleep 0.05; done", "interrupted", "lost"),
    ],
)
def test_in_a_pid_namespace_of_its_own(sessionrun: Command, then: str, status: str, outcome: str) -> None:
    """Its parent is process 1 there, as in a container, and all ends with that; its pids mean nothing outside."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("unshare(1) is not allowed here")
    words = shlex.join([*sessionrun.argv, "-q", "--agent", "shell", str(write_plan(sessionrun))])
    subprocess.run([*unshare, f"{words}; {then}"], cwd=sessionrun.cwd, check=True)
    view = sessionrun.status("last")
    assert (view["status"], view["tasks"][0]["outcome"]) == (status, outcome)


@pytest.mark.parametrize("killed", [False, *slow(True)], ids=["closed", "killed"])
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


# --- many at once, and failed starts ---


@pytest.mark.parametrize(("launchers", "real"), [(3, False), pytest.param(20, True, marks=pytest.mark.slow)])
def test_many_at_once(sessionrun: Command, launchers: int, real: bool) -> None:
    """From the first moment that a reader can find a session, somebody lives for it."""
    write_plan(sessionrun, '{"prompts": ["true", "echo x"]}')
    words = ["-q", "--agent", "shell", "plan.json"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launches = [sessionrun.popen(*words, real=real, **streams) for _ in range(launchers)]
    while any(process.poll() is None for process in launches):
        views = load_summaries(sessionrun.results, everywhere=False)
        assert {view["status"] for view in views} <= {"running", "completed"}
    ids = set()
    for process in launches:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"")
        ids.add(output.decode().strip())
    assert len(ids) == launchers
    assert {view["session_id"] for view in sessionrun.load("list")["sessions"]} == ids
    for session_id in ids:
        assert sessionrun.wait(session_id)["outcome"] == "succeeded"
