"""What one task costs the scheduler in graphs of 10,000 tasks, against graphs of 100.

Everything but the disk is in: orders, entries and their folding, the simulated executor.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from zlib import crc32

from simulated import Fate, SimulatedExecutor
from simulation import Drive, make_session

from sessionrun.model.spec import SLOT, Check, Job, SessionSpec, TaskSpec, Workspace

from .measure import Row, compare, interleave

SMALL: Final = 100
LARGE: Final = 10_000
GOAL: Final = 1.2
FATES: Final = [Fate(duration_s=tenths / 10) for tenths in range(1, 20)]


Needs = Callable[[int, int, random.Random], Iterable[int]]
"""The numbers of the tasks that one of so many needs."""

GRAPHS: Final[dict[str, Needs]] = {
    "independent": lambda number, size, chance: (),
    "chains of ten": lambda number, size, chance: [number - 1] if number % 10 else (),
    # all need the first, the last needs all
    "fan-out": lambda number, size, chance: range(min(number, 1) if number < size - 1 else number),
    # each needs up to three of the hundred before it
    "random": lambda number, size, chance: {
        chance.randrange(max(0, number - 100), number) for _ in range(chance.randrange(4)) if number
    },
    "4 jobs a task": lambda number, size, chance: (),
}


def make_tasks(name: str, size: int) -> list[TaskSpec]:
    """A graph of its kind; where a task has four jobs, it takes two tokens, too."""
    chance = random.Random(1)
    more: dict[str, Any] = {}
    if name == "4 jobs a task":
        more = {"workspace": Workspace("worktree"), "uses": {"provider": 1}, "check": Check(("true",))}
    needs = (tuple(f"t{need}" for need in GRAPHS[name](number, size, chance)) for number in range(size))
    return [TaskSpec(f"t{number}", ("x",), needs=each, **more) for number, each in enumerate(needs)]


def measure(rounds: int = 5) -> list[Row]:
    """Measure; a round takes about five seconds.  All times are those of 10,000 tasks."""
    return [compare_sizes(name, slots, rounds) for name in GRAPHS for slots in (16, None)]


def compare_sizes(name: str, slots: int | None, rounds: int) -> Row:
    """One kind of graph.  Only its own specs are in memory: the garbage collector looks at all there is."""
    kind = f"{name}, {slots or 'no'} slots"
    resources = {"provider": 8} | ({SLOT: slots} if slots else {})
    cases = {
        label: drive_case(make_session(make_tasks(name, size), resources=resources))
        for label, size in ((f"{LARGE:,}: {kind}", LARGE), (f"{LARGE // SMALL} x {SMALL}", SMALL))
    }
    large, small = cases
    return compare(interleave(cases, rounds), large, small, GOAL)


def drive_case(spec: SessionSpec) -> Callable[[], float]:
    """A case: the seconds that 10,000 tasks take in sessions of this kind."""

    def drive() -> float:
        begun = time.perf_counter()
        for _ in range(LARGE // len(spec.tasks)):
            done = Drive(spec, SimulatedExecutor(fate_of), keep=False).run()
            assert done.state.completed == len(spec.tasks)
        return time.perf_counter() - begun

    return drive


def fate_of(job: Job) -> Fate:
    """Durations that differ, and are the same in each run."""
    return FATES[crc32(job.key.task.encode()) % len(FATES)]


BENCHMARKS: Final = {"scheduler": measure}
