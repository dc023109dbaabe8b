"""Who is told of a session: once of its end, its first failure, hold and landing; and what becomes of that."""

from __future__ import annotations

import json
import os
import threading
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

STATUS: dict[str, Any] = {**project(begin(make_session([TaskSpec("a", ("x",))]))), "name": "nightly"}
TASK = {**STATUS["tasks"][0], "status": "running"}
END = {"status": "completed", "outcome": "failed"}
FAILED = with_word({**TASK, **END, "reason": "exit_code: exit code 3", "reason_class": "exit_code"})
ENDED = with_state({**STATUS, **END, "ended_at": "2026-01-02T03:04:06.678Z", "tasks": [FAILED]})


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
    for tasks in ([TASK], [held], [held], [landed], [landed, FAILED], [FAILED]):
        notifier.show({**STATUS, "tasks": tasks})
        eventually(partial(is_done, notifier))
    notifier.show({**ENDED, "tasks": [FAILED]})
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
    first.show({**STATUS, "tasks": [FAILED]})
    eventually(partial(is_done, first))
    events = office.record()
    events["failed"]["deliveries"][1] = None  # as if it was killed before it saw the end of the second
    (office.session.path / FILE).write_text(json.dumps({"schema_version": 1, "events": events}))
    second = office.open(WRITE, WRITE)
    assert second.is_busy
    second.show({**ENDED, "tasks": [FAILED]})
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
    notifier.show({**STATUS, "tasks": [FAILED]})
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


def is_another(sessionrun: Command, session_id: str, pid: int) -> bool:
    """Whether another supervisor was started."""
    return sessionrun.supervisor(session_id) != pid


@pytest.mark.slow
def test_the_supervisor_is_killed_while_it_tells(sessionrun: Command) -> None:
    """kill -9 again and again while the receiver waits: in the end the message is there, and recorded."""
    command = 'while ! [ -e go ]; do sleep 0.02; done; echo "$SESSIONRUN_EVENT" >> told'
    session_id = sessionrun.start(["true"], "--notify", command)
    sessionrun.wait(session_id)
    session = SessionDir(sessionrun.directory(session_id))
    for _ in range(3):
        pid = sessionrun.supervisor(session_id)
        os.kill(pid, 9)
        eventually(partial(is_another, sessionrun, session_id, pid))
    (sessionrun.cwd / "go").touch()
    eventually(lambda: not session.is_alive())
    assert set((sessionrun.cwd / "told").read_text().splitlines()) == {"completed"}
    told = json.loads((session.path / FILE).read_bytes())["events"]
    assert told["completed"]["deliveries"][0]["delivered_at"]
