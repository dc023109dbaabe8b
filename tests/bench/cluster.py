"""Short jobs on two nodes of a cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Final

from clusters import free_ports, real_cluster
from conftest import Command
from warm import Warm

from .measure import Bench, Row, Spent, compare, interleave, make_bench

JOBS: Final = 1000
MORE: Final = ", as many more"
SIZES: Final = {"": JOBS, MORE: 2 * JOBS}
NODES: Final = 2
SLOTS: Final = 4
LOCAL_GOAL: Final = 1.5
DASK_GOAL: Final = 0.8

_BARE: Final = """
import subprocess, sys, time
from distributed import Client
client = Client(sys.argv[1])
client.wait_for_workers(2)
client.gather(client.map(lambda n: subprocess.run(["/bin/true"]).returncode, range(8), pure=False))
begun = time.monotonic()
client.gather(client.map(lambda n: subprocess.run(["/bin/true"]).returncode, range(int(sys.argv[2])), pure=False))
print(time.monotonic() - begun)
"""


def measure(rounds: int = 3) -> list[Row]:
    """Short jobs on two nodes of a cluster, against the same here, and against tasks of dask's own.

    A round takes about a minute.  The first three rows are whole sessions, so with their start; that of dask is
    left out.  The others are what as many jobs more take, which leaves out every start.  A session of this machine
    alone against bare dask says whether the two goals of a cluster can be met at once.
    """
    with make_bench() as bench, _bare_dask() as bare:
        Command.warm = Warm()  # which asks the cluster whether its nodes are up
        bench.environ["SESSIONRUN_CERTS"] = str(bench.path / "certs")
        here = Command(bench.path, bench.results)
        with real_cluster(here, NODES, SLOTS, timers="", env=bench.environ) as cluster:
            return _compare_all(bench, cluster.address, bare, rounds)


def _compare_all(bench: Bench, address: str, bare: str, rounds: int) -> list[Row]:
    ours, local, dask = f"{JOBS:,} jobs on {NODES} nodes x {SLOTS}", "the same here", "tasks of bare dask"
    runs: dict[str, Callable[[int], float]] = {
        ours: lambda jobs: _time(bench, jobs, "--cluster", address),
        local: lambda jobs: _time(bench, jobs, "--max-parallel", str(NODES * SLOTS)),
        dask: lambda jobs: _time_bare(bare, jobs),
    }
    cases = {name + more: partial(run, jobs) for name, run in runs.items() for more, jobs in SIZES.items()}
    samples = dict(interleave(cases, rounds))
    for name in runs:
        both = zip(samples[name], samples[name + MORE], strict=True)
        samples[name + MORE] = [Spent(twice.seconds - once.seconds) for once, twice in both]
    pairs = (ours, local, LOCAL_GOAL), (ours, dask, DASK_GOAL), (local, dask, round(DASK_GOAL / LOCAL_GOAL, 2))
    return [compare(samples, case + more, floor + more, goal) for more in SIZES for case, floor, goal in pairs]


def _time(bench: Bench, jobs: int, *words: str) -> float:
    """From the start of the program to the end of the session, which a reader learns up to 0.2 s later."""
    file, begun = bench.write("cluster.json", ["true"] * jobs), time.time()
    _, session = bench.run(*words, "--sync", file)
    ended = (session.load_status() or {})["ended_at"].replace("Z", "+00:00")  # Python 3.10 knows no Z
    return datetime.fromisoformat(ended).timestamp() - begun


def _time_bare(address: str, jobs: int) -> float:
    argv = [sys.executable, "-c", _BARE, address, str(jobs)]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


@contextmanager
def _bare_dask() -> Iterator[str]:
    """dask alone, with as many threads; its address."""
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    module, quiet = [sys.executable, "-m"], subprocess.DEVNULL
    scheduler = [*module, "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard"]
    options = ["--nthreads", str(SLOTS), "--no-nanny", "--no-dashboard"]
    worker = [*module, "distributed.cli.dask_worker", address, *options]
    running = [
        subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet) for argv in (scheduler, *[worker] * NODES)
    ]
    try:
        yield address
    finally:
        for program in reversed(running):
            program.kill()
            program.wait()


BENCHMARKS: Final = {"cluster": measure}
