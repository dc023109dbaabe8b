"""How long 1,000 tasks that do nothing take, start-up included, against a bare loop with the same files a task."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable
from typing import Final

from .measure import Place, Row, Spent, command, compare, interleave, make_place

TASKS: Final = 1000
PARALLEL: Final = 16
GOAL: Final = 1.6
CASE: Final = f"run --sync, {TASKS:,} x true, {PARALLEL} at once"
LOOP: Final = "posix_spawn loop"

_LOOP_SOURCE: Final = """\
import os, shutil, sys
folder, tasks, parallel = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.mkdir(folder)
shell, running = shutil.which("sh"), 0
for number in range(tasks):
    prompt = f"{folder}/prompt-{number}"
    with open(prompt, "wb") as stream:
        stream.write(b"true")
    if running == parallel:
        os.waitpid(-1, 0)
        running -= 1
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, f"{folder}/{number}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, f"{folder}/{number}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    os.posix_spawn(shell, ("sh", prompt), os.environ, file_actions=files, setsid=True)
    running += 1
for _ in range(running):
    os.waitpid(-1, 0)
"""


def measure(rounds: int = 7) -> list[Row]:
    """Measure; a round takes about three seconds."""
    with make_place() as place:
        samples = interleave({LOOP: _loop(place), CASE: _run(place)}, rounds)
    return [compare(samples, CASE, LOOP, GOAL)]


def _loop(place: Place) -> Callable[[], Spent]:
    numbers = itertools.count()

    def loop() -> Spent:
        folder = place.path / f"loop-{next(numbers)}"
        argv = [sys.executable, "-I", "-c", _LOOP_SOURCE, str(folder), str(TASKS), str(PARALLEL)]
        spent, _ = place.call(argv)
        shutil.rmtree(folder)
        return spent

    return loop


def _run(place: Place) -> Callable[[], Spent]:
    name = place.write_prompts("dispatch.json", ["true"] * TASKS)
    argv = [*command(), "-q", "--sync", "--agent", "shell", "--max-parallel", str(PARALLEL), name]

    def run() -> Spent:
        spent, printed = place.call(argv)
        shutil.rmtree(place.session(printed.strip()).path)
        return spent._replace(cpu_s=None)  # the session's own processes are not in it

    return run
