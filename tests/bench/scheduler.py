"""What one task costs the scheduler in graphs of 10,000 tasks, against graphs of 100.

Everything but the disk is in: orders, entries and their folding, the simulated executor.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final
from zlib import crc32

from simulated import Fate, SimulatedExecutor
from simulation import Drive, make_session

from sessionrun.model.spec import SLOT, Check, Job, SessionSpec, TaskSpec, Workspace

from .measure import Row, compare, interleave

SMALL: Final = 100
LARGE: Final = 10_000
GOAL: Final = 1.2
FATES: Final = [Fate(duration_s=tenths / 10) for tenths in range(1, 20)]


def make_independent(size: int) -> list[TaskSpec]:
    """No task needs another."""
    return [TaskSpec(f"t{number}", ("x",)) for number in range(size)]


def make_chains(size: int) -> list[TaskSpec]:
    """Chains of ten."""
    return [
        TaskSpec(f"t{number}", ("x",), needs=(f"t{number - 1}",) if number % 10 else ()) for number in range(size)
    ]


def make_fan_out(size: int) -> list[TaskSpec]:
    """All need the first, the last needs all."""
    middle = [f"t{number}" for number in range(1, size - 1)]
    return [
        TaskSpec("t0", ("x",)),
        *(TaskSpec(name, ("x",), needs=("t0",)) for name in middle),
        TaskSpec("last", ("x",), needs=tuple(middle)),
    ]


def make_random(size: int) -> list[TaskSpec]:
    """Each needs up to three of the hundred before it."""
    chance = random.Random(1)
    return [
        TaskSpec(
            f"t{number}",
            ("x",),
            needs=tuple(
                {
                    f"t{chance.randrange(max(0, number - 100), number)}"
                    for _ in range(chance.randrange(4))
                    if number
                }
            ),
        )
        for number in range(size)
    ]


def make_checked(size: int) -> list[TaskSpec]:
    """Two tokens and four jobs each."""
    return [
        TaskSpec(
            f"t{number}",
            ("x",),
            workspace=Workspace("worktree"),
            uses={"provider": 1},
            check=Check(("true",)),
        )
        for number in range(size)
    ]


GRAPHS: Final[dict[str, Callable[[int], list[TaskSpec]]]] = {
    "independent": make_independent,
    "chains": make_chains,
    "fan-out": make_fan_out,
    "random": make_random,
    "4 jobs a task": make_checked,
}


def measure(rounds: int = 5) -> list[Row]:
    """Measure; a round takes about five seconds.  All times are those of 10,000 tasks."""
    return [compare_sizes(name, slots, rounds) for name in GRAPHS for slots in (16, None)]


def compare_sizes(name: str, slots: int | None, rounds: int) -> Row:
    """One kind of graph.  Only its own specs are in memory: the garbage collector looks at all there is."""
    kind = f"{name}, {slots or 'no'} slots"
    resources = {"provider": 8} | ({SLOT: slots} if slots else {})
    cases = {
        label: drive_case(make_session(GRAPHS[name](size), resources=resources))
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
