"""What stands beside a supervisor: limits of providers, met by real processes, and who is told of a session."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from shown import with_state, with_word
from simulation import make_session

from sessionrun.engine.status import project
from sessionrun.model.spec import TaskSpec
from sessionrun.session import notifying
from sessionrun.session.history import begin
from sessionrun.session.notifying import FILE, Notifying
from sessionrun.store.session import SessionDir

# --- a program that speaks as claude does, and has a quota; a limit that a session met is known to the others ---

PROGRAM = """\
import json, os, pathlib, signal, sys, time

here = pathlib.Path(sys.argv[1])
prompt = sys.stdin.read()
if (here / "span").exists():
    (here / "until").write_text(str(int(time.time()) + int((here / "span").read_text())))
    (here / "span").unlink()
until = float((here / "until").read_text())
resumed = [word for word in sys.argv if word.startswith("--resume=")]
with (here / "runs").open("a") as runs:
    runs.write(json.dumps([time.time(), prompt, resumed]) + chr(10))
if resumed and (here / "gone").exists():
    said = "No conversation found with session ID: c-1"
    print(said, file=sys.stderr)
    lost = {"type": "result", "subtype": "error_during_execution", "is_error": True, "num_turns": 0}
    print(json.dumps({**lost, "session_id": "c-1", "errors": [said]}))
    sys.exit(1)
print(json.dumps({"type": "system", "subtype": "init", "session_id": "c-1", "model": "m"}))
usage = {"input_tokens": 3, "output_tokens": 0 if time.time() < until else 5}
result = {"type": "result", "subtype": "success", "session_id": "c-1", "num_turns": 1, "usage": usage}
if prompt == "crash":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
if prompt.startswith("leave"):
    job = {"task_id": "b1", "run_id": "r1", "is_backgrounded": True, "description": "build it"}
    print(json.dumps({"type": "system", "subtype": "task_started", **job}))
if time.time() < until:
    print(json.dumps({**result, "is_error": True, "result": f"Claude AI usage limit reached|{int(until)}"}))
    sys.exit(1)
print(json.dumps({**result, "is_error": False, "result": f"did {prompt.strip()}"}))
if prompt == "leave and wait":
    sys.stdout.flush()
    time.sleep(600)
