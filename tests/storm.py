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

from stages import git, make_program, make_repository_of

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

GATE: Final = """#!/bin/sh
# red: a file is broken, or the two of a pair both claim what only one can have
if grep -rqs BROKEN work; then echo "work is broken"; exit 1; fi
for one in work/one-*; do
    two="work/two-${one#work/one-}"
    if [ -f "$one" ] && [ -f "$two" ] && grep -q claims "$one" && grep -q claims "$two"; then
        echo "$one and $two both claim the same"
        exit 1
    fi
done
exit 0
"""

AGENT: Final = """#!/bin/sh
# Plays a coding agent.  The title of the task says what it does.
prompt=$(cat)
keep() {{ git add -A && git -c user.name=storm -c user.email=storm@example.org commit -qm "$*"; }}
mend() {{
    for file in $(git grep -l '^<<<<<<< '); do
        sed -i -e '/^||||||| /,/^=======$/d' -e '/^<<<<<<< /d' -e '/^=======$/d' -e '/^>>>>>>> /d' "$file"
    done
    for one in work/one-*; do
        two="work/two-${{one#work/one-}}"
        if [ -f "$one" ] && [ -f "$two" ]; then echo yields >"$two"; fi
    done
    keep mended
}}
case "$SESSIONRUN_TASK" in
*-mend-*) mend; echo mended; exit 0 ;;
esac
set -- $(printf '%s\\n' "$prompt" | sed -n 's/.*storm \\([a-z]*\\) \\([0-9]*\\).*/\\1 \\2/p' | head -n 1)
mkdir -p work
case "$1" in
commit) echo "$1 $2" >"work/$1-$2"; keep "$1" "$2" ;;
leave) echo "$1 $2" >"work/$1-$2" ;;
crash) echo "$1 $2" >"work/$1-$2"; keep "$1" "$2"; exit 3 ;;
once) mkdir "{place}/once-$2" 2>/dev/null && exit 3; echo "$1 $2" >"work/$1-$2" ;;
left | right)
    if grep -q base "shared/$2"; then echo "$1 $2" >"shared/$2"; else echo "$1 $2" >>"shared/$2"; fi
    keep "$1" "$2" ;;
one | two) echo claims >"work/$1-$2"; keep "$1" "$2" ;;
break) echo BROKEN >"work/$1-$2"; keep "$1" "$2" ;;
*) echo "no storm in the prompt"; exit 4 ;;
esac
echo "did $1 $2"
"""


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
        agent = make_program(storm.place / "agent.sh", AGENT.format(place=storm.place))
        files = {
            "gate.sh": GATE,
            ".gitignore": "/results/\n/task_queue.json*\n/sessionrun.toml\n",
            "sessionrun.toml": f'[agents.storm]\nargv = ["{agent}"]\n',
        }
        make_repository_of(top, {**files, **{f"shared/{pair}": "base\n" for pair in range(WHOLE["left"])}})
        storm.titles = [f"storm {kind} {number}" for kind, count in WHOLE.items() for number in range(count)]
        tasks = [
            {"id": f"task-{number}", "title": title, "status": "pending", "description": ""}
            for number, title in enumerate(_mix(storm.titles), 1)
        ]
        queue = {"tasks": tasks, "next_id": len(tasks) + 1}
        (top / "task_queue.json").write_text(json.dumps(queue))
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
        self._judge_queue()
        self._judge_line()
        assert self.git("status", "--porcelain") == ""
        locks = [path for path in (self.top / ".git").rglob("*.lock") if not path.name.startswith("sessionrun")]
        assert locks == []

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

    def _judge_queue(self) -> None:
        for title, task in self.queue().items():
            is_closed = task["status"] in ("done", "closed")
            assert is_closed is is_good(title), task
            assert is_closed or task.get("reason"), task

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
