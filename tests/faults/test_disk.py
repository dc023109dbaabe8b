"""Logs that are damaged or forged, and a disk that is really full: no wrong state, and nothing runs twice."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import EVENTUALLY_S, eventually, fill, kill_sessions, wait_until
from forging import damage, find_places, forge, set_words

from sessionrun.client.ask import select
from sessionrun.keeper.wire import root_command
from sessionrun.model.events import RequestReceived
from sessionrun.store import locks
from sessionrun.store.logs import CLAIMED, EXITED, GONE, RESERVE, SPAWNED, TRIED, AppendLog, make_record
from sessionrun.store.processes import Identity, is_alive, send_signal, start_time
from sessionrun.store.session import SessionDir

from .chain import Role, find_chain, find_left, kill_surely
from .oracle import LedgerLines, examine, has_ended, kill_all, load_outcome, make_plan
from .place import Place, make_place

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


# --- a full disk: what has ended is recorded once there is room, also if supervisor or keeper die ---


@pytest.mark.parametrize(
    ("victim", "reserve"),
    [
        pytest.param(*case, id=f"{case[0]}, {'reserve' if case[1] else 'no reserve'}", marks=marks)
        for case in product((None, "supervisor", "keeper"), (True, False))
        for marks in [() if case == ("supervisor", False) else pytest.mark.slow]
    ],
)
def test_outcomes_are_recorded_once_there_is_room(
    small_disk: Path, tmp_path: Path, victim: Role | None, reserve: bool
) -> None:
    with make_place(small_disk) as place:
        executed, go = tmp_path / "executed", tmp_path / "go"
        plan = make_plan(executed, 5, random.Random(0), more=f"while ! [ -e '{go}' ]; do sleep 0.05; done;")
        session = place.start(plan, "--max-parallel", "4")
        eventually(lambda: (status := session.load_status()) and status["running"] == 4)
        before = session.status_path.read_bytes()
        eventually(lambda: len(jobs_of(session)) == 4)
        if not reserve:
            (session.path / RESERVE).unlink(missing_ok=True)
        fill(small_disk)
        if victim is not None:
            old = find_chain(session.path)[victim]
            kill_surely(session, victim)
            eventually(lambda: find_chain(session.path)[victim] not in ([], old))
        fill(small_disk)  # the reserve too
        go.touch()
        eventually(lambda: not jobs_of(session))
        # again and again: a file that was just replaced gives its room back, and the session could end
        wait_until(lambda: not fill(small_disk), 0.3)
        assert load_outcome(session)["ended_at"] is None
        assert reserve or victim is None or session.status_path.read_bytes() == before
        if victim is None:
            (supervisor,) = find_chain(session.path)["supervisor"]
            used = supervisor.cpu_times()
            wait_until(lambda: False, 2.0)
            more = supervisor.cpu_times()
            assert more.user + more.system - used.user - used.system < 0.2
        (small_disk / "filler").unlink()
        eventually(lambda: has_ended(session))
        figures = examine(session, executed)
        assert figures.is_good, figures.wrong
        assert figures.lost == figures.unsure == 0


def exhaust(disk: Path) -> None:
    """Leave no inode."""
    try:
        for number in range(100_000):
            (disk / f"inode-{number}").touch()
    except OSError:
        return
    raise AssertionError("there is always another inode")


FEW_INODES = "8m,nr_inodes=120"


def start_sleepers(place: Place) -> SessionDir:
    """Two tasks that run for ever, and one that waits for them."""
    prompts = [{"id": f"t{number}", "prompt": "trap '' TERM; while :; do sleep 0.2; done"} for number in range(3)]
    session = place.start({"prompts": prompts}, "--max-parallel", "2")
    eventually(lambda: (status := session.load_status()) and status["running"] == 2)
    return session


QUICK = {("cancel --now", "blocks")}
CASES = [
    pytest.param(size, kind, tuple(words.split()), id=f"{words}, {kind}", marks=() if quick else pytest.mark.slow)
    for kind, size in (("blocks", "1m"), ("inodes", FEW_INODES), ("nothing at all", "1m"))
    for words in ("cancel", "cancel --now", "hold")
    for quick in [(words, kind) in QUICK]
]


@pytest.mark.parametrize(("small_disk", "kind", "words"), CASES, indirect=["small_disk"])
def test_control_needs_no_room(small_disk: Path, kind: str, words: tuple[str, ...]) -> None:
    """Of `nothing at all` not even the reserve is left: what is done can be recorded only later."""
    with make_place(small_disk) as place:
        session = start_sleepers(place)
        take = exhaust if kind == "inodes" else fill
        take(small_disk)
        if kind == "nothing at all":
            (session.path / RESERVE).unlink()
            take(small_disk)
        full = re.compile(r"^Disk full: \d+ bytes / \d+ inodes free in .*: nothing new starts", re.MULTILINE)

        def says_so() -> bool:
            take(small_disk)  # again: a file that the supervisor was just replacing gives an inode back
            return full.search(place.run_verb("status", session.session_id)[1]) is not None

        eventually(says_so)
        code, found, _ = place.run_verb("doctor", session.session_id)
        assert (code, "its disk is full" in found.splitlines()[0]) == (1, True)
        code, _, said = place.run_verb(words[0], session.session_id, *words[1:])
        assert code == 0, said
        if words[0] == "cancel":
            assert not jobs_of(session)
        for path in (*small_disk.glob("filler"), *small_disk.glob("inode-*")):
            path.unlink()
        if words[0] == "hold":
            eventually(lambda: is_held_on_request(session))
            assert place.run_verb("cancel", session.session_id, "--now")[0] == 0
        eventually(lambda: has_ended(session))
        assert {task["outcome"] for task in load_outcome(session)["tasks"]} == {"cancelled"}
        events = [entry.event for entry in session.load_journal()[0]]
        requests = [event for event in events if isinstance(event, RequestReceived)]
        assert sum(request.kind == words[0] for request in requests) == 1
        assert place.run_verb("status", session.session_id)[1].count("Disk full") == 0
        assert place.run_verb("doctor", session.session_id)[0] == 0


@pytest.mark.slow
def test_a_full_disk_and_nobody_to_hear(small_disk: Path) -> None:
    with make_place(small_disk) as place:
        session = start_sleepers(place)
        kill_all(session)
        fill(small_disk)
        code, _, said = place.run_verb("cancel", session.session_id)
        assert code == 4
        assert "the disk is full, and no supervisor of session" in said
        assert "make room on the disk of" in said
        (small_disk / "filler").unlink()
        assert place.run_verb("cancel", session.session_id, "--now")[0] == 0


def jobs_of(session: SessionDir) -> list[int]:
    """The jobs of a session that still run."""
    pids = LedgerLines(session).pids.values()
    return [process.pid for process in find_left(session.path) if process.pid in pids]


@pytest.mark.parametrize("small_disk", [FEW_INODES], indirect=True)
@pytest.mark.slow
@pytest.mark.parametrize("reserve", [True, False], ids=["reserve", "no reserve"])
def test_what_is_held_and_released_without_an_inode_is_told(small_disk: Path, reserve: bool) -> None:
    """The log has room for it, but status.json cannot be replaced: what asks next must not believe that."""
    with make_place(small_disk) as place:
        session = start_sleepers(place)
        exhaust(small_disk)
        if not reserve:
            (session.path / RESERVE).unlink()
            exhaust(small_disk)
        assert place.run_verb("hold", session.session_id)[0] == 0
        assert is_held_on_request(session)
        code, out, said = place.run_verb("release", session.session_id)
        assert (code, "nothing is held" in out) == (0, False), out + said
        assert not is_held_on_request(session)
        assert place.run_verb("cancel", session.session_id, "--now")[0] == 0
        eventually(lambda: not jobs_of(session))


def is_held_on_request(session: SessionDir) -> bool:
    """Whether the last task is, as a verb of control finds it; the full disk may hold it as well."""
    target = select(session)
    return bool(target.tasks[2]["reason"] == "held: on request")
