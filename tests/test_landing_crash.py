"""A landing that is killed at any point: the next one ends well.  Nothing is lost, lands twice or stays dirty."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import slow_seed
from killed_calls import preload
from landings import CHECK, MAIN, Yard, make_yard
from stages import Tree, refresh

from sessionrun.landing.history import load_history
from sessionrun.landing.recovery import EMPTY_LOCK_S
from sessionrun.landing.slot import Slot
from sessionrun.landing.turn import land

__all__ = ["preload"]

MOST_STEPS = 200
FILES: dict[str, str | None] = {
    "a.txt": "new\n" * 50,
    "gone.txt": None,
    "d/c.txt": "*c\n",
    "new/file.txt": "n\n" * 50,
}


def begin_at_home(place: Path) -> Yard:
    """`main` is checked out in the repository's own work tree, in which the user has changes."""
    yard = make_yard(place)
    (yard.top / "b.txt").write_text("mine\n")
    (yard.top / "mine.txt").write_text("mine\n")
    yard.git("add", "mine.txt")
    return yard


def begin_linked(place: Path) -> Yard:
    yard = make_yard(place)
    yard.git("checkout", "-q", "--detach")
    yard.git("worktree", "add", "-q", str(place / "linked"), "main")
    return yard


def begin_nowhere(place: Path) -> Yard:
    yard = make_yard(place)
    yard.git("checkout", "-q", "--detach")
    return yard


PLACES: dict[str, tuple[Callable[[Path], Yard], str]] = {
    "at home": (begin_at_home, "M b.txt\nA  mine.txt"),
    "linked": (begin_linked, ""),
    "nowhere": (begin_nowhere, ""),
}


def fill(yard: Yard) -> None:
    """A task that lands, one that is red, one in conflict with the first, and one that needs it."""
    one = yard.add("one", FILES)
    yard.add("red", {"red.txt": "BAD"})
    yard.add("clash", {"a.txt": "other\n"})
    yard.add("next", {"next.txt": "n\n"}, one.tip, needs=("one",))


ENDS = {"one": "landed", "red": "bounced", "clash": "bounced", "next": "landed"}


def examine(yard: Yard, status: str) -> list[str]:
    """What is wrong when a landing has come to its end, in the work tree too."""
    return [*yard.examine(["one", "next"]), *find_dirt(yard, status)]


def find_dirt(yard: Yard, status: str) -> list[str]:
    """Locks that are left, and work trees that are not as the user left them."""
    wrong = [line for line in yard.examine() if line != "a record" and "temporary" not in line]
    tops = [yard.top, *(path for path in [yard.top.parent / "linked"] if path.exists())]
    for top in tops:
        seen = yard.git("status", "--porcelain", cwd=top)
        wrong += [f"{top.name}: {seen!r}"] if seen != status else []
    return wrong


def age_locks(yard: Yard) -> None:
    """A lock that is empty is taken away when it is old enough; the record is older than the lock."""
    past = time.time() - EMPTY_LOCK_S - 1
    locks = [path for path in (yard.top / ".git").rglob("*.lock") if path.stat().st_size == 0]
    record = Slot(yard.request().repository, MAIN).record_path
    for path in (*locks, *([record] if record.exists() else [])):
        if not path.name.startswith("sessionrun-land-") or path == record:
            os.utime(path, (past, past))


@pytest.mark.parametrize(
    ("name", "every"), [("at home", 9), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in PLACES)]
)
def test_a_kill_at_a_step_of_ours(own_place: Path, name: str, every: int) -> None:
    """SIGKILL between two steps; with `each`, at every one of them."""
    begin, status = PLACES[name]
    kills = 0
    for at in range(1, MOST_STEPS, every):
        yard = begin(own_place / str(at))
        yard.add("one", FILES)
        if every == 1:
            yard.entries.clear()
            fill(yard)
        if not yard.land_killed(*([CHECK] if every == 1 else []), at=at):
            break
        kills += 1
        ends = yard.statuses(yard.land(*([CHECK] if every == 1 else [])))
        wrong = yard.examine(["one"]) if every > 1 else examine(yard, status)
        seen = yard.git("status", "--porcelain", cwd=own_place / str(at) / "linked" if name == "linked" else None)
        assert (ends, wrong, seen) == (ENDS if every == 1 else {"one": "landed"}, [], status), f"killed at {at}"
        shutil.rmtree(own_place / str(at))
    else:
        raise AssertionError("the steps never end")
    assert kills >= (2 if every > 1 else 20)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_person_removes_the_lock_of_a_killed_landing_as_git_advises(own_place: Path, every: int) -> None:
    """What the landing had written is not taken for changes of the person, and what they stage then stays."""
    kills = 0
    for at in range(1, MOST_STEPS, every):
        yard = begin_at_home(own_place / str(at))
        yard.add("one", FILES)
        if not yard.land_killed(at=at):
            break
        lock = yard.top / ".git/index.lock"
        if lock.exists():
            kills += 1
            lock.unlink()
            (yard.top / "later.txt").write_text("later\n")
            yard.git("add", "later.txt")
        assert yard.statuses(yard.land()) == {"one": "landed"}, f"killed at {at}"
        staged = "A  later.txt\nA  mine.txt" if (yard.top / "later.txt").exists() else "A  mine.txt"
        seen = yard.git("status", "--porcelain")
        assert (yard.examine(["one"]), seen) == ([], f"M b.txt\n{staged}"), f"killed at {at}"
        shutil.rmtree(own_place / str(at))
    assert kills >= (1 if every > 1 else 5)


