"""What may be asked of a session: a table over the verb and how the session stands; with real processes.

Stopping work: `cancel`, the end of a task's time, and Ctrl+C on `--sync`, with nothing left behind.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from itertools import cycle
from typing import Any, Final

import psutil
import pytest
from conftest import Command, eventually, find_processes, rests, slow
from terminal import Terminal

from sessionrun.cli.control import tell
from sessionrun.client.ask import Refused, Reply, select, send
from sessionrun.client.lookup import load_summaries
from sessionrun.client.reading.view import load_view
from sessionrun.store.requests import MAX_TEXT
from sessionrun.store.session import SessionDir

WAITS = "while ! [ -e go ]; do sleep 0.05; done"
PLAN = [
    {"id": "good", "prompt": "true"},
    {"id": "bad", "prompt": "echo try $SESSIONRUN_ATTEMPT; [ -e mended ]"},
    {"id": "dep", "prompt": "cat mended", "needs": ["bad"]},
    {"id": "long", "prompt": WAITS},
    {"id": "next", "prompt": "true", "needs": ["long"]},
    {"id": "last", "prompt": "true", "needs": ["next"]},
]
"""In a session that runs, `good` has succeeded, `bad` failed, `dep` is skipped, `long` runs; the rest waits."""

BEGUN: Final = "good=succeeded/1 bad=failed/1 dep=skipped/1 long=running/1 next=waiting/1 last=waiting/1"

Row = tuple[str, int, str] | tuple[str, int, str, str]
"""What is asked (without the session), the exit code, what is said, and then how tasks stand: `ID=WORD/ATTEMPT`.

