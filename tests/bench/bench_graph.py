"""A graph against its critical path: what waits, waits for its own needs alone and not for a wave of others.

Jobs sleep, so the critical path is known; it stands as the floor.  With waves, two interleaved chains of slow and
fast jobs would take a slow job's time for each step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .measure import Place, Row, command, compare, interleave, make_place

SLOW_S: Final = 1.0
FAST_S: Final = 0.2
STEPS: Final = 3
JOBS: Final = 50
GOAL: Final = 1.15

Graph = Sequence[Mapping[str, Any]]


def measure(rounds: int = 5) -> list[Row]:
    """Measure the two chains, and a graph of 50 jobs."""
    with make_place() as place:
        graphs = {f"two chains of {STEPS}, 1 s and 0.2 s in turn": make_chains(), f"{JOBS} jobs": make_graph()}
        return [_measure_graph(place, name, graph, min(rounds, 3)) for name, graph in graphs.items()]


def make_chains() -> Graph:
    """Two chains that need nothing of each other, slow where the other is fast."""
    jobs = []
    for step in range(STEPS):
        for chain in "ab":
            seconds = SLOW_S if (step % 2 == 0) == (chain == "a") else FAST_S
            needs = [f"{chain}{step - 1}"] if step else []
            jobs.append({"id": f"{chain}{step}", "prompt": f"sleep {seconds}", "needs": needs, "seconds": seconds})
    return jobs


def make_graph(seed: int = 6) -> Graph:
    """A graph in which each job needs up to two of those before it."""
    dice = random.Random(seed)
    jobs = []
    for number in range(JOBS):
        seconds = dice.choice((FAST_S, FAST_S, FAST_S, SLOW_S))
        needs = [f"j{one}" for one in dice.sample(range(number), min(number, dice.randint(0, 2)))]
        jobs.append({"id": f"j{number}", "prompt": f"sleep {seconds}", "needs": needs, "seconds": seconds})
    return jobs


def find_critical_s(graph: Graph) -> float:
    """Seconds of the longest chain of needs; needs come before what needs them."""
    ends: dict[str, float] = {}
    for job in graph:
        ends[job["id"]] = job["seconds"] + max((ends[need] for need in job["needs"]), default=0.0)
    return max(ends.values())


def _measure_graph(place: Place, name: str, graph: Graph, rounds: int) -> Row:
    prompts = [{key: value for key, value in job.items() if key != "seconds"} for job in graph]
    argv = [*command(), "-q", "--sync", "--agent", "shell", place.write_prompts("graph.json", prompts)]
    critical, ours = find_critical_s(graph), f"{name} at once"
    floor = f"critical path, {critical:.1f} s"
    cases: dict[str, Callable[[], float]] = {ours: _session(place, argv), floor: lambda: critical}
    return compare(interleave(cases, rounds), ours, floor, GOAL)


def _session(place: Place, argv: Sequence[str]) -> Callable[[], float]:
    """Seconds from the first job's start to the end, as the journal has them."""

    def run() -> float:
        entries = place.session(place.call(argv)[1].strip()).load_journal()[0]
        first = next(entry.mono for entry in entries if type(entry.event).__name__ == "JobClaimed")
        return entries[-1].mono - first

    return run
