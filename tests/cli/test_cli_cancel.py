"""Stopping work: `cancel`, the end of a task's time, and Ctrl+C on `--sync`, with nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Final

import psutil
import pytest
from conftest import Command, eventually, find_processes, slow
from terminal import Terminal

from sessionrun.cli.control import tell
from sessionrun.client.ask import Reply
from sessionrun.client.lookup import load_summaries
from sessionrun.client.reading.view import load_view
from sessionrun.store.session import SessionDir

STUBBORN = "trap '' TERM INT HUP; echo $$ >stubborn; while :; do sleep 1; done"
RUNAWAY = "setsid sh -c 'trap \"\" TERM; echo $$ >runaway; exec sleep 600' </dev/null & while :; do sleep 1; done"

GATE = "while ! [ -e go ]; do sleep 0.05; done"
GRACE = """
[agents.own]
argv = ["sh", "{{prompt_file}}"]
stdin = "none"
stop_grace_s = {grace_s}
"""


def assert_nothing_left(sessionrun: Command, session_id: str) -> None:
    """No process of the session lives, soon after its end."""
    eventually(lambda: not find_processes(sessionrun.results, {session_id}))


def test_an_agent_that_ignores_term_and_a_child_in_a_session_of_its_own(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": [STUBBORN, RUNAWAY]}, *use_grace(sessionrun))
    runaway = sessionrun.cwd / "runaway"
    pid = int(eventually(lambda: runaway.exists() and runaway.read_text().strip()))
    assert os.getsid(pid) == pid
    eventually((sessionrun.cwd / "stubborn").exists)
    assert sessionrun("cancel", session_id).returncode == 0
    task = sessionrun.status(session_id)["tasks"][0]
    assert (task["outcome"], task["signal"], task["exit_code"]) == ("cancelled", 9, None)
    assert_nothing_left(sessionrun, session_id)


def test_only_asking_and_then_no_grace(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": [STUBBORN]}, *use_grace(sessionrun, 600))
    eventually((sessionrun.cwd / "stubborn").exists)
    done = sessionrun("cancel", session_id, "--timeout", "0")
    assert (done.returncode, done.stdout) == (0, f"{session_id[:8]}: 1 still stopping\n")
    assert sessionrun("cancel", session_id, "--timeout", "0.01").returncode == 124
    assert sessionrun("cancel", session_id, "1", "--now").returncode == 0
    view = sessionrun.wait(session_id)
    assert (view["status"], view["tasks"][0]["signal"]) == ("cancelled", signal.SIGKILL)
    assert list((sessionrun.directory(session_id) / "requests").iterdir()) == []


def test_many_cancels_at_once(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": ["sleep 600"] * 5})
    asking = [sessionrun.popen("cancel", session_id, "--json", stdout=subprocess.PIPE) for _ in range(6)]
    for process in asking:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert json.loads(output)["status"] == "cancelled"
    assert list((sessionrun.directory(session_id) / "requests").iterdir()) == []


def test_time_out_takes_the_tree_along(sessionrun: Command) -> None:
    plan = {"prompts": [f"echo begun; {RUNAWAY}", {"prompt": "true", "timeout": 60}]}
    session_id = sessionrun.start(plan, *use_grace(sessionrun), "--timeout", "2")
    assert [task["outcome"] for task in sessionrun.wait(session_id)["tasks"]] == ["timed_out", "succeeded"]
    assert (sessionrun.cwd / "runaway").exists()
    assert_nothing_left(sessionrun, session_id)
    shown = sessionrun("results", session_id).stdout
    assert "timed out" in shown and "begun" in shown


def use_grace(sessionrun: Command, grace_s: float = 0.3) -> list[str]:
    """An agent like `shell` that is killed soon when it does not end, or late; the words that choose it."""
    (sessionrun.cwd / "sessionrun.toml").write_text(GRACE.format(grace_s=grace_s))
    return ["--agent", "own"]


def start_on_terminal(sessionrun: Command, plan: object, *words: str) -> Terminal:
    file = sessionrun.cwd / "plan.json"
    file.write_text(json.dumps(plan))
    return Terminal([*sessionrun.argv, "--sync", "--agent", "shell", *words, str(file)], sessionrun.cwd)


def test_sync_off_a_terminal(sessionrun: Command) -> None:
    plan = '{"prompts": [{"id": "a", "prompt": "echo fine"}, {"id": "b", "prompt": "exit 7"}]}'
    done = sessionrun("--sync", "--agent", "shell", stdin=plan)
    assert done.returncode == 1
    assert "\n1 succeeded, 1 failed\n\n\u2713 a succeeded: echo fine\nfine\n\n" in done.stdout
    lines = done.stderr.splitlines()
    assert lines[0] == "agent: shell (asked for)"
    assert lines[1].startswith("session: ")
    short = lines[1][len("session: ") :][:8]
    assert re.fullmatch(rf"{short}: 1 succeeded, 1 failed; \d+\.\d s", lines[-2])
    assert lines[-1] == f"why: sessionrun results {short} --failed"
    assert "\x1b" not in done.stderr
    done = sessionrun("--sync", "--json", "--agent", "shell", stdin='{"prompts": ["true"]}')
    assert done.returncode == 0
    assert json.loads(done.stdout)["outcome"] == "succeeded"


def test_sync_on_a_terminal(sessionrun: Command) -> None:
    with start_on_terminal(sessionrun, {"prompts": [f"{GATE}; echo the answer", "true"]}) as terminal:
        terminal.read_until(b"1 succeeded, 1 running")
        (sessionrun.cwd / "go").touch()
        assert terminal.finish() == 0
    assert b"the answer\r\n" in terminal.output
    assert b"\x1b[?25h" in terminal.output  # the cursor is back


def test_ctrl_c_cancels_and_waits(sessionrun: Command) -> None:
    plan = {"prompts": ["true", "sleep 600", STUBBORN]}
    with start_on_terminal(sessionrun, plan, *use_grace(sessionrun)) as terminal:
        eventually((sessionrun.cwd / "stubborn").exists)
        terminal.read_until(b"1 succeeded, 2 running")
        terminal.type(b"\x03")
        assert terminal.finish() == 130
    assert b"cancelling" in terminal.output
    assert b"Traceback" not in terminal.output
    view = sessionrun.status("last")
    assert view["status"] == "cancelled"
    assert [task["outcome"] for task in view["tasks"]] == ["succeeded", "cancelled", "cancelled"]
    assert_nothing_left(sessionrun, view["session_id"])


@pytest.mark.parametrize(
    "code",
    [
        "exec('os.kill(os.getpid(), 2)', {'os': os})",  # Python would end itself by the signal
        "type('Owner', (), {'name': Named()})",  # Python before 3.12 makes a RuntimeError of it
        *slow("weakref.finalize(Named(), os.kill, os.getpid(), 2)"),  # Python prints and forgets it
    ],
)
def test_ctrl_c_where_python_loses_it(sessionrun: Command, code: str) -> None:
    (sessionrun.cwd / "sitecustomize.py").write_text(
        "import os, sys, weakref\n"
        "class Named:\n"
        "    def __set_name__(self, owner, name):\n"
        "        os.kill(os.getpid(), 2)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'sessionrun.client.launch':\n"
        f"            {code}\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = sessionrun("--agent", "shell", stdin='["true"]', env={"PYTHONPATH": str(sessionrun.cwd)})
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
    assert not sessionrun.results.exists() or sessionrun.load("list")["sessions"][0]["status"] == "cancelled"


COUNT_CALLS: Final = """
import os, sys
if "INTERRUPT_AT" in os.environ:
    left, begun = int(os.environ.pop("INTERRUPT_AT")), False
    first = os.environ.pop("INTERRUPT_FROM", "sessionrun/cli/__init__.py")
    def look(frame, event, arg):
        global left, begun
        begun = begun or first in f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        left -= begun
        return None if left else interrupt
    def interrupt(frame, event, arg):  # at its first line: some calls do not bear an exception at once
        sys.settrace(None)
        os.kill(os.getpid(), 2)
    sys.settrace(look)
    os.register_at_fork(after_in_child=lambda: sys.settrace(None))
