"""What sessions cost: launches, polls, jobs, what a supervisor holds, its scheduler, browsers, a cluster."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count
from typing import Any, Final
from zlib import crc32

import psutil
from browser import Browser, find_browser
from clusters import free_ports, real_cluster
from conftest import Command, eventually
from recorded import Recorded
from simulation import Drive, Fate, SimulatedExecutor, make_session
from warm import Warm

from sessionrun.model.spec import SLOT, Check, Job, SessionSpec, TaskSpec, Workspace

from .measure import (
    END_S,
    Bench,
    Case,
    Row,
    Spent,
    command,
    compare,
    compare_figure,
    interleave,
    journal_seconds,
    make_bench,
    supervisor_of,
)

FLOOR_ARGV: Final = (sys.executable, "-I", "-c", "import click")
FLOOR: Final = "import click"
WAITING: Final = 20_000
SIZES: Final = (1, 100, 10_000)
_NUMBERS: Final = count()


def measure_launch(rounds: int = 9) -> list[Row]:
    """How long a caller waits until its session is started, and until the first task runs.

    A round takes about two seconds.
    """
    names = [f"launch {size:,}" for size in SIZES]
    first = "the first task runs"
    with make_bench() as bench:
        cases: dict[str, Case] = {FLOOR: bench.takes(*FLOOR_ARGV)}
        cases |= {name: partial(_launch, bench, size) for name, size in zip(names, SIZES, strict=True)}
        cases[first] = partial(_await_first_word, bench)
        samples = interleave(cases, rounds)
    rows = [compare(samples, name, FLOOR, 2.5) for name in names]
    return [*rows, compare(samples, first, FLOOR, 4.0), compare(samples, names[-1], names[0], 2.0)]


def _launch(bench: Bench, size: int) -> Spent:
    spent, session = bench.hold(size)
    bench.end(session)
    shutil.rmtree(session.path)
    return spent


def _await_first_word(bench: Bench) -> float:
    """The seconds until the command has ended, and the first task's process has said its first word."""
    fifo = bench.path / "begun"
    if not fifo.exists():
        os.mkfifo(fifo)
    file = bench.write("first.json", [f"echo >{fifo}; sleep 600"])
    fd = os.open(fifo, os.O_RDWR)
    begun = time.perf_counter()
    _, session = bench.run(file)
    os.read(fd, 1)
    seconds = time.perf_counter() - begun
    os.close(fd)
    bench.end(session)
    shutil.rmtree(session.path)
    return seconds


def measure_status(rounds: int = 9) -> list[Row]:
    """How long a poll takes, for people and as JSON, of sessions that run and that have ended.

    A round takes about two seconds.  For people each task is a line, which costs something in the largest session.
    """
    with make_bench() as bench:
        cases = {FLOOR: bench.takes(*FLOOR_ARGV)}
        for state, size in ((state, size) for state in ("running", "ended") for size in SIZES):
            _, session = bench.hold(size)
            if state == "ended":
                bench.end(session)
            for kind, options in (("", ()), (" --json", ("--json",))):
                name = f"status{kind} {size:,} {state}"
                cases[name] = bench.takes(*command(), "status", session.session_id, *options)
        samples = interleave(cases, rounds)
    large = f"status {SIZES[-1]:,} "
    return [
        compare(samples, name, FLOOR, 1.6 if name.startswith(large) else 1.3) for name in cases if name != FLOOR
    ]


def measure_list(rounds: int = 9) -> list[Row]:
    """How long `list` takes with 1,000 sessions, against one.  A round takes about a second."""
    with make_bench() as bench:
        _, session = bench.run("--sync", bench.write("list.json", ["true"]))
        kept, one = bench.path / "kept", bench.path / "one"
        for folder in (kept, one):
            folder.mkdir()
        recorded = Recorded(kept)
        recorded.keep("", session.path, bench.path)
        for _ in range(1000):
            recorded.copy("", bench.results, bench.path)
        session.path.rename(one / session.path.name)
        cases, pairs = {}, []
        for kind, options in (("", ()), (" --json", ("--json",))):
            pairs.append((f"list{kind} 1,000", f"list{kind} 1"))
            for case, place in zip(pairs[-1], ("results", "one"), strict=True):
                cases[case] = bench.takes(*command(), "list", "--results-dir", place, *options)
        samples = interleave(cases, rounds)
    return [compare(samples, many, single, 1.5) for many, single in pairs]


