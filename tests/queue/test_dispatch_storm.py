"""Many tasks of all kinds at once, through queue, worktrees that stay, landing and mends; then under kills."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from conftest import Command, eventually, kill_sessions, kill_together, slow_seed
from storm import SAMPLE, WHOLE, Storm

from sessionrun.store.session import SessionDir

MOST_RUNS = 12
"""How often the dispatcher is begun again, at most: a kill may cost a task its attempts."""


def dispatch(sessionrun: Command, workers: int, *words: str) -> tuple[str, ...]:
    """The words of a dispatch."""
    gate = ("--gate", "sh gate.sh")
    return ("dispatch", "--once", "--agent", "storm", "--workers", str(workers), "--retries", "2", *gate, *words)


def finish(sessionrun: Command, storm: Storm, workers: int) -> int:
    """Dispatch until every good task is done; return how many sessions that took."""
    for run in range(1, MOST_RUNS + 1):
        land_held(sessionrun)
        done = sessionrun(*dispatch(sessionrun, workers, "-q"))
        assert done.returncode == 0, done.stderr
        sessionrun.until(done.stdout.strip(), lambda view: view["ended_at"], timeout_s=1200)
        if not storm.left():
            return run
    raise AssertionError(f"after {MOST_RUNS} sessions these are left: {storm.left()}")


def land_held(sessionrun: Command) -> None:
    """Work that is held after too many kills is landed by a retry of its session, not done again."""
    for path in sessionrun.results.glob("session-*"):
        session_id = path.name.removeprefix("session-")
        landings = [task["landing"] or {} for task in sessionrun.status(session_id)["tasks"]]
        if any(landing.get("status") == "held" for landing in landings):
            done = sessionrun("retry", session_id)
            assert done.returncode == 0, done.stderr
            sessionrun.until(session_id, lambda view: view["ended_at"], timeout_s=600)


def judge(sessionrun: Command, storm: Storm) -> None:
    """What must be true, and then nothing is left of any worktree."""
    for path in sessionrun.results.glob("session-*"):
        session_id = path.name.removeprefix("session-")
        eventually(partial(is_over, sessionrun, session_id))
        done = sessionrun("clean", session_id, "--worktrees", "--json")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    storm.judge()
    worktrees = storm.git("worktree", "list", "--porcelain").split("\n\n")
    assert len(worktrees) == 1, worktrees
    assert not any(storm.top.glob("worktrees/*"))


def is_over(sessionrun: Command, session_id: str) -> bool:
    """Whether no process of the session lives."""
    return not SessionDir(sessionrun.directory(session_id)).is_alive()


@pytest.fixture
def begin(sessionrun: Command, own_place: Path) -> Callable[[dict[str, int]], Storm]:
    """Make the storm's repository in the test's own directory."""
    top = own_place / "repo"

    def make(shares: dict[str, int]) -> Storm:
        storm = Storm.begin(top, shares)
        sessionrun.cwd, sessionrun.results = top, top / "results"
        return storm

    return make


@pytest.mark.slow
def test_a_small_storm(sessionrun: Command, begin: Callable[[dict[str, int]], Storm]) -> None:
    storm = begin(dict(SAMPLE))
    assert finish(sessionrun, storm, 4) == 1
    judge(sessionrun, storm)


@pytest.mark.slow
def test_sixty_tasks_on_fourteen_workers(sessionrun: Command, begin: Callable[[dict[str, int]], Storm]) -> None:
    storm = begin(dict(WHOLE))
    assert finish(sessionrun, storm, 14) == 1
    judge(sessionrun, storm)


@pytest.mark.slow
def test_sixty_tasks_and_ten_kills(
    sessionrun: Command, begin: Callable[[dict[str, int]], Storm], say: Callable[[str], None]
) -> None:
    seed = slow_seed()
    say(f"storm: SLOW_SEED={seed}")
    chance = random.Random(seed)
    storm = begin(dict(WHOLE))
    started = sessionrun(*dispatch(sessionrun, 14, "-q"))
    assert started.returncode == 0, started.stderr
    session_id, kills = started.stdout.strip(), 0
    while kills < 10 and storm.left():
        await_some(chance.uniform(0.0, 2.0), session_id, sessionrun)
        kill_some(chance, sessionrun, session_id)
        kills += 1
        for lock in (storm.top / ".git").rglob("*.lock"):
            os.utime(lock, (0, 0))  # as if the crash had been a while ago
        session_id = go_on(sessionrun, session_id)
    say(f"storm: {kills} kills")
    sessionrun.until(session_id, lambda view: view["ended_at"], timeout_s=1200)
    if storm.left():
        say(f"storm: {finish(sessionrun, storm, 14)} more sessions")
    judge(sessionrun, storm)


def kill_some(chance: random.Random, sessionrun: Command, session_id: str) -> None:
    """Kill all with the agents, or root, keeper and supervisor alone, or one of these three."""
    chain = find_chain(sessionrun.directory(session_id))
    how = chance.choice(("all", "chain", "one"))
    if how == "all" or not chain:
        kill_sessions(sessionrun.results)
        return
    kill_together(chain if how == "chain" else [chance.choice(chain)])


def find_chain(folder: Path) -> list[psutil.Process]:
    """The root, the keeper and the supervisor of a session, as far as they live."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(folder) in process.cmdline() and "SESSIONRUN_JOB" not in process.environ():
                found.append(process)
    return found


def await_some(seconds: float, session_id: str, sessionrun: Command) -> None:
    """Let the session go on for so long, or until it ends."""
    moment = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= moment or sessionrun.status(session_id)["ended_at"])


def go_on(sessionrun: Command, session_id: str) -> str:
    """Resume the session; if it has ended, begin another one for what is left of the queue."""
    if sessionrun.status(session_id)["ended_at"] is None:
        done = sessionrun("resume", session_id)  # one that lives is left alone
        assert done.returncode == 0 or SessionDir(sessionrun.directory(session_id)).is_alive(), done.stderr
        return session_id
    done = sessionrun(*dispatch(sessionrun, 14, "-q"))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch("[0-9a-f-]+", done.stdout.strip())
    return done.stdout.strip()
