"""What must be true of a session that has ended, whoever was killed meanwhile: read by a reader of its own.

The jobs of `make_plan` tell of each start in a file that the command under test knows nothing of, and exit with a
code that follows from their id.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.engine.fold import apply
from sessionrun.engine.status import project
from sessionrun.model.events import SessionEnded, TaskEnded
from sessionrun.session.history import begin
from sessionrun.store.logs import read_log
from sessionrun.store.session import SessionDir

from .chain import find_left
from .place import wait_until

CODES: Final = 7
LEAVE_S: Final = 60.0
"""How long the processes may take to leave once the end of the session is published."""


@dataclass
class Figures:
    """What was seen, added up; `wrong` are violations in words."""

    sessions: int = 0
    tasks: int = 0
    lost: int = 0
    unsure: int = 0
    refused: int = 0
    resumed: int = 0
    twice: int = 0
    hung: int = 0
    wrong: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        """Take in those of another session."""
        for name in vars(other):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def is_good(self) -> bool:
        """Whether nothing was violated."""
        return not (self.wrong or self.twice or self.hung)


def make_plan(executed: Path, count: int, rng: random.Random, *, more: str = "") -> dict[str, Any]:
    """Tasks that run 40 to 130 ms each; `more` is shell code that each runs besides."""
    told = f"echo \"$SESSIONRUN_JOB $$\" >> '{executed}'"
    scripts = [f"{told}; {more} sleep {rng.uniform(0.04, 0.13):.3f}; exit {n % CODES}" for n in range(count)]
    return {"prompts": [{"id": f"t{number}", "prompt": script} for number, script in enumerate(scripts)]}


def examine(session: SessionDir, executed: Path, *, may_lose: bool = False) -> Figures:
    """Examine a session that should have ended.

    Args:
        session: whose processes may still be leaving.
        executed: what its jobs told.
        may_lose: jobs that ran when the last of their reapers died may be lost.
    """
    figures = Figures(sessions=1)
    status = session.load_status()
    if status is None or status["ended_at"] is None:
        figures.hung = 1
        figures.wrong.append(f"{session.session_id}: has not ended; locks {session.held_locks()}")
        return figures
    # a supervisor that died behind the published end has a successor, which records its start and publishes anew
    wait_until(lambda: not session.is_alive(), LEAVE_S)
    status = session.load_status() or status
    figures.tasks = len(status["tasks"])
    ledger = LedgerLines(session)
    counts = count_executed(session, executed)
    figures.twice = sum(count > 1 for count in counts.values())
    found = [f"{key} ran {count} times" for key, count in counts.items() if count > 1]
    found += [f"{key} ran without a try on record" for key in counts if key not in ledger.tried]
    for task in status["tasks"]:
        found += _examine_task(task, ledger, counts, figures, may_lose=may_lose)
    found += [*_examine_files(session, status), *ledger.examine()]
    if not wait_until(lambda: not session.is_alive() and not find_left(session.path), LEAVE_S):
        left = [(one.identity.pid, one.words[:5]) for one in find_left(session.path)]
        found.append(f"still there: {left}, locks {session.held_locks()}")
    figures.wrong += [f"{session.session_id}: {one}" for one in found]
    return figures


def count_executed(session: SessionDir, executed: Path) -> Counter[str]:
    """How often each job of a session told that it ran; by key."""
    lines = executed.read_text().splitlines() if executed.exists() else []
    keys = [line.split()[0].partition("/") for line in lines]
    return Counter(key for session_id, _, key in keys if session_id == session.session_id)


class LedgerLines:
    """A reader of the ledger that is not the one under test."""

    def __init__(self, session: SessionDir) -> None:
        self.contents = read_log(session.ledger_path)
        self.claims: Counter[str] = Counter()
        self.tried: dict[str, int] = {}
        self.spawned: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        self.codes: dict[str, list[int]] = {}
        self.lost: set[str] = set()
        self.failed: set[str] = set()
        self.keepers: list[int] = []
        for number, payload in enumerate(self.contents.payloads):
            kind, *words = payload.decode().split()
            self._take(kind, words, number)

    def _take(self, kind: str, words: list[str], number: int) -> None:
        if kind == "K":
            self.keepers.append(number)
        elif kind == "C":
            self.claims[words[0]] += 1
        elif kind == "T":
            self.tried[words[0]] = number
        elif kind == "S":
            self.spawned[words[0]] = number
            self.pids[words[0]] = int(words[1])
        elif kind == "X":
            self.codes.setdefault(words[0], []).append(int(words[1]))
        elif kind == "L":
            self.lost.add(words[0])
        elif kind == "F":
            self.failed.add(words[0])

    def outlived_keeper(self, key: str) -> bool:
        """Whether a keeper came after the try to start it: so one had died, and its end is not on record.

        The record of its process may be later: a keeper that finds the process of a try writes it.
        """
        return key in self.spawned and self.tried[key] < self.keepers[-1] and key not in self.codes

    def examine(self) -> Iterator[str]:
        """What is wrong with the ledger itself."""
        if self.contents.damage_at is not None:
            yield f"the ledger is damaged at {self.contents.damage_at}"
        for key, count in self.claims.items():
            if count > 1:
                yield f"{key} was claimed {count} times"
        for key, codes in self.codes.items():
            if len(set(codes)) > 1:
                yield f"{key} has codes {codes}"
            if key not in self.spawned:
                yield f"{key} has a code and no process"


def _examine_task(
    task: dict[str, Any], ledger: LedgerLines, counts: Counter[str], figures: Figures, *, may_lose: bool
) -> Iterator[str]:
    name, outcome = task["id"], task["outcome"]
    keys = {key for key in ledger.claims if key.split("/")[0] == name and key.split("/")[3] == "work"}
    code = int(name[1:]) % CODES
    if outcome in ("lost", "interrupted"):
        begun = keys | {key for key in ledger.claims if key.split("/")[0] == name and key.split("/")[3] == "setup"}
        yield from _examine_lost(name, outcome, begun, ledger, figures, may_lose=may_lose)
    elif task["reason_class"] == "start_failed" and keys <= ledger.failed:
        figures.refused += 1
    elif task["status"] != "completed" or outcome != ("failed" if code else "succeeded"):
        yield f"{name} is {task['status']} {outcome} ({task['reason']}), its code is {code}"
    elif task["exit_code"] != code or task["signal"] is not None:
        yield f"{name} has exit code {task['exit_code']}, not {code} ({task['reason_class']}: {task['reason']})"
    elif sum(counts[key] for key in keys) != 1:
        yield f"{name} ended with its code and ran {sum(counts[key] for key in keys)} times"


def _examine_lost(
    name: str, outcome: str, keys: set[str], ledger: LedgerLines, figures: Figures, *, may_lose: bool
) -> Iterator[str]:
    lost = [key for key in keys if key in ledger.lost]
    if outcome != "lost" or not lost:
        yield f"{name} is {outcome} without an L in the ledger"
    elif any(key in ledger.tried and key not in ledger.spawned for key in lost):
        figures.unsure += 1  # its keeper was killed in the one window of which nothing can be known
    elif may_lose and all(ledger.outlived_keeper(key) for key in lost):
        figures.lost += 1
    else:
        yield f"{name} is lost"


def _examine_files(session: SessionDir, status: dict[str, Any]) -> Iterator[str]:
    state = begin(session.load_spec())
    entries, contents = session.load_journal()
    if contents.damage_at is not None or contents.end != session.journal_path.stat().st_size:
        yield "the journal is not whole"
    for entry in entries:
        apply(state, entry)
    ended = Counter(entry.event.task for entry in entries if isinstance(entry.event, TaskEnded))
    yield from (f"{task} ended {count} times" for task, count in ended.items() if count != 1)
    if sum(isinstance(entry.event, SessionEnded) for entry in entries) != 1:
        yield "the session did not end once"
    if json.loads(orjson.dumps(project(state))) != status:
        yield "status.json is not what the journal adds up to"
    summary: Mapping[str, Any] = session.load_summary() or {}
    if not summary or any(summary[key] != status[key] for key in summary):
        yield f"summary says something else than status.json: {summary}"
    log = session.log_path.read_text(errors="replace")
    if "Traceback" in log or "Error" in log:
        yield f"the log says: {log[-2000:]}"