def measure_memory() -> list[Row]:
    """How much memory a supervisor needs for each task that waits; it does not depend on what else runs."""
    with make_bench() as bench:
        one, many = _resident_kb(bench, 1), _resident_kb(bench, WAITING)
    each = (many - one) / (WAITING - 1)
    return [compare_figure(f"KB of the supervisor for each of {WAITING:,} tasks", each, 1.5)]


def _resident_kb(bench: Bench, size: int) -> int:
    _, session = bench.hold(size)
    resident = psutil.Process(supervisor_of(session)).memory_info().rss
    bench.end(session)
    return int(resident) >> 10


# --- jobs that do nothing, with their files and both logs, against bare loops ---

TASKS: Final = 400
MANY: Final = 3000
FEW: Final = 100
DISPATCHED: Final = 1000
PARALLEL: Final = (1, 2, 16, 256)
CPU_GOAL_S: Final = 0.0007
"""Processor time of root, keeper and supervisor together for one task (seconds)."""

XARGS_GOALS: Final = {2: 2.2, 16: 1.5}
XARGS_GOAL: Final = 2.5
"""For other numbers of jobs at once."""

_LOOP: Final = """\
import os, sys, time
folder, tasks, parallel, script = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.mkdir(folder)
begun, running = time.perf_counter(), 0
for number in range(tasks):
    argv = ["/bin/true"]
    if script:
        argv = ["/bin/sh", f"{folder}/prompt-{number}"]
        with open(argv[1], "wb") as stream:
            stream.write(b"true")
    if running == parallel:
        os.waitpid(-1, 0)
        running -= 1
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, f"{folder}/{number}.txt", flags, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, f"{folder}/{number}.err", flags, 0o600),
    ]
    os.posix_spawn(argv[0], argv, os.environ, file_actions=files, setsid=True)
    running += 1
for _ in range(running):
    os.waitpid(-1, 0)
print(time.perf_counter() - begun)
"""

_SCRIPTS: Final = {
    "xargs": "seq {tasks} | xargs -P {parallel} -I N sh -c 'exec true >{folder}/N.txt 2>{folder}/N.err'",
    "parallel": "seq {tasks} | parallel -j {parallel} 'true >{folder}/{{}}.txt 2>{folder}/{{}}.err'",
}


def _loop(bench: Bench, tasks: int, parallel: int, *, script: bool) -> tuple[Spent, float]:
    """What a loop over posix_spawn takes: the program, and the loop alone.

    Nothing is deleted before the end: to delete thousands of files slows down who makes new ones on the same disk.
    """
    folder = bench.path / f"loop-{next(_NUMBERS)}"
    spent, printed = bench.call(
        [sys.executable, "-I", "-c", _LOOP, folder, tasks, parallel, "x" if script else ""]
    )
    return spent, float(printed)


def measure_dispatch(rounds: int = 7) -> list[Row]:
    """How long 1,000 tasks take, start-up included, against a bare loop.  A round takes about three seconds."""
    case, loop = f"run --sync, {DISPATCHED:,} x true, 16 at once", "posix_spawn loop"
    with make_bench() as bench:
        words = ("--sync", "--max-parallel", 16, bench.write("dispatch.json", ["true"] * DISPATCHED))
        cases: dict[str, Case] = {
            loop: lambda: _loop(bench, DISPATCHED, 16, script=True)[0],
            case: lambda: bench.run(*words)[0]._replace(cpu_s=None),  # the session's own processes are not in it
        }
        samples = interleave(cases, rounds)
    return [compare(samples, case, loop, 1.6)]


def measure_jobs(rounds: int = 5) -> list[Row]:
    """What starting a job costs.  Our start-up is left out: the times are those of the session's journal."""
    rows: list[Row] = []
    with make_bench() as bench:
        (bench.path / "sessionrun.toml").write_text('[agents.noop]\nargv = ["/bin/true"]\nstdin = "prompt"\n')
        for parallel in PARALLEL:
            rows += _measure_parallel(bench, parallel, rounds)
        return [*rows, _measure_processor(bench), _measure_many(bench, rounds)]