"""


class Quota:
    """An agent `limited` with a quota, and another one without."""

    def __init__(self, sessionrun: Command) -> None:
        self.sessionrun = sessionrun
        self.folder = folder = sessionrun.cwd
        (folder / "agent.py").write_text(PROGRAM)
        self.set(0.0)
        argv = json.dumps([sys.executable, str(folder / "agent.py"), str(folder)])
        agent = f"argv = {argv}\noutput = 'claude'\ncontinue_args = ['--resume={{conversation}}']\n"
        (folder / "sessionrun.toml").write_text(f"[agents.limited]\n{agent}\n[agents.other]\n{agent}")

    def set(self, until: float) -> None:
        """The quota is used up until then."""
        (self.folder / "until").write_text(str(until))

    def start(self, tasks: list[dict[str, Any]], *words: str) -> str:
        """A session of these tasks."""
        done = self.sessionrun("-q", "--agent", "limited", *words, stdin=json.dumps({"prompts": tasks}))
        assert done.returncode == 0, done.stderr
        self.sessionrun.sessions.append(done.stdout.strip())
        return self.sessionrun.sessions[-1]

    def runs(self) -> list[list[Any]]:
        """Each run: when, its prompt, the conversation that it went on with."""
        return [json.loads(line) for line in (self.folder / "runs").read_text().splitlines()]


@pytest.fixture
def quota(sessionrun: Command) -> Quota:
    return Quota(sessionrun)


@pytest.mark.long
def test_tasks_wait_for_the_reset_and_lose_no_retry(quota: Quota) -> None:
    quota.set(time.time() + 600)
    tasks = [{"id": f"t{number}", "prompt": f"p{number}"} for number in range(3)]
    session = quota.start(
        [
            *tasks,
            {"id": "n", "prompt": "p3", "needs": ["t2"]},
            {"id": "s", "agent": "shell", "prompt": "echo fine"},
        ],
        "--max-parallel",
        "1",
    )
    view = quota.sessionrun.until(session, lambda view: view["tasks"][0]["held_until"])
    assert view["tasks"][0]["reason"].startswith("held: usage_limit: ")
    done = quota.sessionrun.until(session, lambda view: view["tasks"][4]["outcome"] == "succeeded")
    assert done["tasks"][1]["status"] == "pending", "it was started although its provider was held"
    said = quota.sessionrun("explain", session, "t1").stdout
    assert "Claude AI usage limit reached|" in said and "until " in said
    waited = quota.sessionrun("wait", session, "--timeout", "0.2")
    assert (
        waited.returncode == 124
        and ": 1 of 5 ended: 1 succeeded, 3 held, 1 waiting\n    held until " in waited.stdout
    )
    assert quota.sessionrun("wait", session, "s").returncode == 0
    (quota.folder / "span").write_text("2")  # the next run finds the quota used up, for so long from then on
    assert quota.sessionrun("release", session).returncode == 0
    view = quota.sessionrun.wait(session)
    assert [(task["outcome"], task["attempt"]) for task in view["tasks"]] == [("succeeded", 1)] * 5
    runs, reset = quota.runs(), float((quota.folder / "until").read_text())
    assert [run[1] for run in runs] == ["p0", "p0", "p0", "p1", "p2", "p3"], "others met the limit too"
    assert runs[1][0] < reset and all(run[0] >= reset for run in runs[2:])
    assert [run[2] for run in runs] == [[]] * 6, "a conversation in which nothing was said went on"


def test_another_agent_takes_over(quota: Quota) -> None:
    quota.set(time.time() + 600)
    tasks = [{"id": "a", "prompt": "one"}, {"id": "b", "prompt": "two"}]
    session = quota.start(tasks, "--fallback", "shell", "--max-parallel", "1")
    quota.sessionrun.wait(session)
    view = quota.sessionrun.status(session)
    assert [task["agent"] for task in view["tasks"]] == ["shell", "shell"]
    assert len(quota.runs()) == 1
    said = quota.sessionrun("explain", session, "a").stdout
    assert " failed (exit code 1; usage limit: Claude AI usage limit reached|" in said


RED = "echo it is red; [ $SESSIONRUN_ROUND = 2 ]"
SAME = ["--resume=c-1"]
FAILED = re.escape(f"This command failed with exit code 1: {RED}\n\nThe end of its output:\n\nit is red\n")
STOPPED = "1 background job was stopped when the turn ended: 'build it'"
TALKS: dict[str, tuple[dict[str, Any], list[tuple[str, list[str]]]]] = {
    # a task -> the prompt of each run, as a pattern, and which conversation it goes on with
    "broken off": (
        {"prompt": "crash", "retries": 1},
        [("crash", []), (r"Your last run was broken off \(.*Go on where you stopped\.", SAME)],
    ),
    "broken off, and gone": (
        {"prompt": "crash", "retries": 1},
        [("crash", []), (".*", SAME), (r"crash\n\nAn earlier run of this task was broken off \(.*", [])],
    ),
    "a red check": (
        {"prompt": "p", "check": RED, "rounds": 2},
        [("p", []), (rf"Your last attempt did not pass its check\.\n\n{FAILED}", SAME)],
    ),
    "a red check, and gone": (
        {"prompt": "p", "check": RED, "rounds": 2},
        [("p", []), (".*", SAME), (r"p\n\nYour last attempt did not pass its check\..*it is red\n", [])],
    ),
    "left running": (
        {"prompt": "leave", "retries": 1},
        [("leave", []), (f".*{STOPPED}.*Run such work in the foreground, or wait for its end.*", SAME)],
    ),
    "left running, with a check": (
        {"prompt": "leave", "check": "true", "rounds": 2},
        [("leave", []), (f".*{STOPPED}.*Run such work in the foreground, or wait for its end.*", SAME)],
    ),
    "turns": (
        {"prompts": ["one", "two", "three"], "prompt_mode": "continue"},
        [("one", []), ("two", SAME), ("three", SAME)],
    ),
}


@pytest.mark.parametrize("name", TALKS)
def test_a_task_goes_on_in_its_conversation(quota: Quota, name: str) -> None:
    """Where that is gone, it begins anew with the whole prompt."""
    task, runs = TALKS[name]
    if "gone" in name:
        (quota.folder / "gone").touch()
    session = quota.start([{"id": "a", **task}])
    (ended,) = quota.sessionrun.wait(session)["tasks"]
    assert (ended["outcome"], ended["attempt"], ended["round"]) == ("succeeded", 1, task.get("rounds", 1))
    assert [run[2] for run in quota.runs()] == [resumed for _, resumed in runs]
    for (_, prompt, _), (pattern, _) in zip(quota.runs(), runs, strict=True):
        assert re.fullmatch(pattern, prompt, re.DOTALL), prompt
    answer = quota.sessionrun("results", session).stdout
    assert sum(line.strip().startswith("did ") for line in answer.splitlines()) == 1


def test_a_time_limit_while_work_is_open_is_no_reason_to_do_all_of_it_again(quota: Quota) -> None:
    session = quota.start([{"id": "a", "prompt": "leave and wait", "timeout": 2, "check": "true", "rounds": 2}])
    task = quota.sessionrun.wait(session)["tasks"][0]
    assert (task["outcome"], task["reason_class"], task["round"]) == ("failed", "left_running", 1)
    assert task["reason"].endswith("'build it' (timeout: not done after 2 s)")


# --- sessions beside each other ---


def is_held(view: dict[str, Any]) -> bool:
    return any(task["reason_class"] == "held" for task in view["tasks"])


@pytest.mark.slow
def test_a_launch_says_that_its_provider_is_held(quota: Quota) -> None:
    quota.set(time.time() + 600)
    first = quota.start([{"id": "a0", "prompt": "a0"}])
    quota.sessionrun.until(first, is_held)
    done = quota.sessionrun("--agent", "limited", "--json", stdin=json.dumps({"prompts": ["b0"]}))
    second = str(json.loads(done.stdout)["session_id"])
    quota.sessionrun.sessions.append(second)
    said = [line for line in done.stderr.splitlines() if "provider limited is held until " in line]
    assert len(said) == 1, done.stderr
    assert f"met by session {first[:8]}" in said[0] and f"sessionrun explain {second[:8]}" in said[0]
    view = quota.sessionrun.until(second, is_held)
    assert f"(met by session {first[:8]})" in view["tasks"][0]["reason"]
    assert f"met by session {first[:8]}" in quota.sessionrun("explain", second).stdout
    assert len(quota.runs()) == 1
    quota.set(0)
    for session in (first, second):
        assert quota.sessionrun("release", session).returncode == 0
        assert quota.sessionrun.wait(session)["outcome"] == "succeeded"
    assert len(quota.runs()) == 3


# --- who is told: once of a session's end, its first failure, hold and landing; and what becomes of that ---

STATUS: dict[str, Any] = {**project(begin(make_session([TaskSpec("a", ("x",))]))), "name": "nightly"}
TASK = {**STATUS["tasks"][0], "status": "running"}
END = {"status": "completed", "outcome": "failed"}
FAILED_TASK = with_word({**TASK, **END, "reason": "exit_code: exit code 3", "reason_class": "exit_code"})
ENDED = with_state({**STATUS, **END, "ended_at": "2026-01-02T03:04:06.678Z", "tasks": [FAILED_TASK]})


class Office:
    """A session's directory, what commands wrote into `told`, and what was said in the log."""

    def __init__(self, path: Path) -> None:
        self.session, self.said = SessionDir(path), list[str]()

    def open(self, *receivers: str) -> Notifying:
        """The notifier of a supervisor."""
        spec = replace(make_session([]), cwd=str(self.session.path), notify=receivers)
        return Notifying(self.session, spec, self.said.append)

    def told(self) -> list[str]:
        """The messages that a command wrote down."""
        file = self.session.path / "told"
        return file.read_text().splitlines() if file.exists() else []

    def record(self) -> dict[str, Any]:
        """The events of the file."""
        record = json.loads((self.session.path / FILE).read_bytes())["events"]
        assert isinstance(record, dict)
        return record


