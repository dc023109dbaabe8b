"""A storm for the dispatcher: a repository, tasks of known kinds, a scripted agent, and what must come out.

Each task says in its title what it is: ``storm KIND NUMBER``.  By that the agent knows what to do, and the test
what must be true at the end.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stages import begin_repository, commit_all, git

from sessionrun.queue.open import open_queue
from sessionrun.queue.task import Draft

WHOLE: Final[Mapping[str, int]] = {
    "commit": 20,
    "leave": 12,
    "crash": 4,
    "once": 4,
    "left": 5,
    "right": 5,
    "one": 2,
    "two": 2,
    "break": 6,
}
"""How many tasks of each kind; 60 in all."""

BAD: Final = ("crash", "break")
"""Kinds whose work must never come to the branch; all others must, once."""

SCRIPTS: Final = Path(__file__).parent / "data" / "storm"


@dataclass
class Storm:
    """A repository with a queue; `place` is for what the agent remembers."""

    top: Path
    place: Path
    titles: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, top: Path) -> Storm:
        """Make the repository, the agent `storm` and the queue."""
        storm = cls(top, top.parent / "storm")
        storm.place.mkdir()
        top.mkdir(exist_ok=True)
        begin_repository(top)
        shutil.copy(SCRIPTS / "gate.sh", top)
        (top / "shared").mkdir()
        for number in range(WHOLE["left"]):
            (top / "shared" / str(number)).write_text("base\n")
        agent = shutil.copy(SCRIPTS / "agent.sh", storm.place)
        (top / ".gitignore").write_text("/results/\n/task_queue.json*\n/sessionrun.toml\n")
        (top / "sessionrun.toml").write_text(f'[agents.storm]\nargv = ["{agent}"]\n')
        commit_all(top)
        storm.titles = [f"storm {kind} {number}" for kind, count in WHOLE.items() for number in range(count)]
        open_queue(top).create([Draft(title) for title in _mix(storm.titles)])
        return storm

    def git(self, *words: str) -> str:
        return git(self.top, *words)

    def queue(self) -> dict[str, dict[str, Any]]:
        """The queue's tasks of the storm by title."""
        tasks = json.loads((self.top / "task_queue.json").read_text())["tasks"]
        return {task["title"]: task for task in tasks if task["title"] in self.titles}

    def left(self) -> list[str]:
        """The good tasks that are still to be done."""
        queue = self.queue()
        return [
            title for title in self.titles if is_good(title) and queue[title]["status"] not in ("done", "closed")
        ]

    def judge(self) -> None:
        """All that must be true at the end, but for what stays in the worktrees."""
        self._judge_work()
        self._judge_line()
        assert self.git("status", "--porcelain") == ""
        locks = [path for path in (self.top / ".git").rglob("*.lock") if not path.name.startswith("sessionrun")]
        assert locks == []
        for title, task in self.queue().items():
            is_closed = task["status"] in ("done", "closed")
            assert is_closed is is_good(title), task
            assert is_closed or task.get("reason"), task

    def _judge_work(self) -> None:
        """Each good change is there once, and no bad one."""
        expected = {"gate.sh", ".gitignore"}
        for title in filter(is_good, self.titles):
            _, kind, number = title.split()
            expected.add(f"shared/{number}" if kind in ("left", "right") else f"work/{kind}-{number}")
        assert set(self.git("ls-tree", "-r", "--name-only", "main").splitlines()) == expected
        for pair in range(WHOLE["left"]):
            lines = sorted(self.git("show", f"main:shared/{pair}").splitlines())
            assert lines == [f"left {pair}", f"right {pair}"], pair
        for pair in range(WHOLE["one"]):
            claims = [self.git("show", f"main:work/{kind}-{pair}") for kind in ("one", "two")]
            assert sorted(claims) == ["claims", "yields"], claims

    def _judge_line(self) -> None:
        """The gate is green at each commit of the line, and each good task came there by one merge."""
        room = self.place / "room"
        for commit in self.git("rev-list", "--first-parent", "main").splitlines():
            shutil.rmtree(room, ignore_errors=True)
            room.mkdir()
            archive = subprocess.run(["git", "archive", commit], cwd=self.top, capture_output=True, check=True)
            subprocess.run(["tar", "-x"], cwd=room, input=archive.stdout, check=True)
            done = subprocess.run(["sh", "gate.sh"], cwd=room, capture_output=True, text=True)
            assert done.returncode == 0, (commit, done.stdout)
        authors = self.git("log", "--format=%an %s", "main").splitlines()
        for title in filter(is_good, self.titles):
            _, kind, number = title.split()
            if kind not in ("leave", "once"):
                assert authors.count(f"storm {kind} {number}") == 1, (title, authors)


def is_good(title: str) -> bool:
    """Whether the work of a task belongs on the branch."""
    return title.split()[1] not in BAD


def _mix(titles: list[str]) -> Iterator[str]:
    """The titles in an order in which kinds alternate."""
    step = next(step for step in range(7, len(titles) + 8) if math.gcd(step, len(titles)) == 1)
    yield from (titles[at * step % len(titles)] for at in range(len(titles)))