A row that begins with `:` is done beside it: `:touch FILE`, `:kill` the session's own processes, `:wait` for the
end, which comes once somebody waits, or `:same`: since the first row nothing was recorded.  `add ID` is
`run --into` with one task.
"""

STORIES: Final[dict[str, list[Row]]] = {
    "refused": [
        ("retry bad good", 2, "task 'good' succeeded and is not tried again; leave it out"),
        ("retry dep", 2, "task 'dep' needs 'bad', which did not succeed: name that one too"),
        ("retry bad nobody", 2, "no task 'nobody' in session "),
        ("retry --lost", 0, "nothing to retry"),
        ("retry long", 0, "nothing to retry"),
        ("retry bad --no-ready", 2, "--no-ready has no effect: "),
        ("retry bad --model m", 2, "agent 'shell' of task 'bad' takes no model"),
        ("hold nobody", 2, "no task 'nobody' in session "),
        ("continue long more", 2, "task 'long' has not ended: wait for it, or cancel it first"),
        ("continue dep more", 2, "task 'dep' has not begun: there is nothing to go on with"),
        ("continue bad ' \n'", 2, "the follow-up is empty: write what the task shall do"),
        ("continue bad", 2, "give the follow-up once: as TEXT, as - for standard input, or with --file FILE"),
        ("continue bad x --file f", 2, "give the follow-up once: as TEXT, as - for standard input, or with "),
        ("continue bad --file none", 2, "none: No such file or directory"),
        ("continue bad --file latin", 2, "latin: line 1: byte 0xe9 is not UTF-8; save it as UTF-8"),
        ("continue bad --file long", 2, f"the follow-up has {MAX_TEXT + 1} bytes, and may have {MAX_TEXT}: "),
        ("resume", 0, "is running (lock, keeper.lock, root.lock held)"),
        (":same", 0, "", BEGUN),
    ],
    "waited for": [
        ("wait good", 0, "1 of 1 ended: 1 succeeded"),
        ("wait bad", 1, "1 failed"),
        ("wait good bad", 1, "2 of 2 ended"),
        ("wait --any good long", 0, "1 succeeded"),
        ("wait --any", 1, ""),
        ("wait --timeout 0 --json", 124, '"timed_out":true'),
        ("wait --timeout 0.2 long", 124, "0 of 1 ended"),
        ("wait --any --timeout 0.2 long", 124, "3 of 6 ended"),
        ("wait nobody", 2, "no task 'nobody' in session "),
        (":wait", 1, "", "last=succeeded/1"),
    ],
    "tried again": [
        ("set --max-parallel 3", 0, "max_parallel: 3"),
        ("set --max-parallel 0", 0, "max_parallel: no limit"),
        ("set --max-parallel 0 --json", 0, '"max_parallel":null'),
        (":touch mended", 0, ""),
        ("retry", 0, "retrying 2 tasks", "good=succeeded/1 bad=succeeded/2 dep=succeeded/1 long=running/1"),
        ("retry", 0, "nothing to retry"),
        ("retry -q", 0, ""),
        ("retry --json", 0, '"tasks":[]'),
        (":touch go", 0, "", "long=succeeded/1 last=succeeded/1"),
        ("wait", 0, "6 of 6 ended: "),
        ("results bad", 0, "try 2\n"),
    ],
    "held": [
        ("hold", 0, "2 held, 1 running on"),
        ("add one", 0, "its id", "one=held/1"),
        ("release", 0, "3 released", "one=succeeded/1"),
        ("add two", 0, "its id", "two=succeeded/1"),
        ("hold --reason 'the  model is\ndown'", 0, "2 held, 1 running on", "next=held/1 last=held/1"),
        ("hold nex", 0, "1 held"),
        (":touch go", 0, "", "long=succeeded/1 next=held/1"),
        ("status", 0, "the model is down\n"),
        ("status", 0, "on request\n"),
        ("wait", 75, "held"),
        ("wait --through-holds --timeout 0.1", 124, "held"),
        ("release next", 0, "1 released", "next=succeeded/1 last=held/1"),
        ("release", 0, "1 released", "last=succeeded/1"),
    ],
    "cancelled by task": [
        ("cancel next", 0, "1 cancelled", "long=running/1 next=cancelled/1 last=skipped/1"),
        ("retry 5", 0, "retrying 2 tasks", "next=waiting/2 last=waiting/1"),
        ("hold next", 0, "1 held", "next=held/2"),
        ("cancel 4 lon", 0, "1 cancelled", "long=cancelled/1 next=skipped/2"),
        ("wait", 1, "6 of 6 ended: "),
        ("cancel long good", 0, "1 cancelled, 1 had ended before"),
    ],
    "cancelled": [
        ("cancel", 0, "3 cancelled, 3 had ended before", "long=cancelled/1 next=cancelled/1 last=cancelled/1"),
        ("cancel", 0, "3 cancelled, 3 had ended before"),
        ("resume", 0, "has ended (failed)"),
        ("wait", 1, "6 of 6 ended: "),
        ("cancel --json", 0, '"status":"cancelled"'),
    ],
    "ended": [
        ("cancel", 0, "6 had ended before"),
        ("hold", 0, "nothing to hold"),
        ("release", 0, "nothing is held"),
        ("resume", 0, "has ended (failed)"),
        ("resume --json", 0, '"resumed":false,"status":"completed"'),
        ("set --max-parallel 1", 2, "has ended, and nothing of it runs any more"),
        ("add late", 2, "has ended, and nothing was added: start a new one with sessionrun run FILE"),
        (":same", 0, ""),
        ("retry", 0, "retrying 2 tasks", "bad=failed/2 dep=skipped/1"),
        (":touch mended", 0, ""),
        ("retry --sync", 0, ": 6 succeeded; ", "bad=succeeded/3 dep=succeeded/1 good=succeeded/1"),
        ("status --json", 0, '"epoch":3'),
        ("continue good 'echo more'", 0, "task good goes on, attempt 2", "good=succeeded/2"),
        ("continue good 'exit 3' -q", 0, "its id", "good=failed/3"),
        ("retry good -q", 0, "its id", "good=failed/4"),
        ("continue 1 - --sync -q", 0, "its id", "good=succeeded/5"),
        ("results good", 0, "more\n"),
    ],
    "killed": [
        (":kill", 0, "", "long=running/1 next=waiting/1"),
        ("continue good more", 2, "was interrupted: sessionrun resume lets it go on first"),
        ("hold next", 4, "is left; the request waits until the session is resumed"),
        ("set --max-parallel 3", 4, "is left; the request waits until the session is resumed"),
        ("add late", 4, "is left; the request waits until the session is resumed"),
        ("resume", 0, "goes on", "next=held/1 late=succeeded/1"),
        ("status --json", 0, '"max_parallel":3'),
        ("status", 0, ", partly held, 7 tasks, "),
        ("release", 0, "1 released"),
        (":kill", 0, ""),
        ("status --json", 0, '"max_parallel":3'),
        (":touch mended", 0, ""),
        ("retry", 0, "retrying 2 tasks", "bad=succeeded/2 dep=succeeded/1"),
        (":kill", 0, ""),
        ("cancel", 0, "3 cancelled, 4 had ended before", "long=cancelled/1"),
    ],
}


def assert_nothing_left(sessionrun: Command, session_id: str) -> None:
    """No process of the session lives, soon after its end."""
    eventually(lambda: not find_processes(sessionrun.results, {session_id}))


def shows(wanted: set[str], view: dict[str, Any]) -> bool:
    return wanted <= {f"{task['id']}={task['word']}/{task['attempt']}" for task in view["tasks"]}


def test_a_follow_up_may_be_typed_at_the_terminal(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": ["true"]})
    sessionrun.wait(session_id)
    with Terminal([*sessionrun.argv, "continue", session_id, "1", "-"], sessionrun.cwd) as terminal:
        terminal.type(b"echo typed\n\x04")
        assert terminal.finish() == 0, terminal.output
    sessionrun.wait(session_id)
    assert "typed\n" in sessionrun("results", session_id).stdout


@pytest.mark.parametrize("name", STORIES)
def test_what_is_asked(sessionrun: Command, name: str) -> None:
    """A session is named by its id, by the beginning of that, and by its name, in turn."""
    (sessionrun.cwd / "latin").write_bytes(b"caf\xe9\n")
    (sessionrun.cwd / "long").write_text("x" * (MAX_TEXT + 1))
    if name == "ended":
        (sessionrun.cwd / "go").touch()
    session_id = sessionrun.start(PLAN, "--name", "nightly")
    sessionrun.until(session_id, lambda view: view["ended_at"] if name == "ended" else view["completed"] == 3)
    folder = sessionrun.directory(session_id)
    before, refs = (folder / "journal").read_bytes(), cycle((session_id, session_id[:6], "nightly"))
    for asked, code, says, *then in STORIES[name]:
        words = shlex.split(asked)
        if words[0] == ":touch":
            (sessionrun.cwd / words[1]).touch()
        elif words[0] == ":kill":
            sessionrun.kill_chain(session_id)
        elif words[0] == ":wait":
            with sessionrun.popen("wait", session_id, stdout=subprocess.DEVNULL) as waiting:
                assert waiting.poll() is None
                (sessionrun.cwd / "go").touch()
                assert waiting.wait(60) == code
        elif words[0] == ":same":
            assert (folder / "journal").read_bytes() == before
        else:
            check(ask(sessionrun, next(refs), *words), asked, code, says, session_id)
        wanted = set(" ".join(then).split())
        if wanted:
            sessionrun.until(session_id, partial(shows, wanted))
    assert list((folder / "requests").iterdir()) == []
    (sessionrun.cwd / "go").touch()
    sessionrun.wait(session_id)
    assert_nothing_left(sessionrun, session_id)


def ask(sessionrun: Command, session: str, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    if verb == "add":
        return sessionrun("run", "-q", "--into", session, stdin=json.dumps([{"id": words[0], "prompt": "true"}]))
    return sessionrun(verb, session, *words, stdin="echo more" if "-" in words else None)


def check(done: subprocess.CompletedProcess[str], asked: str, code: int, says: str, session_id: str) -> None:
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), (asked, done.stderr)
    if code in (2, 4):
        assert done.stderr.startswith("sessionrun: error: ") and says in done.stderr, asked
        assert (done.stdout, done.stderr.count("\n")) == ("", 1), asked
    elif " -q" in asked or asked.startswith("add"):
        assert done.stdout == (f"{session_id}\n" if says else ""), asked
    elif asked.startswith(("status", "wait", "results")) or "--json" in asked or "--sync" in asked:
        assert says in done.stdout + done.stderr, (asked, done.stdout)
    else:
        assert done.stdout == f"nightly ({session_id[:8]}): {says}\n", asked


GO_ON: Final = {"kind": "continue", "tasks": ["long"]}
REFUSED: Final = (
    ({"kind": "frobnicate"}, "this version does not know the kind 'frobnicate'"),
    ({"kind": "hold", "tasks": ["nobody"]}, "there is no task 'nobody'"),
    ({**GO_ON, "text": "x"}, "task 'long' has not ended: wait for it, or cancel it first"),
    ({**GO_ON, "text": 7}, "text has a value that does not belong there: expected `str | null`, got `int`"),
)


def test_a_client_learns_why_its_request_was_refused(sessionrun: Command) -> None:
    session = SessionDir(sessionrun.directory(sessionrun.start({"prompts": [{"id": "long", "prompt": WAITS}]})))
    for record, why in REFUSED:
        with pytest.raises(Refused, match="refused the request; ") as refused:
            send(session, record, timeout_s=60.0)
        assert refused.value.why == why
    assert list((session.path / "requests").iterdir()) == []


def test_what_became_of_a_request_is_told_as_it_is() -> None:
    """A task that was skipped keeps its attempt when its need is tried again, and may be over before we look."""

    def tasks(*ends: tuple[str, int]) -> list[dict[str, Any]]:
        return [
            {"id": str(number), "status": "completed", "outcome": outcome, "attempt": attempt}
            for number, (outcome, attempt) in enumerate(ends)
        ]

    first = tasks(("failed", 1), ("skipped", 1))
    for kind, before, feed, now, told in (
        ("retry", first, None, tasks(("succeeded", 2), ("succeeded", 1)), "retrying 2 tasks"),
        ("retry", first, None, tasks(("failed", 2), ("skipped", 1)), "retrying 2 tasks"),
        ("retry", first, None, first, "nothing was left to retry"),
        ("cancel", [], None, [], "nothing to cancel"),
        ("cancel", [], {"open": False}, [], "no task to cancel; it takes none from the queue any more"),
    ):
        view = {"session_id": "s", "name": None, "feed": feed}
        assert tell(kind, Reply(True, before, view, now)) == f"s: {told}"


@pytest.mark.slow
def test_many_retries_one_by_one_and_at_once(sessionrun: Command) -> None:
    """Each that comes just as the session ends is one more attempt; those that come before mean the same one."""
    session_id = sessionrun.start({"prompts": ["exit 3"]})
    for attempt in range(2, 12):
        sessionrun.until(session_id, lambda view: view["completed"] == 1)
        assert sessionrun("retry", session_id, "-q").stdout == f"{session_id}\n"
        assert sessionrun.wait(session_id)["tasks"][0]["attempt"] == attempt
    asking = [sessionrun.popen("retry", session_id, stdout=subprocess.DEVNULL) for _ in range(8)]
    assert [process.wait(60) for process in asking] == [0] * 8
    assert 12 <= sessionrun.wait(session_id)["tasks"][0]["attempt"] <= 19
    folder = sessionrun.directory(session_id)
    assert list((folder / "requests").iterdir()) == []
    (folder / "wake").unlink()  # so it cannot get a supervisor
    done = sessionrun("retry", session_id, "--timeout", "3")
    assert done.returncode in (4, 124) and "Traceback" not in done.stderr


def test_what_was_taken_is_told_though_status_json_is_behind(sessionrun: Command) -> None:
    """So it is on a disk that has no room for a new status.json, while the journal still takes records."""
    session_id = sessionrun.start({"max_parallel": 1, "prompts": [WAITS, {"id": "b", "prompt": "true"}]})
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    session = SessionDir(sessionrun.directory(session_id))
    target, before = select(session, ("b",)), session.status_path.read_bytes()
    assert sessionrun("hold", session_id, "b").returncode == 0
    session.status_path.write_bytes(before)
    assert target.view["tasks"][1]["reason_class"] != "held"
    assert [task["reason_class"] for task in target.reload().tasks] == ["held"]
    session.spec_path.unlink()  # so the logs mean nothing
    assert target.reload().view["total"] == 2


def test_a_held_session_lives_on_without_work_and_can_be_cancelled(sessionrun: Command) -> None:
    plan = [{"id": "a", "prompt": WAITS}, {"id": "b", "prompt": "true", "needs": ["a"]}]
    session_id = sessionrun.start({"prompts": plan})
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    assert sessionrun.load("hold", session_id)["tasks"][1]["reason"] == "held: on request"
    (sessionrun.cwd / "go").touch()
    sessionrun.until(session_id, lambda view: view["completed"] == 1)
    eventually(rests(sessionrun.supervisor(session_id)))
    assert sessionrun("wait", session_id).returncode == 75
    assert sessionrun("cancel", session_id).stdout == f"{session_id[:8]}: 1 cancelled, 1 had ended before\n"


# --- stopping ---

STUBBORN = "trap '' TERM INT HUP; echo $$ >stubborn; while :; do sleep 1; done"

GRACE = """
[agents.own]
argv = ["sh", "{{prompt_file}}"]
stdin = "none"
stop_grace_s = {grace_s}
"""


def test_only_asking_and_then_no_grace_by_many_at_once(sessionrun: Command) -> None:
    session_id = sessionrun.start({"prompts": [STUBBORN]}, *use_grace(sessionrun, 600))
    eventually((sessionrun.cwd / "stubborn").exists)
    done = sessionrun("cancel", session_id, "--timeout", "0")
    assert (done.returncode, done.stdout) == (0, f"{session_id[:8]}: 1 still stopping\n")
    eventually(lambda: sessionrun.load("explain", session_id)["tasks"][0]["cause"] == "stopping")
    assert sessionrun("cancel", session_id, "--timeout", "0.01").returncode == 124
    words = ("cancel", session_id, "--now", "--json")
    for process in [sessionrun.popen(*words, stdout=subprocess.PIPE) for _ in range(6)]:
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, json.loads(output)["status"]) == (0, "cancelled")
    view = sessionrun.wait(session_id)
    assert (view["status"], view["tasks"][0]["signal"]) == ("cancelled", signal.SIGKILL)
    assert sessionrun.load("explain", session_id, "1")["tasks"][0]["why"] == "cancelled: on request"
    assert list((sessionrun.directory(session_id) / "requests").iterdir()) == []


def use_grace(sessionrun: Command, grace_s: float = 0.3) -> list[str]:
    """An agent like `shell` that is killed soon when it does not end, or late; the words that choose it."""
    (sessionrun.cwd / "sessionrun.toml").write_text(GRACE.format(grace_s=grace_s))
    return ["--agent", "own"]


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


def test_ctrl_c_cancels_though_it_ended_what_reads_the_errors_first(sessionrun: Command) -> None:
    process = sessionrun.popen("--sync", "--agent", "shell", "-p", "sleep 600", stderr=subprocess.PIPE)
    assert process.stderr.readline() == b"agent: shell (asked for)\n"
    session_id = process.stderr.readline().decode().removeprefix("session: ").strip()
    sessionrun.until(session_id, lambda view: view["running"] == 1)
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert sessionrun.wait(session_id)["status"] == "cancelled"


def test_ctrl_c_cancels_and_waits(sessionrun: Command) -> None:
    (sessionrun.cwd / "plan.json").write_text(json.dumps(["echo the answer", "sleep 600", STUBBORN]))
    words = ["--sync", *use_grace(sessionrun), "plan.json"]
    with Terminal([*sessionrun.argv, *words], sessionrun.cwd) as terminal:
        eventually((sessionrun.cwd / "stubborn").exists)
        terminal.read_until(b"1 succeeded, 2 running")
        terminal.type(b"\x03")
        assert terminal.finish() == 130
    shown = terminal.output.partition(b"cancelling")[2]
    assert b"the answer\r\n" in shown and b"Traceback" not in terminal.output
    assert b"\x1b[?25h" in terminal.output  # the cursor is back
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


LOST = """
import _thread, signal, types
from sessionrun.cli import interrupts
signal.signal(signal.SIGINT, interrupts._press)
_thread.start_new_thread(signal.pause, ())  # it holds no signal back
try:
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    interrupts._raise_later(types.SimpleNamespace(exc_type=KeyboardInterrupt))
    while signal.SIGINT not in signal.sigpending():
        pass
    print("whole")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    print("not pressed")
except KeyboardInterrupt:
    print("pressed")
"""


def test_a_ctrl_c_that_was_lost_waits_while_signals_are_held_back() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=30)
    assert (done.stdout.split(), done.stderr) == (["whole", "pressed"], "")
