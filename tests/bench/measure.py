"""How benchmarks measure: interleaved rounds, ratios of medians, one table; and where they run.

A shared machine changes its speed from second to second, so a case is only ever compared with what ran in the
same rounds.  Where a case is one command, its processor time is compared, too: other programs change it less.  A
goal that is missed is printed as MISSED; it is no error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias
from unittest.mock import patch

import orjson
from conftest import eventually
from faults.place import Place, make_place
from stages import make_repository_of

from sessionrun.store.session import SessionDir

END_S: Final = 120.0


class Spent(NamedTuple):
    """What one run took: seconds, and seconds of processor time where that is known."""

    seconds: float
    cpu_s: float | None = None


Case: TypeAlias = Callable[[], float | Spent]
"""Runs once; what it took, or the seconds alone."""

Samples = Mapping[str, Sequence[Spent]]
"""What each round took, by case."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a case (median, seconds) against its floor.

    `low` and `high` are ratios of single rounds, `cpu` is the ratio of processor times, where both are known.
    """

    case: str
    case_s: float
    floor: str
    floor_s: float
    ratio: float
    low: float
    high: float
    goal: float
    cpu: float | None = None


def interleave(cases: Mapping[str, Case], rounds: int) -> Samples:
    """Run all cases once a round, every other round backwards; a first round does not count."""
    samples: dict[str, list[Spent]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name in list(cases) if number % 2 else reversed(list(cases)):
            spent = cases[name]()
            if number:
                samples[name].append(spent if isinstance(spent, Spent) else Spent(spent))
    return samples


def clock(work: Callable[[], object]) -> Spent:
    """What some work takes here, with the programs that it runs."""
    begun, cpu_s = time.perf_counter(), sum(os.times()[:4])
    work()
    return Spent(time.perf_counter() - begun, sum(os.times()[:4]) - cpu_s)


def compare(samples: Samples, case: str, floor: str, goal: float) -> Row:
    """One case against another of the same rounds."""
    ones, others = samples[case], samples[floor]
    ratios = [one.seconds / other.seconds for one, other in zip(ones, others, strict=True)]
    ours, theirs = (middle(found) for found in (ones, others))
    cpu = [median(spent.cpu_s or 0.0 for spent in found) for found in (ones, others)]
    ratio_of_cpu = cpu[0] / cpu[1] if all(cpu) else None
    return Row(case, ours, floor, theirs, ours / theirs, min(ratios), max(ratios), goal, ratio_of_cpu)


def middle(spent: Sequence[Spent]) -> float:
    """The median of the seconds."""
    return median(one.seconds for one in spent)


def compare_figure(case: str, figure: float, goal: float) -> Row:
    """A figure that is no time against its goal, told in thousandths of its unit."""
    return compare({case: [Spent(figure / 1000)], "goal": [Spent(goal / 1000)]}, case, "goal", 1.0)


def print_table(rows: Sequence[Row]) -> None:
    from tabulate import tabulate

    headers = ("case", "ms", "against", "ms", "ratio", "low", "high", "cpu", "goal", "")
    cells = [
        (
            row.case,
            f"{row.case_s * 1000:.1f}",
            row.floor,
            f"{row.floor_s * 1000:.1f}",
            f"{row.ratio:.2f}x",
            f"{row.low:.2f}",
            f"{row.high:.2f}",
            "" if row.cpu is None else f"{row.cpu:.2f}x",
            f"{row.goal:g}x",
            "met" if row.ratio <= row.goal else "MISSED",
        )
        for row in rows
    ]
    print(tabulate(cells, headers=headers, tablefmt="plain", disable_numparse=True), flush=True)


class Bench(Place):
    """Where benchmarks run: a directory of their own, whose sessions end with it."""

    def call(self, argv: Sequence[object], *, cwd: Path | None = None) -> tuple[Spent, str]:
        """Run a command to its end; return what it took and what it printed.

        Raises:
            CalledProcessError: it did not exit with 0.
        """
        words = [str(word) for word in argv]
        begun = time.perf_counter()
        with subprocess.Popen(
            words, cwd=cwd or self.path, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            printed = process.stdout.read().decode()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words, printed)
        return Spent(seconds, usage.ru_utime + usage.ru_stime), printed

    def takes(self, *argv: str) -> Case:
        """A case for `interleave`: what a command takes."""
        return lambda: self.call(argv)[0]

    def write(self, name: str, prompts: Sequence[Any]) -> Path:
        file = self.path / name
        file.write_bytes(orjson.dumps({"prompts": prompts}))
        return file

    def run(self, *words: object, cwd: Path | None = None) -> tuple[Spent, SessionDir]:
        """Start a session of the shell agent; what the command took, and the session."""
        own = ("-q", "--agent", "shell", "--results-dir", self.results)
        spent, printed = self.call([*command(), *own, *words], cwd=cwd)
        return spent, self.session(printed.strip())

    def hold(self, size: int) -> tuple[Spent, SessionDir]:
        """Start a session whose first task holds up all others, so that nothing else happens meanwhile."""
        file = self.write(f"hold-{size}.json", ["sleep 600"] + ["true"] * (size - 1))
        spent, session = self.run("--max-parallel", 1, file)
        eventually(lambda: (session.load_summary() or {"running": 0})["running"], timeout_s=END_S)
        return spent, session

    def end(self, session: SessionDir) -> None:
        """Cancel a session, and wait until nobody runs it."""
        self.call([*command(), "cancel", session.session_id])
        eventually(lambda: not session.is_alive(), timeout_s=END_S)

    def make_repository(self, files: Mapping[str, str]) -> Path:
        """A repository with these files in one commit on `main`."""
        top = self.path / f"repository-{len(files)}"
        make_repository_of(top, files)
        return top


@contextmanager
def make_bench() -> Iterator[Bench]:
    """A place for benchmarks; at the end its sessions are ended, it is removed, and `os.environ` is as before."""
    with patch.dict(os.environ), make_place() as place:
        place.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        yield Bench(place.path, {**place.environ, "TZ": "UTC"}, real=True)


def command() -> tuple[str, ...]:
    """The installed command as people call it, else the module."""
    script = Path(sys.executable).with_name("sessionrun")
    return (str(script),) if script.exists() else (sys.executable, "-m", "sessionrun")


def journal_seconds(session: SessionDir) -> float:
    """From the first job's start to the end, as the journal has them."""
    entries = session.load_journal()[0]
    first = next(entry.mono for entry in entries if type(entry.event).__name__ == "JobClaimed")
    return entries[-1].mono - first


def supervisor_of(session: SessionDir) -> int:
    """The pid of a session's supervisor, as its status shows it."""
    status = session.load_status()
    assert status is not None
    return int(status["processes"]["supervisor"]["pid"])
