"""How long a poll takes: `status`, for people and as JSON, of 1, 100 and 10,000 tasks, running and ended."""

from __future__ import annotations

import time
from typing import Final

from .measure import FLOOR, FLOOR_ARGV, Place, Row, command, compare, end_session, interleave, make_place

SIZES: Final = (1, 100, 10_000)
GOAL: Final = 1.3
GOAL_LARGE: Final = 1.6
"""For people, of the largest session: each task is a line."""


def measure(rounds: int = 9) -> list[Row]:
    """Measure; a round takes about two seconds."""
    with make_place() as place:
        cases = {FLOOR: place.takes(*FLOOR_ARGV)}
        for state, size in ((state, size) for state in ("running", "ended") for size in SIZES):
            session_id = _start(place, size)
            if state == "ended":
                end_session(place.session(session_id))
            for kind, options in (("", ()), (" --json", ("--json",))):
                name = f"status{kind} {size:,} {state}"
                cases[name] = place.takes(*command(), "status", session_id, *options)
        samples = interleave(cases, rounds)
    large = f"status {SIZES[-1]:,} "
    return [
        compare(samples, name, FLOOR, GOAL_LARGE if name.startswith(large) else GOAL)
        for name in cases
        if name != FLOOR
    ]


def _start(place: Place, size: int) -> str:
    """Start a session whose first task holds up all others; return its id when it has come to rest."""
    name = place.write_prompts(f"status-{size}.json", ["sleep 600"] + ["true"] * (size - 1))
    _, printed = place.call([*command(), "-q", "--agent", "shell", "--max-parallel", "1", name])
    session = place.session(printed.strip())
    while (session.load_summary() or {"running": 0})["running"] == 0:
        time.sleep(0.01)
    return session.session_id
