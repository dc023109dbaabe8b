"""How long a caller waits until its session is started: 1, 100 and 10,000 tasks; and until the first task runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Final

from .measure import (
    FLOOR,
    FLOOR_ARGV,
    Case,
    Place,
    Row,
    Spent,
    command,
    compare,
    end_session,
    interleave,
    make_place,
)

SIZES: Final = (1, 100, 10_000)
GOAL: Final = 2.5
GOAL_FIRST: Final = 4.0
FIRST: Final = "the first task runs"
GOAL_SIZE: Final = 2.0
"""The largest launch against that of one task."""


def measure(rounds: int = 9) -> list[Row]:
    """Measure; a round takes about two seconds."""
    with make_place() as place:
        cases: dict[str, Case] = {_name(size): _launch(place, size) for size in SIZES}
        cases[FIRST] = _first(place)
        samples = interleave({FLOOR: place.takes(*FLOOR_ARGV), **cases}, rounds)
    rows = [compare(samples, _name(size), FLOOR, GOAL) for size in SIZES]
    rows.append(compare(samples, FIRST, FLOOR, GOAL_FIRST))
    return [*rows, compare(samples, _name(SIZES[-1]), _name(SIZES[0]), GOAL_SIZE)]


def _name(size: int) -> str:
    return f"launch {size:,}"


def _launch(place: Place, size: int) -> Callable[[], Spent]:
    """One task runs and holds up all others, so nothing else happens meanwhile; then the session is removed."""
    name = place.write_prompts(f"launch-{size}.json", ["sleep 600"] + ["true"] * (size - 1))

    def launch() -> Spent:
        spent, printed = place.call([*command(), "-q", "--agent", "shell", "--max-parallel", "1", name])
        session = place.session(printed.strip())
        end_session(session)
        shutil.rmtree(session.path)
        return spent

    return launch


def _first(place: Place) -> Callable[[], float]:
    """The seconds from the command to the first word of the first task's process."""
    fifo = place.path / "begun"
    os.mkfifo(fifo)
    name = place.write_prompts("first.json", [f"echo >{fifo}; sleep 600"])

    def first() -> float:
        fd = os.open(fifo, os.O_RDWR)
        argv = [*command(), "-q", "--agent", "shell", name]
        begun = time.perf_counter()
        with subprocess.Popen(
            argv, cwd=place.path, env=place.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            os.read(fd, 1)
            seconds = time.perf_counter() - begun
            printed = process.communicate()[0].decode()
        os.close(fd)
        session = place.session(printed.strip())
        end_session(session)
        shutil.rmtree(session.path)
        return seconds

    return first
