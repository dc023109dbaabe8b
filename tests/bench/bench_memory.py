"""How much memory a supervisor needs for each task that waits."""

from __future__ import annotations

import os
import time
from typing import Final

from .measure import Place, Row, command, compare_figure, end_session, make_place

FULL: Final = bool(os.environ.get("SESSIONRUN_BENCH_FULL"))
TASKS: Final = 100_000 if FULL else 20_000
GOAL_KB: Final = 1.5


def measure() -> list[Row]:
    """Measure once: memory does not depend on what else runs."""
    with make_place() as place:
        one, many = _resident_kb(place, 1), _resident_kb(place, TASKS)
    return [
        compare_figure(f"KB of the supervisor for each of {TASKS:,} tasks", (many - one) / (TASKS - 1), GOAL_KB)
    ]


def _resident_kb(place: Place, size: int) -> int:
    """What the supervisor holds when its first task runs, which holds up all others."""
    name = place.write_prompts(f"memory-{size}.json", ["sleep 600"] + ["true"] * (size - 1))
    session = place.session(
        place.call([*command(), "-q", "--agent", "shell", "--max-parallel", "1", name])[1].strip()
    )
    while (session.load_summary() or {"running": 0})["running"] == 0:
        time.sleep(0.01)
    status = session.load_status()
    assert status is not None
    with open(f"/proc/{status['processes']['supervisor']['pid']}/status") as stream:
        resident = next(int(line.split()[1]) for line in stream if line.startswith("VmRSS:"))
    end_session(session)
    return resident
