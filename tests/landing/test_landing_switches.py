"""A person switches, stages and commits beside landings of which a quarter is killed: nothing is taken back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import slow_seed
from landings import PROGRAM, Yard, make_yard, save_request

SECONDS = 40.0
MEAN_S = 0.075
SLOWEST_S = 1.0


class Person(threading.Thread):
    """Works in the checkout until `stop` is set; `kept` has by file the branch of its commit."""

    def __init__(self, yard: Yard, chance: random.Random) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.kept: dict[str, str] = {}
        self.counts = dict.fromkeys(("switch", "add", "commit"), 0)
        self._yard = yard
        self._chance = chance
        self._staged: list[str] = []

    def run(self) -> None:
        while not self.stop.wait(self._chance.expovariate(1 / MEAN_S)):
            verb = self._chance.choice(("switch", "add", "commit"))
            self.counts[verb] += getattr(self, f"_{verb}")()

    def _git(self, *words: str) -> bool:
        words = ("-c", "user.name=Ann", "-c", "user.email=a@localhost", *words)
        return subprocess.run(["git", *words], cwd=self._yard.top, capture_output=True).returncode == 0

    def _switch(self) -> bool:
        return self._git("switch", "-q", self._chance.choice(("main", "other")))

    def _add(self) -> bool:
        name = f"p{self.counts['add']}-{self._chance.randrange(1 << 30)}.txt"
        (self._yard.top / name).write_text("mine\n")
        added = self._git("add", name)
        self._staged += [name] if added else []
        return added

    def _commit(self) -> bool:
        if not self._staged or not self._git("commit", "-q", "-m", "mine"):
            return False
        head = (self._yard.top / ".git/HEAD").read_text().strip().removeprefix("ref: refs/heads/")
        self.kept |= dict.fromkeys(self._staged, head)
        self._staged = []
        return True


def land_or_kill(yard: Yard, chance: random.Random) -> bool:
    """One landing in a process of its own; whether it was killed."""
    path = yard.top.parent / "request.json"
    save_request(path, replace(yard.request(), late_s=0.8))
    argv = [sys.executable, "-c", PROGRAM, str(path), str(Path(__file__).parents[1])]
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
    slow = own_place / "slow.py"
    slow.write_text(
        "import random, sys, time\n"
        f"time.sleep(random.uniform(0, {SLOWEST_S}))\n"
        "sys.stdout.buffer.write(sys.stdin.buffer.read())\n"
    )
    (yard.top / ".git/info/attributes").write_text("gone.txt filter=slow\n")
    yard.git("config", "filter.slow.smudge", f"{sys.executable} -S {slow}")
    yard.git("update-ref", "refs/heads/other", yard.commit({"gone.txt": "other\n"}))
    person, killed, until = Person(yard, random.Random(seed + 1)), 0, time.monotonic() + SECONDS
    person.start()
    try:
        while time.monotonic() < until:
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
    say(f"seed {seed}: {len(tasks)} landings, {killed} killed; the person: {person.counts}")
    assert [task for task in tasks if f"{task}.txt" not in files["main"]] == [], "taken back"
    assert {name: branch for name, branch in person.kept.items() if name not in files[branch]} == {}, "lost"
    assert yard.examine(tasks) == []
    assert killed and all(person.counts.values())