def is_done(notifier: Notifying) -> bool:
    """Whether all is told, after what became of it was noted."""
    notifier.note()
    return not notifier.is_busy


WRITE = 'echo "$SESSIONRUN_EVENT: $SESSIONRUN_MESSAGE" >> told'


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.setattr(notifying, "WAITS_S", (0.0, 0.0))
    return Office(tmp_path)


def test_each_event_is_told_once(office: Office) -> None:
    notifier = office.open(WRITE)
    held = with_word({**TASK, "status": "pending", "reason_class": "held", "reason": "held: wait"})
    landed = with_word(
        {**TASK, "status": "completed", "outcome": "succeeded", "landing": {"status": "landed", "reason": None}}
    )
    for tasks in ([TASK], [held], [held], [landed], [landed, FAILED_TASK], [FAILED_TASK]):
        notifier.show({**STATUS, "tasks": tasks})
        eventually(partial(is_done, notifier))
    notifier.show({**ENDED, "tasks": [FAILED_TASK]})
    eventually(partial(is_done, notifier))
    assert office.told() == [
        "held: nightly (s): a held: wait",
        "landed: nightly (s): a landed",
        "failed: nightly (s): a failed: exit code 3",
        "completed: nightly (s) failed: 1 failed",
    ]
    assert all(one["delivered_at"] for told in office.record().values() for one in told["deliveries"])


