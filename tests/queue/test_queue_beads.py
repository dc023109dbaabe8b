"""The task queue in Beads: the contract of backends, with the real program if it is there, and a stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from beads_standin import STORE, answer, install
from conftest import Command, eventually
from queue_contract import ANN, BOB, check_feed, create, find_ready

from sessionrun.model.errors import InputError, StoreError
from sessionrun.queue import beads, file
from sessionrun.queue.beads import PROGRAMS, BeadsFeed, Program
from sessionrun.queue.feed import BACKENDS
from sessionrun.queue.task import Draft, QueuePlace, Worker, find_place

REAL = next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@pytest.fixture
def place(own_place: Path) -> QueuePlace:
    """A repository with Beads."""
    (own_place / ".git").mkdir()
    (own_place / beads.PLACE).mkdir()
    return find_place(own_place)


class StandIn(Program):
    """The stand-in, called and not run: an interpreter for each command would cost most of the time."""

    old = False
    late: tuple[str, ...] = ()
    """A command that another program runs just before a claim."""
    is_locked = False
    """Whether no claim can be made now."""

    def execute(self, words: Sequence[str]) -> tuple[int, str, str]:
        if "--claim" in words and self.is_locked:
            return 1, "", "Error: database is locked\nmore\n"
        if "--claim" in words and self.late:
            answer(self.late, self.top)
        return answer(words, self.top, old=self.old)


@pytest.fixture
def program(place: QueuePlace) -> StandIn:
    return StandIn("/nowhere/bd", place.top)


@pytest.fixture
def feed(place: QueuePlace, program: StandIn) -> BeadsFeed:
    return BeadsFeed(place, program)


@pytest.fixture
def on_path(place: QueuePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in as a program: `bd` on PATH."""
    monkeypatch.setenv("PATH", f"{install(place.top.parent / 'programs')}{os.pathsep}{os.defpath}")


@pytest.mark.parametrize("old", [False, True], ids=["new version", "old version"])
def test_the_stand_in_written_from_the_documents(
    feed: BeadsFeed, program: StandIn, say: Callable[[str], None], old: bool
) -> None:
    program.old = old
    check_feed(feed)
    assert feed.sync() is False  # it has no such command
    say("Beads: with a stand-in for bd, written from its documents")


@pytest.fixture
def real(own_place: Path, say: Callable[[str], None]) -> BeadsFeed:
    """A feed of the real program, with no beads."""
    if REAL is None:
        pytest.skip("neither bd nor br is on PATH: only the stand-in for bd was tested")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run([REAL, "init"], check=True, capture_output=True)
    version = subprocess.run([REAL, "--version"], capture_output=True, text=True, check=True).stdout
    say(f"Beads: with the real program, {version.strip()}")
    found = beads.find(find_place(own_place))
    assert found is not None
    return found


@pytest.mark.slow
def test_the_real_program(real: BeadsFeed) -> None:
    check_feed(real)
    assert real.sync() is True


@pytest.mark.slow
def test_of_many_that_claim_a_real_bead_at_once_one_gets_it(real: BeadsFeed, own_place: Path) -> None:
    """The program decides, not our lock: each has another one, as on two machines."""
    first = create(real, "first")
    workers = [Worker(f"w{number}", "session") for number in range(4)]

    def claim(worker: Worker) -> bool:
        found = beads.find(QueuePlace(own_place, own_place / f"{worker.name}.lock"))
        assert found is not None
        return found.claim(first.id, worker) is not None

    with ThreadPoolExecutor(len(workers)) as pool:
        got = [*pool.map(claim, workers)]
    assert got.count(True) == 1
    task = real.show(first.id)
    assert task.claim is not None
    assert task.claim.worker == workers[got.index(True)]


def test_the_real_program_in_short(real: BeadsFeed) -> None:
    first = create(real, "first", body="- text")
    blocked = create(real, "blocked", priority=2, depends=(first.id,))
    assert real.claim(blocked.id, ANN) is None
    assert [task.id for task in find_ready(real)] == [first.id]
    assert real.claim(first.id, ANN) is not None
    assert real.claim(first.id, BOB) is None
    assert real.close(first.id, reason="done", worker=ANN) is not None
    assert [task.id for task in find_ready(real)] == [blocked.id]


def test_a_bead_that_is_blocked_meanwhile_is_given_back(feed: BeadsFeed, program: StandIn) -> None:
    """It gets a blocker after it was found ready."""
    first, second = create(feed, "first"), create(feed, "second")
    program.late = ("dep", "add", first.id, second.id)
    assert feed.claim(first.id, ANN) is None
    task = feed.show(first.id)
    assert (task.status, task.claim, task.blocked_by) == ("open", None, (second.id,))