"""
"""Ctrl+C at a call of a function of Python, counted from the first of the command: no clock, no luck."""


def test_ctrl_c_when_the_id_was_told_changes_nothing(sessionrun: Command) -> None:
    """A caller that sees exit code 130 believes that nothing runs."""
    (sessionrun.cwd / "sitecustomize.py").write_text(COUNT_CALLS)
    env = {"PYTHONPATH": str(sessionrun.cwd), "INTERRUPT_FROM": "interrupts.py:ignore", "INTERRUPT_AT": "2"}
    done = sessionrun("-q", "--agent", "shell", stdin='["true"]', env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert sessionrun.wait(done.stdout.strip())["outcome"] == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--sync"]])
def test_ctrl_c_at_any_call_of_a_start(sessionrun: Command, words: list[str]) -> None:
    """Exit code 130, one line at most, and nothing that runs on or is half made, until the id was told."""
    (sessionrun.cwd / "sitecustomize.py").write_text(COUNT_CALLS)
    (sessionrun.cwd / "plan.json").write_text('["sleep 600"]')
    call, codes = 1, [130]
    while codes[-1] == 130 and call < 90_000:  # `--sync` would go on calling
        before = set(sessionrun.results.glob("session-*"))
        env = {"PYTHONPATH": str(sessionrun.cwd), "INTERRUPT_AT": str(call)}
        done = sessionrun("-q", "--agent", "shell", *words, "plan.json", env=env)
        codes.append(done.returncode)
        made = set(sessionrun.results.glob("session-*")) - before
        assert done.stderr.strip() in ("", "cancelling ..."), call
        for path in made:
            view = load_view(SessionDir(path))
            assert view["status"] == ("cancelled" if done.returncode == 130 else "running"), call
            if done.returncode:
                assert_nothing_left(sessionrun, view["session_id"])
        call += call // 25 + 197
    assert len(codes) > 40
    assert sessionrun("cancel", "last").returncode == 0


@pytest.mark.slow
def test_other_ends_of_the_caller_leave_the_session_running(sessionrun: Command) -> None:
    plan = sessionrun.cwd / "plan.json"
    plan.write_text('{"prompts": ["sleep 600"]}')
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        process = sessionrun.popen("--sync", "-q", "--agent", "shell", str(plan), stderr=subprocess.DEVNULL)
        eventually(
            lambda: [one["running"] for one in load_summaries(sessionrun.results, everywhere=False)][:1] == [1]
        )
        process.send_signal(number)
        assert process.wait(60) == -number
        view = sessionrun.status("last")
        assert view["status"] == "running"
        assert psutil.pid_exists(view["tasks"][0]["pid"])
        assert sessionrun("cancel", "last").returncode == 0


def test_a_session_that_waits_for_its_queue_is_not_said_to_be_left_alone() -> None:
    view = {"session_id": "s", "name": None}
    assert tell("cancel", Reply(True, [], {**view, "feed": None}, [])) == "s: nothing to cancel"
    told = "s: no task to cancel; it takes none from the queue any more"
    assert tell("cancel", Reply(True, [], {**view, "feed": {"open": False}}, [])) == told


LOST = """
import _thread, signal, sys, threading, types
from sessionrun.cli import interrupts
start, blocked, sent = _thread.start_new_thread, threading.Event(), threading.Event()
def later(call, words):
    blocked.wait()
    call(*words)
    sent.set()
_thread.start_new_thread = lambda call, words: start(later, (call, words))
signal.signal(signal.SIGINT, interrupts._press)
sys.unraisablehook = interrupts._raise_later
try:
    sys.unraisablehook(types.SimpleNamespace(exc_type=KeyboardInterrupt))
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    blocked.set()
    sent.wait()
    print("whole")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    print("not pressed")
except KeyboardInterrupt:
    print("pressed")
"""


def test_a_ctrl_c_that_was_lost_waits_while_signals_are_held_back() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=30)
    assert (done.stdout.split(), done.stderr) == (["whole", "pressed"], "")