def _measure_parallel(bench: Bench, parallel: int, rounds: int) -> list[Row]:
    ours, loop = f"{TASKS} jobs, {parallel} at once", f"posix_spawn loop, {parallel} at once"
    cases: dict[str, Case] = {
        ours: lambda: _run_noops(bench, TASKS, parallel),
        loop: lambda: _loop(bench, TASKS, parallel, script=False)[1],
    }
    goals = {"xargs": XARGS_GOALS.get(parallel, XARGS_GOAL), "parallel": 0.25}
    there = {program: f"{program} -P{parallel}" for program in _SCRIPTS if shutil.which(program)}
    cases |= {name: partial(_run_script, bench, program, parallel) for program, name in there.items()}
    samples = interleave(cases, rounds)
    others = [compare(samples, ours, name, goals[program]) for program, name in there.items()]
    return [compare(samples, ours, loop, 1.4), *others]


def _run_noops(bench: Bench, tasks: int, parallel: int) -> float:
    file = bench.write(f"jobs-{tasks}.json", ["true"] * tasks)
    return journal_seconds(bench.run("--sync", "--agent", "noop", "--max-parallel", parallel, file)[1])


def _run_script(bench: Bench, program: str, parallel: int) -> Spent:
    folder = bench.path / f"script-{next(_NUMBERS)}"
    folder.mkdir()
    words = _SCRIPTS[program].format(tasks=TASKS, parallel=parallel, folder=folder)
    return bench.call(["/bin/sh", "-c", words])[0]


def _measure_many(bench: Bench, rounds: int) -> Row:
    """A task among many costs what a task among few does."""
    few, many = f"{FEW} jobs, 16 at once", f"{MANY} jobs, 16 at once, for {FEW}"
    cases: dict[str, Case] = {
        few: lambda: _run_noops(bench, FEW, 16),
        many: lambda: _run_noops(bench, MANY, 16) * FEW / MANY,
    }
    return compare(interleave(cases, 3 if rounds > 3 else 1), many, few, 1.2)


def _measure_processor(bench: Bench) -> Row:
    """Processor time of the chain between the first job and the last."""
    last = {"prompt": "sleep 2", "agent": "shell"}
    file = bench.write("processor.json", [*["true"] * TASKS, last])
    _, session = bench.run("--agent", "noop", "--max-parallel", 16, file)
    eventually(lambda: (session.load_summary() or {"completed": 0})["completed"] == TASKS, timeout_s=END_S)
    supervisor = psutil.Process(supervisor_of(session))
    times = [process.cpu_times() for process in (supervisor, *supervisor.parents()[:2])]
    spent = sum(each.user + each.system for each in times)
    return compare_figure("processor time of the chain, a task", 1000 * spent / TASKS, 1000 * CPU_GOAL_S)


# --- the scheduler alone ---

SMALL: Final = 100
LARGE: Final = 10_000
GRAPH_GOAL: Final = 1.2
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


def measure_scheduler(rounds: int = 5) -> list[Row]:
    """What one task costs the scheduler in graphs of 10,000 tasks, against graphs of 100.

    Everything but the disk is in: orders, entries and their folding, the simulated executor.  A round takes about
    five seconds.  All times are those of 10,000 tasks.
    """
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
    return compare(interleave(cases, rounds), large, small, GRAPH_GOAL)