@pytest.mark.slow
def test_the_next_holder_of_the_slot_mends_whatever_its_session(own_place: Path) -> None:
    """And the log of the session that was killed gets what had landed."""
    yard = begin_at_home(own_place)
    yard.add("one", FILES)
    steps = next(at for at in range(20, MOST_STEPS) if _landed_but_not_noted(yard, at))
    assert steps
    other = Yard(yard.top)
    other.add("two", {"two.txt": "2\n"})
    request = other.request()
    mine = yard.request()
    report = land(replace(request, folder=str(own_place / "session-2" / "landing" / "x")))
    assert {fate.task: fate.status for fate in report.fates} == {"two": "landed"}
    assert set(load_history(Path(mine.folder)).landed) == {"one"}
    assert yard.git("status", "--porcelain") == "M b.txt\nA  mine.txt"


def _landed_but_not_noted(yard: Yard, at: int) -> bool:
    """Kill a landing at a step; whether the target has moved, and the record is still there."""
    before = yard.git("rev-parse", "main")
    assert yard.land_killed(at=at)
    return yard.git("rev-parse", "main") != before


def test_a_lock_that_is_not_ours_is_named_and_stays(own_place: Path) -> None:
    yard = begin_nowhere(own_place)
    yard.add("one", FILES)
    at = next(at for at in range(8, MOST_STEPS) if _has_landing_record(yard, at))
    assert at
    lock = yard.top / ".git/refs/heads/main.lock"
    lock.write_text("f" * 40 + "\n")
    report = yard.land()
    assert report.hold is not None and report.hold.mend == f"rm {lock}"
    assert any(str(lock) in line for line in report.remarks)
    lock.unlink()
    assert yard.statuses(yard.land()) == {"one": "landed"}


def _has_landing_record(yard: Yard, at: int) -> bool:
    assert yard.land_killed(at=at)
    path = Slot(yard.request().repository, MAIN).record_path
    return path.exists() and b'"landing"' in path.read_bytes()


def land_counted(yard: Yard, preload: Path, at: int, *, alone: bool) -> int:
    """Land in a process of its own; kill at the `at`-th call that changes a file; return how many there were."""
    place = yard.top.parent
    counter, root = place / "counter", place / "root"
    counter.write_bytes(bytes(8))
    environ = {"LD_PRELOAD": str(preload), "KILL_COUNTER": str(counter), "KILL_AT": str(at)}
    environ |= {"PYTHONDONTWRITEBYTECODE": "1"} | ({} if alone else {"KILL_ROOT": str(root)})
    yard.land_apart(CHECK, env=environ)
    return int(struct.unpack("q", counter.read_bytes())[0])


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True], ids=["group", "alone"])
@pytest.mark.parametrize("name", PLACES)
def test_a_kill_at_every_call_that_changes_a_file(
    own_place: Path, preload: Path, name: str, alone: bool, say: Callable[[str], None]
) -> None:
    """In Python and in git: before the call, and in the middle of each write.

    LANDING_KILLS=N takes every N-th call.
    """
    begin, status = PLACES[name]
    place = own_place / "place"
    yard = begin(place)
    fill(yard)
    whole = Tree.of(place)
    every = int(os.environ.get("LANDING_KILLS") or 1)
    at, kills, dirty = slow_seed() % every + 1, 0, 0
    while land_counted(yard, preload, at, alone=alone) >= at:
        kills += 1
        age_locks(yard)
        dirty += bool(find_dirt(yard, status))
        report = yard.land(CHECK)
        assert (yard.statuses(report), examine(yard, status)) == (ENDS, []), f"killed at {at}: {report}"
        at += every
        shutil.rmtree(place)
        place.mkdir()
        whole.lay_out(place)
        for top in (yard.top, *([place / "linked"] if name == "linked" else [])):
            refresh(top)
    say(f"{kills} kills of {at - every} calls, {dirty} left something to mend")
    assert at > 100


@pytest.mark.slow
def test_a_user_who_commits_meanwhile(own_place: Path) -> None:
    """Every commit is kept, and every change lands once."""
    yard = make_yard(own_place)
    kept: list[str] = []

    def commit(turn: int) -> None:
        for number in range(3):
            (yard.top / "b.txt").write_text(f"{turn} {number}\n")
            subject = f"user {turn} {number}"
            words = ["git", "-C", str(yard.top), "commit", "-q", "-m", subject, "b.txt"]
            if subprocess.run(words, capture_output=True).returncode == 0:
                kept.append(subject)

    for turn in range(10):
        yard.add(f"t{turn}", {f"t{turn}.txt": "x\n", "a.txt": f"{turn}\n"})
        thread = threading.Thread(target=commit, args=(turn,))
        thread.start()
        report = yard.land(CHECK)
        thread.join()
        if report.hold is not None:  # the user's git had the lock, or a change of the user's own was under way
            report = yard.land(CHECK)
        assert set(yard.statuses(report).values()) == {"landed"}, report
    subjects = yard.git("log", "--format=%s", "main").split("\n")
    assert kept and set(kept) <= set(subjects)
    assert yard.examine([f"t{turn}" for turn in range(10)]) == []
    assert yard.git("status", "--porcelain") in ("", "M b.txt")


@pytest.mark.slow
def test_two_sessions_on_one_target(own_place: Path) -> None:
    yard = make_yard(own_place)
    yards = [Yard(yard.top), Yard(yard.top)]
    for number in range(8):
        yards[number % 2].add(f"t{number}", {f"t{number}.txt": "x\n"})
    with ThreadPoolExecutor(2) as pool:
        ended = [
            pool.submit(one.land_apart, CHECK, env={}, path=own_place / f"request-{number}.json")
            for number, one in enumerate(yards)
        ]
    assert [run.result().returncode for run in ended] == [0, 0]
    assert yard.examine([f"t{number}" for number in range(8)]) == []
    assert yard.git("status", "--porcelain") == ""
