"""What one task costs the scheduler, in graphs of 100 and of 10,000 tasks.

Run it as a script.  Everything but the disk is in: orders, entries and their folding, the simulated executor.
The goal is that a task of a large graph costs at most 1.2 times one of a small graph.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation import Drive, make_session

from sessionrun.executors.simulated import Fate, SimulatedExecutor
from sessionrun.model import SLOT, Check, Job, SessionSpec, TaskSpec, Workspace

SMALL, LARGE = 100, 10_000
REPETITIONS = 5
GOAL = 1.2
FATES = [Fate(duration_s=seconds / 10) for seconds in range(1, 20)]


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


GRAPHS: list[tuple[str, Callable[[int], list[TaskSpec]]]] = [
    ("independent", make_independent),
    ("chains", make_chains),
    ("fan-out", make_fan_out),
    ("random", make_random),
    ("4 jobs, 2 tokens", make_checked),
]


def fate_of(job: Job) -> Fate:
    """Durations that differ, and are the same in each run."""
    return FATES[crc32(job.key.task.encode()) % len(FATES)]


def measure(spec: SessionSpec, runs: int) -> float:
    """Seconds per task, over `runs` sessions."""
    begun = time.perf_counter()
    for _ in range(runs):
        drive = Drive(spec, SimulatedExecutor(fate_of), keep=False).run()
        assert drive.state.completed == len(spec.tasks)
    return (time.perf_counter() - begun) / (runs * len(spec.tasks))


def compare(make: Callable[[int], list[TaskSpec]], slots: int | None) -> tuple[float, float, float]:
    """Medians of small and large (seconds per task) and of their ratio, measured in turn."""
    resources = {"provider": 8} | ({SLOT: slots} if slots else {})
    small, large = (make_session(make(size), resources=resources) for size in (SMALL, LARGE))
    pairs = [(measure(small, 20), measure(large, 1)) for _ in range(REPETITIONS)]
    return (
        median(small_s for small_s, _ in pairs),
        median(large_s for _, large_s in pairs),
        median(large_s / small_s for small_s, large_s in pairs),
    )


def main() -> None:
    """Measure all and print a table."""
    print(f"{'graph':18} {'slots':>9} {SMALL:>8} {LARGE:>8}  us per task, ratio (goal {GOAL}x)")
    for name, make in GRAPHS:
        for slots in (16, None):
            small_s, large_s, ratio = compare(make, slots)
            verdict = "met" if ratio <= GOAL else "missed"
            limit = slots or "unlimited"
            print(
                f"{name:18} {limit:>9} {small_s * 1e6:8.1f} {large_s * 1e6:8.1f}  {ratio:.2f}x {verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
