"""What starting a job costs: jobs that do nothing, with their files and both logs, against bare loops.

The floors start the same program with the same output files: a posix_spawn loop, and xargs -P where there is one
(GNU parallel too).  Start-up is left out on our side by taking the time from the session's own journal.  Nothing
is deleted before the end: to delete thousands of files slows down who makes new ones on the same disk.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Final

from sessionrun.store.processes import parent_of

from .measure import Case, Place, Row, Spent, command, compare, compare_figure, interleave, make_place

FULL: Final = bool(os.environ.get("SESSIONRUN_BENCH_FULL"))
TASKS: Final = 1000 if FULL else 400
MANY: Final = 10_000 if FULL else 3000
FEW: Final = 100
PARALLEL: Final = (1, 2, 16, 256)
CPU_GOAL_S: Final = 0.0007
"""Processor time of root, keeper and supervisor together for one task (seconds)."""

XARGS_GOALS: Final = {2: 2.2, 16: 1.5}
XARGS_GOAL: Final = 2.5
"""For other numbers of jobs at once."""

_LOOP: Final = """\
import os, sys, time
folder, tasks, parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.mkdir(folder)
begun, running = time.perf_counter(), 0
for number in range(tasks):
    if running == parallel:
        os.waitpid(-1, 0)
        running -= 1
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, f"{folder}/{number}.txt", flags, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, f"{folder}/{number}.err", flags, 0o600),
    ]
    os.posix_spawn("/bin/true", ("true",), os.environ, file_actions=files, setsid=True)
    running += 1
for _ in range(running):
    os.waitpid(-1, 0)
print(time.perf_counter() - begun)
"""

_XARGS: Final = "seq {tasks} | xargs -P {parallel} -I N sh -c 'exec true >{folder}/N.txt 2>{folder}/N.err'"
_GNU_PARALLEL: Final = "seq {tasks} | parallel -j {parallel} 'true >{folder}/{{}}.txt 2>{folder}/{{}}.err'"


def measure(rounds: int = 5) -> list[Row]:
    """Measure; with SESSIONRUN_BENCH_FULL=1 more tasks, for some minutes."""
    rows: list[Row] = []
    with make_place() as place:
        (place.path / "sessionrun.toml").write_text('[agents.noop]\nargv = ["/bin/true"]\nstdin = "prompt"\n')
        for parallel in PARALLEL:
            rows += _measure_parallel(place, parallel, rounds)
        rows += [_measure_processor(place), _measure_many(place, rounds)]
    return rows


def _measure_parallel(place: Place, parallel: int, rounds: int) -> list[Row]:
    ours, loop = f"{TASKS} jobs, {parallel} at once", f"posix_spawn loop, {parallel} at once"
    cases: dict[str, Case] = {ours: _session(place, TASKS, parallel), loop: _loop(place, parallel)}
    others = [("xargs", _XARGS, XARGS_GOALS.get(parallel, XARGS_GOAL)), ("parallel", _GNU_PARALLEL, 0.25)]
    for program, script, _ in others:
        if shutil.which(program):
            cases[f"{program} -P{parallel}"] = _script(place, program, script, parallel)
    samples = interleave(cases, rounds)
    rows = [compare(samples, ours, loop, 1.4)]
    return rows + [
        compare(samples, ours, name, goal)
        for program, _, goal in others
        if (name := f"{program} -P{parallel}") in samples
    ]


def _measure_many(place: Place, rounds: int) -> Row:
    """A task among many costs what a task among few does."""
    few, many = f"{FEW} jobs, 16 at once", f"{MANY} jobs, 16 at once, for {FEW}"
    cases = {few: _session(place, FEW, 16), many: _session(place, MANY, 16)}
    samples = interleave(cases, 3 if rounds > 3 else 1)
    scaled = {few: samples[few], many: [Spent(one.seconds * FEW / MANY) for one in samples[many]]}
    return compare(scaled, many, few, 1.2)


def _measure_processor(place: Place) -> Row:
    """Processor time of the chain between the first job and the last."""
    last = {"prompt": "sleep 2", "agent": "shell"}
    name = place.write_prompts("processor.json", [*["true"] * TASKS, last])
    argv = [*command(), "-q", "--agent", "noop", "--max-parallel", "16", name]
    session = place.session(place.call(argv)[1].strip())
    spent = 0.0
    while session.is_alive():
        summary = session.load_summary()
        if summary and summary["completed"] == TASKS:
            spent = sum(_processor_s(pid) for pid in _chain(session.load_status()))
            break
        time.sleep(0.01)
    return compare_figure("processor time of the chain, a task", 1000 * spent / TASKS, 1000 * CPU_GOAL_S)


def _chain(status: dict[str, dict[str, dict[str, int]]] | None) -> list[int]:
    assert status is not None
    keeper = status["processes"]["keeper"]["pid"]
    return [parent_of(keeper) or 0, keeper, status["processes"]["supervisor"]["pid"]]


def _processor_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _session(place: Place, tasks: int, parallel: int) -> Callable[[], float]:
    """Seconds from the first job's start to the last one's end, as the journal has them."""
    name = place.write_prompts(f"jobs-{tasks}.json", ["true"] * tasks)
    argv = [*command(), "-q", "--sync", "--agent", "noop", "--max-parallel", str(parallel), name]

    def run() -> float:
        session = place.session(place.call(argv)[1].strip())
        entries = session.load_journal()[0]
        first = next(entry.mono for entry in entries if type(entry.event).__name__ == "JobClaimed")
        return entries[-1].mono - first

    return run


def _loop(place: Place, parallel: int) -> Callable[[], float]:
    numbers = itertools.count()

    def loop() -> float:
        folder = place.path / f"loop-{parallel}-{next(numbers)}"
        argv = [sys.executable, "-I", "-c", _LOOP, str(folder), str(TASKS), str(parallel)]
        _, printed = place.call(argv)
        return float(printed)

    return loop


def _script(place: Place, program: str, script: str, parallel: int) -> Callable[[], Spent]:
    numbers = itertools.count()

    def run() -> Spent:
        folder = place.path / f"script-{program}-{parallel}-{next(numbers)}"
        folder.mkdir()
        words = script.format(tasks=TASKS, parallel=parallel, folder=folder)
        return place.call(["/bin/sh", "-c", words])[0]

    return run
