"""A landing that is killed at any point: the next one ends well.  Nothing is lost, lands twice or stays dirty."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from calls import each_call, needs_calls
from conftest import slow_seed
from landings import CHECK, MAIN, PROGRAM, Yard, make_yard
from stages import Tree, refresh

from sessionrun.git.git import Git
from sessionrun.landing.checkout import put_back
from sessionrun.landing.moving import EMPTY_LOCK_S, find_killed
from sessionrun.landing.records import MARK, digest_target, load_history
from sessionrun.landing.target import Slot
from sessionrun.landing.turn import land

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
    yard = make_yard(place, detached=True)
    yard.git("worktree", "add", "-q", str(place / "linked"), "main")
    return yard


PLACES: dict[str, tuple[Callable[[Path], Yard], str]] = {
    "at home": (begin_at_home, "M b.txt\nA  mine.txt"),
    "linked": (begin_linked, ""),
    "nowhere": (partial(make_yard, detached=True), ""),
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


class Again:
    """A place that is as it was before each landing."""

    def __init__(self, begin: Callable[[Path], Yard], place: Path, fill: Callable[[Yard], object]) -> None:
        self.yard, self._place = begin(place), place
        fill(self.yard)
        self._whole = Tree(place)

    def land(self, *gates: str) -> Callable[[Mapping[str, str]], object]:
        """What lands in a process that is watched."""

        def run(environ: Mapping[str, str]) -> object:
            shutil.rmtree(self._place)
            self._place.mkdir()
            self._whole.lay_out(self._place)
            for top in (self.yard.top, self._place / "linked"):
                if top.exists():
                    refresh(top)
            return self.yard.land_apart(*gates, environ=environ)

        return run


@needs_calls
@pytest.mark.parametrize(
    ("name", "do", "every"),
    [
        pytest.param("at home", "kill", 97, marks=pytest.mark.check),
        *(
            pytest.param(name, do, every, marks=pytest.mark.slow)
            for name in PLACES
            for do, every in (("kill", 2), ("all", 2), ("half", 1))
        ),
    ],
)
def test_a_kill_at_every_call_that_changes_a_file(
    own_place: Path, name: str, do: str, every: int, say: Callable[[str], None]
) -> None:
    """In Python and in git, of the process alone or of its group: before the call, and in the middle of a write.

    Every other call kills the group: by the seed those with an even or those with an odd number.
    """
    begin, status = PLACES[name]
    again = Again(begin, own_place / "place", fill)
    first = (slow_seed() + (do == "all")) % every + 1
    kills = dirty = 0
    for at, _ in each_call(again.land(CHECK), own_place / "calls", "land+", do=do, first=first, every=every):
        kills += 1
        age_locks(again.yard)
        dirty += bool(find_dirt(again.yard, status))
        report = again.yard.land(CHECK)
        assert (again.yard.statuses(report), examine(again.yard, status)) == (ENDS, []), f"{do} at {at}: {report}"
    say(f"{kills} kills of {at} calls, {dirty} left something to mend")
    assert at > (20 if do == "half" else 100)


@needs_calls
@pytest.mark.parametrize(("kind", "do"), [("link", "after"), pytest.param("step", "kill", marks=pytest.mark.slow)])
def test_a_person_removes_the_lock_of_a_killed_landing_as_git_advises(own_place: Path, kind: str, do: str) -> None:
    """What the landing had written is not taken for changes of the person, and what they stage then stays."""
    again = Again(begin_at_home, own_place / "place", lambda yard: yard.add("one", FILES))
    yard, lock, kills = again.yard, again.yard.top / ".git/index.lock", 0
    for at, _ in each_call(again.land(), own_place / "calls", "land", kind=kind, do=do):
        staged = ["A  mine.txt"]
        if lock.exists():
            kills += 1
            lock.unlink()
            (yard.top / "later.txt").write_text("later\n")
            yard.git("add", "later.txt")
            staged.insert(0, "A  later.txt")
        assert yard.statuses(yard.land()) == {"one": "landed"}, f"killed at {at}"
        seen = yard.git("status", "--porcelain")
        assert (yard.examine(["one"]), seen) == ([], "\n".join(("M b.txt", *staged))), f"killed at {at}"
    assert kills >= (1 if do == "after" else 5)


@pytest.mark.parametrize(
    ("changes", "do", "mine", "others"),
    [
        ({"a.txt": None, "a.txt/new": "n\n"}, "echo mine > a.txt/mine", "a.txt/mine", ["a.txt"]),
        ({"a.txt": None, "a.txt/new": "n\n"}, "echo mine > a.txt/new", "a.txt/new", ["a.txt"]),
        ({"a.txt": None}, "mkdir a.txt; echo mine > a.txt/mine", "a.txt/mine", ["a.txt"]),
        ({"d/c.txt": None, "d": "n\n"}, "echo mine > d", "d", ["d/c.txt"]),
        ({"d/c.txt": None}, "echo mine > d", "d", ["d/c.txt"]),
        ({"d/c.txt": "n\n"}, "rm -r d; mkdir out; echo mine > out/c.txt; ln -s out d", "d/c.txt", ["d/c.txt"]),
        ({"a.txt": "n\n"}, "rm a.txt; mkfifo a.txt", None, ["a.txt"]),
    ],
)
def test_what_a_person_put_in_the_place_of_a_killed_landing_s_files_stays(
    own_place: Path, changes: Mapping[str, str | None], do: str, mine: str | None, others: list[str]
) -> None:
    yard = make_yard(own_place)
    old, new = yard.git("rev-parse", "main"), yard.commit({**changes, "b.txt": "n\n"})
    yard.git("checkout", "-q", new)
    yard.git("symbolic-ref", "HEAD", MAIN)
    yard.git("read-tree", old)  # so far a landing comes before the ref moves
    yard.sh(do)
    told = put_back(Git(yard.top), old, new)
    assert told and all(name.startswith(("a.txt", "d")) for name in told)
    assert mine is None or (yard.top / mine).read_text() == "mine\n"
    missing = yard.git("diff", "--name-only").split("\n")
    assert (missing, (yard.top / "b.txt").read_text()) == (others, "b\n"), "all else is as it was"


@needs_calls
@pytest.mark.slow
def test_the_next_holder_of_the_slot_mends_whatever_its_session(own_place: Path) -> None:
    """And the log of the session that was killed gets what had landed."""
    yard = begin_at_home(own_place)
    yard.add("one", FILES)
    yard.land_killed(rule="rename:1:after:*/refs/heads/main")
    other = Yard(yard.top)
    other.add("two", {"two.txt": "2\n"})
    request = other.request()
    mine = yard.request()
    report = land(replace(request, folder=str(own_place / "session-2" / "landing" / "x")))
    assert {fate.task: fate.status for fate in report.fates} == {"two": "landed"}
    assert {end.task: end.status for end in load_history(Path(mine.folder))[0].ends.values()} == {"one": "landed"}
    assert yard.git("status", "--porcelain") == "M b.txt\nA  mine.txt"


@needs_calls
def test_a_lock_that_is_not_ours_is_named_and_stays(own_place: Path) -> None:
    yard = make_yard(own_place, detached=True)
    yard.add("one", FILES)
    yard.land_killed(rule="rename:1:all:*/refs/heads/main")
    lock, index = yard.top / ".git/refs/heads/main.lock", yard.top / ".git/index.lock"
    assert index.read_bytes().startswith(MARK), "no switch to it can end while the branch moves"
    assert find_killed(yard.request().repository, digest_target(MAIN)) == index
    lock.write_text("f" * 40 + "\n")
    report = yard.land()
    assert report.hold is not None and report.hold.mend == f"rm {lock}"
    assert any(str(lock) in line for line in report.remarks)
    lock.unlink()
    assert yard.statuses(yard.land()) == {"one": "landed"} and not index.exists()


# --- a person beside landings of which a quarter is killed ---

SECONDS = 40.0
MEAN_S = 0.075
SLOWEST_S = 1.0


class Person(threading.Thread):
    """Switches and commits in the checkout until `stop` is set; `kept` has by file the branch of its commit."""

    def __init__(self, top: Path, chance: random.Random) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.kept: dict[str, str] = {}
        self.switches = 0
        self._top = top
        self._chance = chance

    def run(self) -> None:
        staged: list[str] = []
        while not self.stop.wait(self._chance.expovariate(1 / MEAN_S)):
            verb = self._chance.choice(("switch", "add", "commit"))
            name = f"p{self._chance.randrange(1 << 30)}.txt"
            if verb == "switch":
                self.switches += self._git("switch", "-q", self._chance.choice(("main", "other")))
            elif verb == "add":
                (self._top / name).write_text("mine\n")
                staged += [name] if self._git("add", name) else []
            elif staged and self._git("commit", "-q", "-m", "mine"):
                words = ("git", "symbolic-ref", "--short", "HEAD")
                head = subprocess.run(
                    words, cwd=self._top, capture_output=True, text=True, check=True
                ).stdout.strip()
                self.kept |= dict.fromkeys(staged, head)
                staged = []

    def _git(self, *words: str) -> bool:
        words = ("-c", "user.name=Ann", "-c", "user.email=a@localhost", *words)
        return subprocess.run(["git", *words], cwd=self._top, capture_output=True).returncode == 0


def land_or_kill(yard: Yard, chance: random.Random) -> bool:
    """One landing in a process of its own; whether it was killed."""
    path = yard.top.parent / "request"
    path.write_bytes(pickle.dumps(replace(yard.request(), late_s=0.8)))
    argv = [sys.executable, "-c", PROGRAM, str(path)]
    process = subprocess.Popen(argv, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        _, error = process.communicate(timeout=chance.uniform(0.2, 2.5) if chance.random() < 0.25 else None)
        assert process.returncode == 0, error
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True


@pytest.mark.slow
def test_a_person_who_switches_beside_landings_takes_none_back(
    own_place: Path, say: Callable[[str], None]
) -> None:
    seed = slow_seed()
    chance, yard = random.Random(seed), make_yard(own_place)
    waits = f"import random, time; time.sleep(random.uniform(0, {SLOWEST_S}))"
    (yard.top / ".git/info/attributes").write_text("gone.txt filter=slow\n")
    yard.git("config", "filter.slow.smudge", f"{sys.executable} -S -c '{waits}'; cat")
    yard.git("update-ref", "refs/heads/other", yard.commit({"gone.txt": "other\n"}))
    person, killed, until = Person(yard.top, random.Random(seed + 1)), 0, time.monotonic() + SECONDS
    person.start()
    try:
        # on a slow machine it takes longer until something was killed
        while time.monotonic() < until or not (killed and person.switches and person.kept):
            number = len(yard.entries)
            yard.add(f"t{number}", {f"t{number}.txt": "landed\n"})
            killed += land_or_kill(yard, chance)
    finally:
        person.stop.set()
        person.join()
    yard.git("reset", "-q", "--hard", codes=(0, 128))
    yard.land()
    files = {branch: set(yard.files(branch)) for branch in ("main", "other")}
    tasks = [entry.task for entry in yard.entries]
    told = f"{killed} killed; {person.switches} switches, {len(person.kept)} files"
    say(f"seed {seed}: {len(tasks)} landings, {told}")
    assert [task for task in tasks if f"{task}.txt" not in files["main"]] == [], "taken back"
    assert {name: branch for name, branch in person.kept.items() if name not in files[branch]} == {}, "lost"
    assert yard.examine(tasks) == []