def test_a_bead_that_another_claims_meanwhile_is_not_ours(feed: BeadsFeed, program: StandIn) -> None:
    first = create(feed, "first")
    program.late = ("update", first.id, "--claim", "--actor=eve")
    assert feed.claim(first.id, ANN) is None
    assert (feed.show(first.id).status, feed.show(first.id).claim) == ("claimed", None)


def test_a_claim_that_fails_is_no_bead_that_is_taken(feed: BeadsFeed, program: StandIn) -> None:
    first = create(feed, "first")
    program.is_locked = True
    with pytest.raises(InputError, match=r"^bd update: database is locked$"):
        feed.claim(first.id, ANN)
    program.is_locked = False
    assert feed.claim(first.id, ANN) is not None


def test_what_is_somebody_s_is_not_ours(feed: BeadsFeed, program: StandIn) -> None:
    """A person's bead, one that waits for another reason, and one whose group is blocked."""
    mine, deferred, gate = (create(feed, title) for title in ("mine", "deferred", "gate"))
    program.run("update", mine.id, "--assignee=eve")
    program.run("update", deferred.id, "--status=deferred")
    part = create(feed, "part", group="epic")
    assert part.group is not None
    program.run("dep", "add", part.group, gate.id)
    program.run("update", gate.id, "--claim", "--actor=eve")

    assert find_ready(feed) == []
    by_title = {task.title: task for task in feed.load()}
    assert {title: task.status for title, task in by_title.items()} == {
        "mine": "deferred",
        "deferred": "deferred",
        "gate": "claimed",
        "part": "deferred",
        "epic": "open",
    }
    assert by_title["gate"].claim is None
    for task in by_title.values():
        assert feed.claim(task.id, ANN) is None


def test_priorities_that_beads_has_not(feed: BeadsFeed) -> None:
    with pytest.raises(InputError, match="Beads has priorities from -2 to 2"):
        feed.create([Draft("urgent", priority=3)])
    assert feed.load() == []


def test_a_text_that_is_too_long_for_a_command(feed: BeadsFeed) -> None:
    with pytest.raises(InputError, match="bd takes no text of more than 100000 bytes"):
        feed.create([Draft("long", "x" * 100_001)])
    with pytest.raises(InputError, match="a title, text or reason is not UTF-8"):
        feed.create([Draft("\udcff")])


@pytest.mark.slow
def test_the_command_line_finds_beads(on_path: None, place: QueuePlace, sessionrun: Command) -> None:
    task_id = sessionrun("queue", "add", "a bead").stdout.strip()
    listed = sessionrun.load("queue", "list")
    assert (listed["backend"], [task["id"] for task in listed["tasks"]]) == ("beads", [task_id])
    assert sessionrun.load("queue", "list", "--backend", "file")["tasks"] == []
    (place.top / STORE).write_text("{")
    done = sessionrun("queue")
    assert done.returncode == 2
    assert done.stderr.startswith("sessionrun: error: bd ready: ")
    assert done.stderr.count("\n") == 1


def test_beads_without_its_program(place: QueuePlace, sessionrun: Command) -> None:
    done = sessionrun("queue", env={"PATH": os.defpath})
    assert done.returncode == 0
    assert "neither bd nor br is on PATH: the queue is task_queue.json" in done.stderr
    done = sessionrun("queue", "--backend", "beads", env={"PATH": os.defpath})
    assert (done.returncode, "there is no queue of beads here" in done.stderr) == (2, True)


def test_a_program_that_does_not_run(place: QueuePlace) -> None:
    program = place.top / "br"
    program.write_text("not a program")
    program.chmod(0o755)
    with pytest.raises(StoreError, match="Exec format error"):
        BeadsFeed(place, Program(str(program), place.top)).load()
    program.write_text("#!/bin/sh\necho no JSON\n")
    with pytest.raises(StoreError, match="br ready: what it printed is not JSON: 'no JSON'"):
        BeadsFeed(place, Program(str(program), place.top)).load()


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_with_what_it_started(place: QueuePlace) -> None:
    pid = place.top / "pid"
    program = place.top / "bd"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {pid}\nwait\n")
    program.chmod(0o755)
    with pytest.raises(StoreError, match="bd ready did not end within 10 s"):
        BeadsFeed(place, Program(str(program), place.top)).load()
    eventually(lambda: not Path(f"/proc/{pid.read_text().strip()}/cmdline").exists())


def test_the_table_of_backends() -> None:
    assert {name: row.keeps for name, row in BACKENDS.items()} == {
        beads.NAME: beads.PLACE,
        file.NAME: file.PLACE,
    }
