"""Logs that are cut, flipped or forged, and then a `resume`: no traceback, no wrong state, nothing runs twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from conftest import EVENTUALLY_S, eventually, kill_sessions, wait_until
from forging import damage, find_places, forge, set_words

from sessionrun.keeper.wire import root_command
from sessionrun.store import locks
from sessionrun.store.logs import CLAIMED, EXITED, GONE, SPAWNED, TRIED, AppendLog, make_record
from sessionrun.store.processes import Identity, is_alive, send_signal, start_time
from sessionrun.store.session import SessionDir

from .chain import find_chain
from .oracle import LedgerLines, has_ended, kill_all
from .place import Place

AT_ONCE = 3
EVERY = 11


@dataclass
class Dead:
    """A session whose processes are all gone: one task done, one that ran when they died, two that never ran."""

    place: Place
    session: SessionDir
    job: Identity

    def copy(self) -> tuple[Place, SessionDir]:
        """The same under another id, so that many can be resumed at once."""
        place = Place(self.place.path / str(uuid.uuid4()), self.place.environ)
        return place, place.copy(self.session, (str(self.place.executed), str(place.executed)))


@pytest.fixture
def dead(place: Place) -> Iterator[Dead]:
    told = f"echo $SESSIONRUN_TASK >> '{place.executed}'"
    prompts = [
        {"id": "done", "prompt": f"{told}; exit 4"},
        {"id": "ran", "prompt": f"{told}; exec sleep 600"},
        {"id": "waits", "prompt": told},
        {"id": "last", "prompt": told, "needs": ["waits"]},
    ]
    session = place.start({"prompts": prompts}, "--max-parallel", "1")

    def is_known() -> Any:
        status = session.load_status()
        return status and status["completed"] == 1 and status["tasks"][1]["pid"]

    eventually(is_known)
    kill_all(session)
    pid = LedgerLines(session).pids["ran/1/1/work/1"]
    job = Identity(pid, start_time(pid) or 0)
    send_signal(job, signal.SIGKILL)
    eventually(lambda: not is_alive(job))
    assert place.executed.read_text().split() == ["done", "ran"]
    yield Dead(place, session, job)


def go_on(dead: Dead, file: str, content: bytes) -> str:
    """Resume a copy whose `file` has this content; what is wrong with what came of it."""
    place, session = dead.copy()
    (session.path / file).write_bytes(content)
    try:
        code, _, said = place.run_verb("resume", session.session_id)
        if code != 0:
            polite = code == 3 and said.count("\n") <= 2 and "is damaged at byte" in said
            return "" if polite else f"exit {code}: {said}"
        if not wait_until(lambda: has_ended(session), EVENTUALLY_S):
            return "has not ended"
        return look(place, session)
    finally:
        kill_sessions(place.results)
        shutil.rmtree(place.path)


def look(place: Place, session: SessionDir) -> str:
    status = session.load_status() or {}
    outcomes = {task["id"]: task["outcome"] for task in status["tasks"]}
    ran = Counter(place.executed.read_text().split()) if place.executed.exists() else Counter()
    if ran != {"waits": 1, "last": 1}:
        return f"ran again: {ran}"
    if outcomes["ran"] not in ("lost", "interrupted") or outcomes["waits"] != "succeeded":
        return f"wrong: {outcomes}"
    if outcomes["done"] not in ("failed", "lost"):
        return f"wrong: {outcomes}"
    log = session.log_path.read_text()
    return f"log: {log}" if "Traceback" in log else ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut", "flip"])
@pytest.mark.parametrize("file", ["journal", "ledger"])
def test_a_damaged_log_and_a_resume(dead: Dead, file: str, kind: str) -> None:
    content = (dead.session.path / file).read_bytes()
    places = find_places(content, EVERY)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = pool.map(lambda place: (place, go_on(dead, file, damage(content, kind, place))), places)
    wrong = [(place, one) for place, one in seen if one]
    assert not wrong, (file, kind, content.decode(), wrong[:3])


@pytest.mark.parametrize(
    ("keeper", "outcome"),
    [
        ({}, "lost"),
        pytest.param({3: b"another-boot"}, "interrupted", marks=pytest.mark.slow),
        pytest.param({4: b"1"}, "lost", marks=pytest.mark.slow),
    ],
    ids=["another start", "another boot", "another pid namespace"],
)
def test_no_foreign_process_is_signalled(dead: Dead, keeper: dict[int, bytes], outcome: str) -> None:
    """Its pid is on record, with a start time, a boot or a namespace that is not its own."""
    foreign = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        place, session = dead.copy()
        pid, started = b"%d" % foreign.pid, b"%d" % (start_time(foreign.pid) or 0)
        forge(session.ledger_path, set_words(b"S", {2: pid, 3: started} if keeper else {2: pid}))
        forge(session.ledger_path, set_words(b"K", keeper))
        place.resume(session)
        eventually(lambda: has_ended(session))
        eventually(lambda: not session.is_alive())
        status = session.load_status() or {}
        assert [task["outcome"] for task in status["tasks"]][1:] == [outcome, "succeeded", "succeeded"]
        assert foreign.poll() is None
        assert psutil.Process(foreign.pid).status() == psutil.STATUS_SLEEPING
    finally:
        foreign.kill()
        foreign.wait()


@pytest.mark.slow
def test_a_keeper_reads_the_ledger_once_it_has_the_lock(dead: Dead) -> None:
    """What an earlier one wrote until it gave the lock up is known to the next, and not run again."""
    place, session = dead.copy()
    root_fd, keeper_fd = session.hold_lock("root.lock"), session.hold_lock("keeper.lock")
    command = root_command(str(session.path), root_fd)
    root = subprocess.Popen(command, env=place.environ, pass_fds=[root_fd], start_new_session=True)
    os.close(root_fd)
    try:
        eventually(lambda: find_chain(session.path)["keeper"])
        assert not wait_until(lambda: not locks.is_held(session.path / "keeper.lock"), 0.5)  # it has begun to wait
        key = "waits/1/1/work/1"
        log = AppendLog(session.ledger_path)
        log.append([make_record(CLAIMED, key), make_record(TRIED, key, 3.0), make_record(SPAWNED, key, 2, 1)])
        log.append([make_record(EXITED, key, 6 << 8), make_record(GONE, key)])
        log.close()
        os.close(keeper_fd)
        eventually(lambda: has_ended(session))
        root.wait(EVENTUALLY_S)
    finally:
        kill_sessions(place.results)
    status = session.load_status() or {}
    assert (status["tasks"][2]["exit_code"], status["tasks"][3]["outcome"]) == (6, "skipped")
    assert not place.executed.exists()
