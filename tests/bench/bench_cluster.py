"""Short jobs on two nodes of a cluster, against the same jobs here, and against tasks of dask's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Final

import orjson
import psutil

from .measure import Place, Row, Spent, command, compare, interleave, make_place

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
    """Measure; a round takes about a minute.

    The first three rows are whole sessions, so with their start; that of dask is left out.  The others are what
    as many jobs more take, which leaves out every start.  A session of this machine alone against bare dask says
    whether the two goals of a cluster can be met at once.
    """
    with make_place() as place, _cluster(place) as address, _bare_dask() as bare:
        ours, local, dask = f"{JOBS:,} jobs on {NODES} nodes x {SLOTS}", "the same here", "tasks of bare dask"
        runs: dict[str, Callable[[int], float]] = {
            ours: lambda jobs: _time(place, jobs, "--cluster", address),
            local: lambda jobs: _time(place, jobs, "--max-parallel", str(NODES * SLOTS)),
            dask: lambda jobs: _time_bare(bare, jobs),
        }
        cases = {name + more: partial(run, jobs) for name, run in runs.items() for more, jobs in SIZES.items()}
        samples = dict(interleave(cases, rounds))
        for name in runs:
            both = zip(samples[name], samples[name + MORE], strict=True)
            samples[name + MORE] = [Spent(twice.seconds - once.seconds) for once, twice in both]
        pairs = (ours, local, LOCAL_GOAL), (ours, dask, DASK_GOAL), (local, dask, round(DASK_GOAL / LOCAL_GOAL, 2))
        return [compare(samples, case + more, floor + more, goal) for more in SIZES for case, floor, goal in pairs]


def _time(place: Place, jobs: int, *words: str) -> float:
    """From the start of the program to the end of the session, which a reader learns up to 0.2 s later."""
    name = place.write_prompts("cluster.json", ["true"] * jobs)
    begun = time.time()
    argv = [*command(), *words, "--json", "--sync", "--agent", "shell", name]
    done = subprocess.run(argv, cwd=place.path, check=True, capture_output=True)
    ended = orjson.loads(done.stdout)["ended_at"].replace("Z", "+00:00")  # Python 3.10 knows no Z
    return datetime.fromisoformat(ended).timestamp() - begun


def _time_bare(address: str, jobs: int) -> float:
    argv = [sys.executable, "-c", _BARE, address, str(jobs)]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


@contextmanager
def _cluster(place: Place) -> Iterator[str]:
    """A scheduler and nodes; its address."""
    port = _find_port()
    address = f"tls://127.0.0.1:{port}"
    os.environ["SESSIONRUN_CERTS"] = str(place.path / "certs")  # of the sessions, too
    environ = {**os.environ, "SESSIONRUN_NODES": str(place.path / "nodes")}
    programs = [["head", "--port", str(port)]]
    programs += [["node", address, "--name", f"n{number}", "--slots", str(SLOTS)] for number in range(NODES)]
    running = [_start([*command(), "cluster", *words], environ) for words in programs]
    try:
        while True:
            argv = [*command(), "cluster", "status", address]
            shown = subprocess.run(argv, capture_output=True, text=True).stdout
            if shown.count(" up ") == NODES:
                break
            time.sleep(0.3)
        yield address
    finally:
        _end(running)
        for process in psutil.process_iter():
            try:
                if any(str(place.path / "nodes") in word for word in process.cmdline()):
                    process.kill()
            except psutil.Error:
                continue


@contextmanager
def _bare_dask() -> Iterator[str]:
    """dask alone, with as many threads; its address."""
    address = f"tcp://127.0.0.1:{_find_port()}"
    module = [sys.executable, "-m"]
    scheduler = [*module, "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard"]
    worker = [
        *module,
        "distributed.cli.dask_worker",
        address,
        "--nthreads",
        str(SLOTS),
        "--no-nanny",
        "--no-dashboard",
    ]
    running = [_start(argv, os.environ) for argv in (scheduler, *[worker] * NODES)]
    try:
        yield address
    finally:
        _end(running)


def _start(argv: list[str], environ: object) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(argv, env=environ, stdin=quiet, stdout=quiet, stderr=quiet)  # type: ignore[call-overload,no-any-return]


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    for program in reversed(running):
        program.terminate()
        try:
            program.wait(10)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
