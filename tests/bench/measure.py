"""How benchmarks measure: interleaved rounds, ratios of medians, one table; and where they run.

A shared machine changes its speed from second to second, so a case is only ever compared with what ran in the
same rounds.  Where a case is one command, its processor time is compared, too: other programs change it less.  A
goal that is missed is printed as MISSED; it is no error.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

from sessionrun.model.events import JobStarted, SupervisorStarted
from sessionrun.store.inbox import send_request
from sessionrun.store.processes import Identity, identify, parent_of, send_signal
from sessionrun.store.session import SessionDir, iterate_sessions


class Spent(NamedTuple):
    """What one run took: seconds, and seconds of processor time where that is known."""

    seconds: float
    cpu_s: float | None = None


Case: TypeAlias = Callable[[], float | Spent]
"""Runs once; what it took, or the seconds alone."""

Samples = Mapping[str, Sequence[Spent]]
"""What each round took, by case."""

FLOOR_ARGV: Final = (sys.executable, "-I", "-c", "import click")
FLOOR: Final = "import click"
END_S: Final = 30.0
"""How long a session may take to end before its processes are killed."""


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


def compare(samples: Samples, case: str, floor: str, goal: float) -> Row:
    """One case against another of the same rounds."""
    ones, others = samples[case], samples[floor]
    ratios = [one.seconds / other.seconds for one, other in zip(ones, others, strict=True)]
    ours, theirs = (median(spent.seconds for spent in found) for found in (ones, others))
    cpu = [median(spent.cpu_s or 0.0 for spent in found) for found in (ones, others)]
    return Row(
        case,
        ours,
        floor,
        theirs,
        ours / theirs,
        min(ratios),
        max(ratios),
        goal,
        cpu[0] / cpu[1] if all(cpu) else None,
    )


def compare_figure(case: str, figure: float, goal: float) -> Row:
    """A figure that is no time against its goal, told in thousandths of its unit."""
    return compare({case: [Spent(figure / 1000)], "goal": [Spent(goal / 1000)]}, case, "goal", 1.0)


def print_table(rows: Sequence[Row]) -> None:
    """Print rows with their goals."""
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


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of the benchmark's own, and the environment in which commands run there."""

    path: Path
    env: Mapping[str, str]

    def call(self, argv: Sequence[str]) -> tuple[Spent, str]:
        """Run a command to its end; return what it took and what it printed.

        Raises:
            CalledProcessError: it did not exit with 0.
        """
        begun = time.perf_counter()
        with subprocess.Popen(
            argv, cwd=self.path, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            printed = process.stdout.read().decode()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, argv, printed)
        return Spent(seconds, usage.ru_utime + usage.ru_stime), printed

    def takes(self, *argv: str) -> Callable[[], Spent]:
        """A case for `interleave`: what a command takes."""
        return lambda: self.call(argv)[0]

    def write_prompts(self, name: str, prompts: Sequence[Any]) -> str:
        """Write an input file; return its name."""
        import orjson

        (self.path / name).write_bytes(orjson.dumps({"prompts": prompts}))
        return name

    def session(self, session_id: str) -> SessionDir:
        """A session of this place."""
        return SessionDir(self.path / "results" / f"session-{session_id}")


@contextmanager
def make_place() -> Iterator[Place]:
    """A temporary place; at the end its sessions are ended and it is removed."""
    path = Path(tempfile.mkdtemp(prefix="sessionrun-bench-"))
    own = {"HOME": path, "XDG_STATE_HOME": path / "state", "XDG_CONFIG_HOME": path / "config"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SESSIONRUN_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        yield Place(path, {**kept, **{name: str(value) for name, value in own.items()}, "TZ": "UTC"})
    finally:
        for session in list(iterate_sessions(path / "results")):
            end_session(session)
        shutil.rmtree(path, ignore_errors=True)


def command() -> tuple[str, ...]:
    """The installed command as people call it, else the module."""
    script = Path(sys.executable).with_name("sessionrun")
    return (str(script),) if script.exists() else (sys.executable, "-m", "sessionrun")


def end_session(session: SessionDir) -> None:
    """Cancel a session and wait until nobody runs it; kill its processes if it does not end."""
    if not session.is_alive():
        return
    send_request(session, {"kind": "cancel"})
    deadline = time.monotonic() + END_S
    while session.is_alive():
        if time.monotonic() > deadline:
            _kill(session)
            return
        time.sleep(0.005)


def _kill(session: SessionDir) -> None:
    events = [entry.event for entry in session.load_journal()[0]]
    for event in reversed(events):  # the chain's first, from the root down, or it would heal
        if isinstance(event, SupervisorStarted):
            root = identify(parent_of(event.keeper or 0) or 0)
            known = Identity(event.keeper or 0, event.keeper_started or 0), Identity(event.pid, event.started)
            for one in (*([root] if root and root.pid > 1 else []), *known):
                send_signal(one, signal.SIGKILL)
            break
    for event in events:
        if isinstance(event, JobStarted):
            send_signal(Identity(event.pid, event.started), signal.SIGKILL)