def drive_case(spec: SessionSpec) -> Callable[[], float]:
    """A case: the seconds that 10,000 tasks take in sessions of this kind."""

    def drive() -> float:
        begun = time.perf_counter()
        for _ in range(LARGE // len(spec.tasks)):
            done = Drive(spec, SimulatedExecutor(fate_of)).run()
            assert done.state.completed == len(spec.tasks)
        return time.perf_counter() - begun

    return drive


def fate_of(job: Job) -> Fate:
    """Durations that differ, and are the same in each run."""
    return FATES[crc32(job.key.task.encode()) % len(FATES)]


# --- browsers that watch, and a big report ---

WATCHED: Final = 1000
CLIENTS: Final = 20
WATCH_GOAL: Final = 1.1
REPORT_TASKS: Final = 500
OPEN_GOAL_S: Final = 2.0


def measure_serve(rounds: int = 3) -> list[Row]:
    """What browsers that watch a session cost its supervisor, and how long a big report takes to open.

    A round takes about ten seconds.
    """
    watched, alone = f"supervisor of {WATCHED:,} tasks, {CLIENTS} browsers", "nobody watches"
    with make_bench() as bench:
        cases = {watched: lambda: _spend(bench, CLIENTS), alone: lambda: _spend(bench, 0)}
        samples = interleave(cases, rounds)
        return [compare(samples, watched, alone, WATCH_GOAL), *_measure_report(bench)]


def _spend(bench: Bench, clients: int) -> Spent:
    """The processor time of a session's supervisor; the seconds are the same."""
    file = bench.write("serve.json", ["true"] * WATCHED)
    server = subprocess.Popen([*command(), "serve"], cwd=bench.path, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port, token = server.stdout.readline().strip().removeprefix("http://127.0.0.1:").split("/?token=")
        _, session = bench.run("--max-parallel", 4, file)
        for _ in range(clients):
            threading.Thread(target=_watch, args=(int(port), token, session.session_id), daemon=True).start()
        used = 0.0
        while session.is_alive():
            with suppress(psutil.Error, TypeError):
                times = psutil.Process(supervisor_of(session)).cpu_times()
                used = max(used, times.user + times.system)
            time.sleep(0.02)
    finally:
        server.kill()
        server.wait()
    return Spent(used, used)


def _watch(port: int, token: str, session_id: str) -> None:
    """Do what the script of a page does, until the server ends."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        stream = HTTPConnection("127.0.0.1", port)
        stream.request("GET", f"/sessions/{session_id}/events", headers=headers)
        news = stream.getresponse()
        while line := news.readline():
            if line.startswith(b"data"):
                page = HTTPConnection("127.0.0.1", port)
                page.request("GET", f"/sessions/{session_id}/part", headers=headers)
                page.getresponse().read()
                page.close()
    except (OSError, HTTPException):
        pass


def _measure_report(bench: Bench) -> list[Row]:
    program = find_browser()
    if program is None:
        return []
    _, session = bench.run("--sync", bench.write("report.json", ["seq 2000"] * REPORT_TASKS))
    page = bench.path / "report.html"
    bench.call([*command(), "report", session.session_id, "-o", page])
    browser = Browser(program)
    try:
        begun = time.perf_counter()
        browser.open(page.as_uri())
        seen = "document.readyState === 'complete' && document.querySelectorAll('.tasks tbody tr').length"
        while browser.evaluate(seen) != REPORT_TASKS:
            time.sleep(0.01)
        took = time.perf_counter() - begun
    finally:
        browser.close()
    return [compare_figure(f"seconds to open a report of {REPORT_TASKS} tasks", took, OPEN_GOAL_S)]


# --- short jobs on two nodes of a cluster ---

CLUSTER_JOBS: Final = 1000
TWICE: Final = ", as many more"
CLUSTER_SIZES: Final = {"": CLUSTER_JOBS, TWICE: 2 * CLUSTER_JOBS}
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


def measure_cluster(rounds: int = 3) -> list[Row]:
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
    ours, local, dask = f"{CLUSTER_JOBS:,} jobs on {NODES} nodes x {SLOTS}", "the same here", "tasks of bare dask"
    runs: dict[str, Callable[[int], float]] = {
        ours: lambda jobs: _time_jobs(bench, jobs, "--cluster", address),
        local: lambda jobs: _time_jobs(bench, jobs, "--max-parallel", str(NODES * SLOTS)),
        dask: lambda jobs: _time_bare(bare, jobs),
    }
    cases = {name + more: partial(run, jobs) for name, run in runs.items() for more, jobs in CLUSTER_SIZES.items()}
    samples = dict(interleave(cases, rounds))
    for name in runs:
        both = zip(samples[name], samples[name + TWICE], strict=True)
        samples[name + TWICE] = [Spent(twice.seconds - once.seconds) for once, twice in both]
    pairs = (ours, local, LOCAL_GOAL), (ours, dask, DASK_GOAL), (local, dask, round(DASK_GOAL / LOCAL_GOAL, 2))
    return [
        compare(samples, case + more, floor + more, goal) for more in CLUSTER_SIZES for case, floor, goal in pairs
    ]


def _time_jobs(bench: Bench, jobs: int, *words: str) -> float:
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
