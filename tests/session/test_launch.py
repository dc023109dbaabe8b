"""Leaving the caller, whoever that is: the session starts, the caller is free, and its end harms nothing.

A task may be the caller: a tree of sessions in `list`, one cancel for all of it, bounds of depth and cost.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Command, eventually, is_gone, rests, slow
from simulation import make_session
from terminal import Terminal

from sessionrun.client.launch import find_parent, settle_nesting
from sessionrun.client.lookup import arrange, load_summaries
from sessionrun.client.notices import SessionWarning
from sessionrun.model.errors import InputError
from sessionrun.model.spec import Limits, Parent
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


@pytest.mark.parametrize("launchers", [3, *slow(20)])
def test_many_at_once(sessionrun: Command, launchers: int) -> None:
    """From the first moment that a reader can find a session, somebody lives for it."""
    write_plan(sessionrun, '{"prompts": ["true", "echo x"]}')
    words = ["-q", "--agent", "shell", "plan.json"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launches = [sessionrun.popen(*words, **streams) for _ in range(launchers)]
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


# --- sessions that tasks launch ---

PROGRAM = f"{shlex.quote(sys.executable)} -m sessionrun"
JOB = {"SESSIONRUN_JOB": "outer/a/1/1/work/1"}


def launch(command: str, *words: str) -> str:
    """The command of a task that launches a session of one task, and then stays."""
    return f"{PROGRAM} -q --agent shell {' '.join(words)} -p {shlex.quote(command)}; sleep 600"


def names_of(sessionrun: Command) -> dict[str, str]:
    """The sessions that are there: how each stands, by its name."""
    return {view["name"]: view["status"] for view in sessionrun.load("list")["sessions"]}


def test_a_tree_is_shown_and_cancelled(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(sessionrun.results))
    leaf = launch("sleep 600", "--name", "leaf")
    plan = {
        "prompts": [
            {"id": "a", "prompt": launch(leaf, "--name", "inner")},
            {"id": "b", "prompt": launch("sleep 600", "--name", "beside")},
        ]
    }
    outer = sessionrun.start(plan, "--name", "outer")
    eventually(lambda: set(names_of(sessionrun)) == {"outer", "inner", "leaf", "beside"})
    lines = sessionrun("list").stdout.splitlines()[1:]
    shown = [re.findall(r"^running(?: \(.*\))?  ( *)(\w+) ", line)[0] for line in lines]
    assert sorted(shown[1:]) == [("  ", "beside"), ("  ", "inner"), ("    ", "leaf")]
    assert shown[0] == ("", "outer") and shown.index(("    ", "leaf")) == shown.index(("  ", "inner")) + 1
    views = {view["name"]: view for view in sessionrun.load("list")["sessions"]}
    assert views["inner"]["parent"] == {"session_id": outer, "task": "a", "depth": 1}
    assert views["leaf"]["parent"]["depth"] == 2
    assert f"Parent: session {outer}, task a" in sessionrun("status", "inner").stdout.splitlines()

    done = sessionrun("cancel", outer, "a", "--tree", "--json")
    assert done.returncode == 0, done.stderr
    ended = {view["name"]: view["status"] for view in json.loads(done.stdout)["sessions"]}
    assert ended == {"outer": "running", "inner": "cancelled", "leaf": "cancelled"}
    assert names_of(sessionrun)["beside"] == "running"

    assert sessionrun("cancel", outer, "--tree").returncode == 0
    assert set(names_of(sessionrun).values()) == {"cancelled"}
    sessions = [SessionDir(sessionrun.directory(view["session_id"])) for view in views.values()]
    eventually(lambda: not any(session.is_alive() for session in sessions))


def test_a_job_is_the_parent_of_what_it_launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    spec = make_session([])
    assert settle_nesting(spec, {}) is spec
    nested = settle_nesting(spec, {**JOB, "SESSIONRUN_DEPTH": "3"})
    assert nested.parent == Parent("outer", "a", 3)
    assert settle_nesting(nested, {}).parent is None, "a session tried again by its user is nested no more"
    with pytest.raises(InputError, match="would be 4 deep"):
        settle_nesting(spec, {**JOB, "SESSIONRUN_DEPTH": "4"})
    Path("sessionrun.toml").write_text("max_depth = 1\n")
    with pytest.raises(InputError, match="would be 2 deep, but max_depth is 1"):
        settle_nesting(spec, {**JOB, "SESSIONRUN_DEPTH": "2"})
    for marker in ("", "x", "/a/1", "s/", "s//1"):
        assert find_parent({"SESSIONRUN_JOB": marker}) is None
    for depth in ("", "-1", "x", "9" * 40):
        assert find_parent({**JOB, "SESSIONRUN_DEPTH": depth}) == Parent("outer", "a", 1)


@pytest.mark.parametrize(
    ("asked", "has", "settled"),
    [
        (Limits(), "0.5", Limits(budget_usd=0.5)),
        (Limits(budget_usd=0.2), "0.5", Limits(budget_usd=0.2)),
        (Limits(budget_usd=2, soft_budget_usd=1), "0.5", Limits(budget_usd=0.5, soft_budget_usd=0.5)),
        (Limits(budget_usd=2), None, Limits(budget_usd=2)),
        (Limits(budget_usd=2), "none", Limits(budget_usd=2)),
        (Limits(), "nan", Limits()),
    ],
)
def test_the_budget_of_the_job_bounds_it(asked: Limits, has: str | None, settled: Limits) -> None:
    environ = {**JOB, **({} if has is None else {"SESSIONRUN_BUDGET_USD": has})}
    spec = replace(make_session([]), limits=asked)
    if asked.budget_usd is not None and asked.budget_usd > (settled.budget_usd or 0):
        with pytest.warns(SessionWarning, match=r"the budget is \$0\.5,"):
            assert settle_nesting(spec, environ).limits == settled
    else:
        assert settle_nesting(spec, environ).limits == settled


def test_sessions_are_arranged_below_those_that_launched_them() -> None:
    def view(name: str, parent: str | None = None) -> dict[str, object]:
        return {"session_id": name, "parent": parent and {"session_id": parent, "task": "t", "depth": 1}}

    views = [view("new"), view("b", "a"), view("gone", "nowhere"), view("c", "b"), view("d", "a"), view("a")]
    arranged = arrange(views)
    places = [(depth, one["session_id"]) for depth, one in arranged]
    assert places == [(0, "new"), (0, "gone"), (0, "a"), (1, "b"), (2, "c"), (1, "d")]
    circle = [view("x", "y"), view("y", "x"), view("z", "z")]
    assert sorted(str(one["session_id"]) for _, one in arrange(circle)) == ["x", "y", "z"]
