"""Kills of a session, and what must be true when it has ended: read by a reader of its own.

The jobs of `make_plan` tell of each start in a file that the command under test knows nothing of, and exit with a
code that follows from their id.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from conftest import eventually, wait_until

from sessionrun.engine.fold import apply
from sessionrun.engine.status import project
from sessionrun.model.events import SessionEnded, TaskEnded
from sessionrun.session.history import begin
from sessionrun.store.creation import has_begun
from sessionrun.store.logs import read_log
from sessionrun.store.session import SessionDir, iterate_sessions

from .chain import Role, find_left, kill_at_once, kill_role
from .place import Place

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
        found.append(f"still there: {find_left(session.path)}, locks {session.held_locks()}")
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
        found: defaultdict[str, list[tuple[int, list[str]]]] = defaultdict(list)
        for number, payload in enumerate(self.contents.payloads):
            kind, *words = payload.decode().split()
            found[kind].append((number, words))
        self.keepers = [number for number, _ in found["K"]]
        self.claims = Counter(words[0] for _, words in found["C"])
        self.tried = {words[0]: number for number, words in found["T"]}
        self.spawned = {words[0]: number for number, words in found["S"]}
        self.pids = {words[0]: int(words[1]) for _, words in found["S"]}
        self.codes: defaultdict[str, list[int]] = defaultdict(list)
        for _, words in found["X"]:
            self.codes[words[0]].append(int(words[1]))
        self.lost = {words[0] for _, words in found["L"]}
        self.failed = {words[0] for _, words in found["F"]}

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


# --- kills at random moments, and what the users do then ---

KILLS: Final = 8
"""A session's kills: so many deaths in a row without progress are what root and keeper put up with."""

PAUSE_S: Final = 0.12
HUNG_S: Final = 300.0
MOST_RESUMES: Final = 6
Choice = Callable[[random.Random], Sequence[Role]]
"""Who dies at the same moment."""


def kill_by_chance(
    place: Place, rng: random.Random, session: SessionDir, choose: Choice, *, may_lose: bool
) -> Figures:
    """Kill at random moments, until the session has ended; one that may lose its root is resumed by its users."""
    seen = Figures()

    def go_on() -> bool:
        if seen.kills.total() < KILLS:
            wait_until(lambda: has_ended(session), rng.uniform(0.0, PAUSE_S))
            for role in choose(rng):
                seen.kills[role] += kill_role(session.path, role)
        if may_lose and is_gone(session) and not has_ended(session):
            seen.resumed += resume_by(rng.randint(1, 3), place, session, seen)
        return has_ended(session)

    wait_until(go_on, HUNG_S)
    return seen


def resume_by(users: int, place: Place, session: SessionDir, seen: Figures) -> int:
    """Let so many users resume a session at once; of how many it was started is returned."""
    processes = [place.start_verb("resume", session.session_id) for _ in range(users)]
    said = [process.communicate(timeout=120) for process in processes]
    errors = [error for _, error in said if error]
    seen.wrong += [f"{session.session_id}: resume said {error}" for error in errors]
    started: int = sum(out.strip().endswith("goes on") for out, _ in said)
    if started > 1:
        seen.wrong.append(f"{session.session_id}: {started} users resumed it at once")
    return started


def finish(place: Place, session: SessionDir, seen: Figures, env: Mapping[str, str] | None = None) -> bool:
    """Wait for the end, resuming whenever nobody is left; whether that was so."""
    for number in range(MOST_RESUMES):
        wait_until(lambda: has_ended(session) or is_gone(session), HUNG_S)
        if has_ended(session) or not is_gone(session) or not session.spec_path.exists():
            return number > 0
        seen.resumed += 1
        _, _, said = place.run_verb("resume", session.session_id, env=env)
        if "Traceback" in said:
            seen.wrong.append(f"resume said {said}")
    return True


def examine_start(
    place: Place,
    promised: str,
    seen: Figures,
    *,
    env: Mapping[str, str] | None = None,
    may_stop: bool = False,
    may_lose: bool = False,
) -> None:
    """A start that was disturbed: what it promised runs, and what else it made runs whole or not at all.

    Args:
        place: where nothing else was started.
        promised: the id that it printed; empty when it came to none.
        seen: gets what was wrong.
        env: of who resumes it.
        may_stop: a session that was promised may have lost all who run it.
        may_lose: as for `examine`.
    """
    for session in iterate_sessions(place.results):
        if is_gone(session) and not has_begun(session):
            seen.wrong += _sweep(place, session)
            continue
        if finish(place, session, seen, env) and promised and not may_stop:
            seen.wrong.append(f"{promised} was promised and did not end by itself")
        seen.add(examine(session, place.executed, may_lose=may_lose))
    if promised and not list(iterate_sessions(place.results)):
        seen.wrong.append(f"{promised} was promised and is not there")


def _sweep(place: Place, session: SessionDir) -> Iterator[str]:
    """A launcher died before its session began: no reader shows what it left, and `doctor` removes it."""
    if json.loads(place.run_verb("list", "--json")[1])["sessions"]:
        yield "list shows what never began"
    place.run_verb("doctor", "--fix")
    if session.path.exists():
        yield "what never began stays"


def load_outcome(session: SessionDir) -> dict[str, Any]:
    """Its published status, which is there."""
    status = session.load_status()
    assert status is not None
    return status


def has_ended(session: SessionDir) -> bool:
    """Whether its end is published."""
    status = session.load_status()
    return status is not None and status["ended_at"] is not None


def kill_all(session: SessionDir) -> None:
    """Kill root, keeper and supervisor until nobody is left; raises AssertionError when somebody always is."""
    eventually(lambda: not kill_at_once(session.path) and is_gone(session), timeout_s=HUNG_S)


def is_gone(session: SessionDir) -> bool:
    """Whether nobody runs it: all locks are free, now and a moment later."""
    return not session.is_alive() and not wait_until(session.is_alive, 0.1)
