"""Many at once: resumes of one dead session, readers of one that writes as fast as it can."""

from __future__ import annotations

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import orjson
import psutil
import pytest

from sessionrun.store.session import SessionDir

from .chain import Role, find_chain, kill_role
from .oracle import CODES, examine, has_ended, kill_all, load_outcome, make_plan
from .place import Place, wait_until

USERS, AT_ONCE = 60, 12
END_S = 60.0
MANY = 10_000
LONG_S = 3600.0  # the limit of a hang; a busy machine may be slow


@pytest.mark.slow
def test_of_many_resumes_one_acts(place: Place) -> None:
    may_end = place.path / "may-end"
    tasks = make_plan(place.executed, 6, random.Random(1), more=f"until [ -e {may_end} ]; do sleep 0.1; done;")
    session = place.start(tasks, "--max-parallel", "3")
    wait_until(place.executed.exists, END_S)
    kill_all(session)
    roots: list[int] = []
    deadline = time.monotonic() + END_S
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(place.resume, session) for _ in range(USERS)]
        # no task ends before the file is there: so after the last answer the session's root must be seen
        while not (all(user.done() for user in asked) and any(roots)) and time.monotonic() < deadline:
            roots.append(len(find_chain(session.path)["root"]))
            wait_until(lambda: False, 0.02)
    may_end.touch()
    said = [user.result() for user in asked]
    assert sum(one.endswith(": goes on") for one in said) == 1, said
    others = [one for one in said if not one.endswith(": goes on")]
    assert all(re.search(r": is running \(.*lock.* held\)$|: has ended", one) for one in others), others
    assert max(roots) == 1
    assert wait_until(lambda: has_ended(session), END_S)
    figures = examine(session, place.executed, may_lose=True)
    assert figures.is_good, figures.wrong
    assert figures.lost <= 3


@pytest.mark.slow
def test_no_reader_ever_sees_half(place: Place) -> None:
    """Every file is replaced whole, and its `seq` only grows."""
    readers, tasks = 200, 1000
    session = place.start({"prompts": ["true"] * tasks}, "--max-parallel", "16")
    with ThreadPoolExecutor(readers) as pool:
        reads = sum(pool.map(lambda number: poll(session, number, tasks), range(readers)))
    assert reads > readers
    status = load_outcome(session)
    assert (status["completed"], status["successful"]) == (tasks, tasks)


def poll(session: SessionDir, number: int, tasks: int) -> int:
    """Read both files until the session has ended; how often."""
    reads, last, deadline = 0, 0, time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        for path in (session.status_path, session.summary_path):
            try:
                seen = orjson.loads(path.read_bytes())
            except FileNotFoundError:
                continue
            reads += 1
            assert seen["total"] == tasks
            if path == session.summary_path:
                continue
            assert seen["seq"] >= last
            assert seen["completed"] == sum(task["status"] == "completed" for task in seen["tasks"])
            last = seen["seq"]
            if seen["ended_at"] is not None:
                return reads
        wait_until(lambda: False, 0.05)
    raise AssertionError(f"poller {number} saw no end")


@pytest.mark.slow
def test_many_short_tasks_and_kills_on_the_way(place: Place) -> None:
    """Its first task ends last, so that there is always somebody to kill; at last nobody is left who could go on.

    Its supervisor shows where it stands after so much time on a processor, however busy the machine is.
    """
    gate = place.path / "gate"
    told = f"echo \"$SESSIONRUN_JOB $$\" >> '{place.executed}'"
    prompts = [{"id": f"t{number}", "prompt": f"{told}; exit {number % CODES}"} for number in range(MANY)]
    prompts[0]["prompt"] = f"{told}; while ! [ -e '{gate}' ]; do sleep 0.1; done"
    session = place.start({"prompts": prompts}, "--max-parallel", "16")
    kills: tuple[list[Role], ...] = (["supervisor"], ["keeper"], ["supervisor", "keeper"], [])
    for part, victims in enumerate(kills, 1):
        goal = MANY * part / 5

        def is_far(goal: float = goal) -> bool:
            summary = session.load_summary()
            return summary is not None and summary["completed"] > goal

        assert wait_until(is_far, LONG_S)
        for role in victims:  # who has just forked a job is not told from it, and is spared at that moment
            assert wait_until(lambda role=role: kill_role(session.path, role), LONG_S)  # type: ignore[misc]
    kill_all(session)
    before = session.load_status()
    assert place.resume(session).endswith(": goes on")
    assert wait_until(lambda: (status := session.load_status()) and status["seq"] > (before or {})["seq"], END_S)
    (supervisor,) = find_chain(session.path)["supervisor"]
    used = psutil.Process(supervisor.pid).cpu_times()
    assert used.user + used.system < 5.0
    gate.touch()
    assert wait_until(lambda: has_ended(session), LONG_S)
    figures = examine(session, place.executed, may_lose=True)
    assert figures.is_good, figures.wrong[:5]
    assert (figures.tasks, figures.lost <= 16) == (MANY, True)
