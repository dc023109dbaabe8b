"""How long a caller waits until its session is started: 1, 100 and 10,000 tasks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Final

from .measure import FLOOR, FLOOR_ARGV, Place, Row, command, compare, end_session, interleave, make_place

SIZES: Final = (1, 100, 10_000)
GOAL: Final = 2.0
GOAL_SIZE: Final = 2.0
"""The largest launch against that of one task."""


def measure(rounds: int = 9) -> list[Row]:
    """Measure; a round takes about two seconds."""
    with make_place() as place:
        cases = {_name(size): _launch(place, size) for size in SIZES}
        samples = interleave({FLOOR: place.seconds(*FLOOR_ARGV), **cases}, rounds)
    rows = [compare(samples, _name(size), FLOOR, GOAL) for size in SIZES]
    return [*rows, compare(samples, _name(SIZES[-1]), _name(SIZES[0]), GOAL_SIZE)]


def _name(size: int) -> str:
    return f"launch {size:,}"


def _launch(place: Place, size: int) -> Callable[[], float]:
    """One task runs and holds up all others, so nothing else happens meanwhile; then the session is removed."""
    name = place.write_prompts(f"launch-{size}.json", ["sleep 600"] + ["true"] * (size - 1))

    def launch() -> float:
        seconds, printed = place.call([*command(), "-q", "--agent", "shell", "--max-parallel", "1", name])
        session = place.session(printed.strip())
        end_session(session)
        shutil.rmtree(session.path)
        return seconds

    return launch
