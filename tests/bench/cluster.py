"""Short jobs on two nodes of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from clusters import real_cluster
from conftest import Command
from warm import Warm

from .measure import Bench, Row, Spent, compare, interleave, make_bench

JOBS: Final = 1000
MORE: Final = ", as many more"
SIZES: Final = {"": JOBS, MORE: 2 * JOBS}
NODES: Final = 2
SLOTS: Final = 4
GOAL: Final = 1.5


def measure(rounds: int = 3) -> list[Row]:
    """Short jobs on two nodes of a cluster, against the same here.

    A round takes about a minute.  The first row is a whole session, so with its start; the other is what as many
    jobs more take, which leaves out every start.  Decision 337 says what the jobs of bare dask take, and why.
    """
    with make_bench() as bench:
        Command.warm = Warm()  # which asks the cluster whether its nodes are up
        bench.environ["SESSIONRUN_CERTS"] = str(bench.path / "certs")
        here = Command(bench.path, bench.results)
        with real_cluster(here, NODES, SLOTS, timers="", env=bench.environ) as cluster:
            return _compare(bench, cluster.address, rounds)


def _compare(bench: Bench, address: str, rounds: int) -> list[Row]:
    ours, local = f"{JOBS:,} jobs on {NODES} nodes x {SLOTS}", "the same here"
    runs: dict[str, Callable[[int], float]] = {
        ours: lambda jobs: _time(bench, jobs, "--cluster", address),
        local: lambda jobs: _time(bench, jobs, "--max-parallel", str(NODES * SLOTS)),
    }
    cases = {name + more: partial(run, jobs) for name, run in runs.items() for more, jobs in SIZES.items()}
    samples = dict(interleave(cases, rounds))
    for name in runs:
        both = zip(samples[name], samples[name + MORE], strict=True)
        samples[name + MORE] = [Spent(twice.seconds - once.seconds) for once, twice in both]
    return [compare(samples, ours + more, local + more, GOAL) for more in SIZES]


def _time(bench: Bench, jobs: int, *words: str) -> float:
    """From the start of the program to the end of the session, which a reader learns up to 0.2 s later."""
    file, begun = bench.write("cluster.json", ["true"] * jobs), time.time()
    _, session = bench.run(*words, "--sync", file)
    ended = (session.load_status() or {})["ended_at"].replace("Z", "+00:00")  # Python 3.10 knows no Z
    return datetime.fromisoformat(ended).timestamp() - begun


BENCHMARKS: Final = {"cluster": measure}
