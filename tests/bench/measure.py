"""How benchmarks measure: interleaved rounds, medians of the ratios of each round, one table; and where they run.

A shared machine changes its speed from second to second, so a case is only ever compared with what ran in the
same round.  A goal that is missed is printed as MISSED; it is no error.
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
from typing import Any, Final

from sessionrun.model.events import JobStarted, SupervisorStarted
from sessionrun.runtime.processes import Identity, identify, parent_of, send_signal
from sessionrun.store.inbox import send_request
from sessionrun.store.session import SessionDir, iterate_sessions

Samples = Mapping[str, Sequence[float]]
"""Seconds by case, one for each round."""

FLOOR_ARGV: Final = (sys.executable, "-I", "-c", "import click")
FLOOR: Final = "import click"
END_S: Final = 30.0
"""How long a session may take to end before its processes are killed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a case (median, seconds) against its floor; `low` and `high` are over rounds."""

    case: str
    case_s: float
    floor: str
    floor_s: float
    ratio: float
    low: float
    high: float
    goal: float


def interleave(cases: Mapping[str, Callable[[], float]], rounds: int) -> Samples:
    """Run all cases once a round, every other round backwards; a first round does not count."""
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name in list(cases) if number % 2 else reversed(list(cases)):
            seconds = cases[name]()
            if number:
                samples[name].append(seconds)
    return samples


def compare(samples: Samples, case: str, floor: str, goal: float) -> Row:
    """One case against another of the same rounds."""
    ratios = [one / other for one, other in zip(samples[case], samples[floor], strict=True)]
    medians = median(samples[case]), median(samples[floor])
    return Row(case, medians[0], floor, medians[1], median(ratios), min(ratios), max(ratios), goal)


def print_table(rows: Sequence[Row]) -> None:
    """Print rows with their goals."""
    from tabulate import tabulate

    headers = ("case", "ms", "against", "ms", "ratio", "low", "high", "goal", "")
    cells = [
        (
            row.case,
            f"{row.case_s * 1000:.1f}",
            row.floor,
            f"{row.floor_s * 1000:.1f}",
            f"{row.ratio:.2f}x",
            f"{row.low:.2f}",
            f"{row.high:.2f}",
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

    def call(self, argv: Sequence[str]) -> tuple[float, str]:
        """Run a command to its end; return the seconds and what it printed.

        Raises:
            CalledProcessError: it did not exit with 0.
        """
        begun = time.perf_counter()
        done = subprocess.run(
            argv, cwd=self.path, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
        )
        return time.perf_counter() - begun, done.stdout.decode()

    def seconds(self, *argv: str) -> Callable[[], float]:
        """A case for `interleave`: how long a command takes."""
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
