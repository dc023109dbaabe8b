"""A real full disk, while supervisor, keeper or nobody dies: what has ended is recorded once there is room."""

from __future__ import annotations

import random
import re
from itertools import product
from pathlib import Path

import pytest
from conftest import eventually, fill, wait_until

from sessionrun.client.ask import select
from sessionrun.model.events import RequestReceived
from sessionrun.store.logs import RESERVE
from sessionrun.store.session import SessionDir

from .chain import Role, find_chain, find_left, kill_surely
from .oracle import LedgerLines, examine, has_ended, kill_all, load_outcome, make_plan
from .place import Place, make_place


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