def test_what_a_killed_supervisor_did_not_tell_the_next_one_tells(office: Office) -> None:
    first = office.open(WRITE, WRITE)
    first.show({**STATUS, "tasks": [FAILED_TASK]})
    eventually(partial(is_done, first))
    events = office.record()
    events["failed"]["deliveries"][1] = None  # as if it was killed before it saw the end of the second
    (office.session.path / FILE).write_text(json.dumps({"schema_version": 1, "events": events}))
    second = office.open(WRITE, WRITE)
    assert second.is_busy
    second.show({**ENDED, "tasks": [FAILED_TASK]})
    eventually(partial(is_done, second))
    told = [line.partition(":")[0] for line in office.told()]
    assert sorted(told) == ["completed", "completed", "failed", "failed", "failed"]
    for damaged in (b"", b"[]", b'{"events": {"failed": 3, "completed": {"deliveries": [null]}}}', b"\xff"):
        (office.session.path / FILE).write_bytes(damaged)
        assert not office.open(WRITE, WRITE).is_busy


def test_a_receiver_that_fails_or_hangs_is_given_up_and_holds_up_no_other(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "TIMEOUT_S", 0.2)
    notifier = office.open(
        "echo why; exit 7", "sleep 600 & echo $! > pid; wait", "http://127.0.0.1:1/", "http://[", WRITE
    )
    notifier.show({**STATUS, "tasks": [FAILED_TASK]})
    eventually(office.told)
    eventually(partial(is_done, notifier))
    deliveries = office.record()["failed"]["deliveries"]
    assert [one["tries"] for one in deliveries] == [3, 3, 3, 3, 1]
    errors = [one["error"] for one in deliveries]
    assert errors[0] == "exit code 7; see notify.log" and errors[1] == "it took longer than 0 s"
    assert "refused" in errors[2] and errors[3] and errors[4] is None
    assert (office.session.path / "notify.log").read_text() == "why\n" * 3
    sleeper = int((office.session.path / "pid").read_text())
    eventually(lambda: not os.path.exists(f"/proc/{sleeper}"))
    assert len(office.said) == 4, office.said


@pytest.fixture
def mailbox() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server on loopback, and what was sent there."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/told", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_session_tells_an_address(
    sessionrun: Command, mailbox: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    address, seen = mailbox
    session_id = sessionrun.start(["true", "exit 3"], "--notify", address, "--name", "nightly")
    sessionrun.wait(session_id)
    eventually(lambda: len(seen) == 2)
    assert [(one["event"], one["session_id"]) for one in seen] == [
        ("failed", session_id),
        ("completed", session_id),
    ]
    assert seen[0]["task"]["outcome"] == "failed" and seen[1]["task"] is None
    assert (seen[1]["name"], seen[1]["outcome"], seen[1]["failed"]) == ("nightly", "failed", 1)
    session = SessionDir(sessionrun.directory(session_id))
    eventually(lambda: not session.is_alive())
    assert len(seen) == 2
