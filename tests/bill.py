"""What a run of the tests costs: one line at its end, which says so when the whole fast tier costs too much.

It is a warning, and the run stays green: the cost depends on the machine, and not only on its speed.  The same
tests have cost 107 s with one state of the disk and 135 s with another.

The processes of sessions are nobody's children, so the kernel adds up their time only in a control group.  Where
none can be made the figure is that of the tests and of what they waited for, and the line says so.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

GOAL_CPU_S: Final = 150.0
"""What the fast tier may cost where the floor costs `FLOOR_S`: 142 to 157 when it was last measured."""

MOST_CPU_S: Final = 1.1 * GOAL_CPU_S
"""A warning above.  Runs of the same tests on one machine, with the disk in one state, have differed by 6 %."""

FLOOR_S: Final = 0.045
"""CPU time of `python -I -c "import click"` on the machine of the measurement (2 cores, Python 3.11)."""

_FLOOR_RUNS: Final = 5
_FLOOR_EVERY_S: Final = 20.0
_GROUPS: Final = Path("/sys/fs/cgroup")


class Bill:
    """Hooks of the process that starts the others."""

    def __init__(self, config: pytest.Config) -> None:
        """Begin to count, before any process of the tests is there."""
        self._config = config
        self._begin = time.monotonic()
        self._group = _make_group()
        self._floors: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure_floor, daemon=True)
        if getattr(
            config.option, "numprocesses", None
        ):  # else the tests run in this process, which is theirs alone
            self._thread.start()

    def _measure_floor(self) -> None:
        """Here and there in the run: a processor that is shared, or hot, is slower for the floor as well."""
        while not self._over.wait(_FLOOR_EVERY_S):
            self._floors.append(_floor())

    def is_whole(self) -> bool:
        """Whether this is a run of all of the fast tier, and of nothing else."""
        option = self._config.option
        chosen = (
            option.keyword,
            option.markexpr,
            option.slow,
            option.agents,
            option.collectonly,
            getattr(option, "lf", False),
        )
        source = self._config.args_source
        sources = self._config.ArgsSource
        return not any(chosen) and source in (sources.TESTPATHS, sources.INVOCATION_DIR)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Count."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        while len(self._floors) < (_FLOOR_RUNS if self.is_whole() else 1):
            self._floors.append(_floor())
        self._used, self._complete = _count(self._group)
        self._speed = FLOOR_S / statistics.median(self._floors)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The one line."""
        wall = time.monotonic() - self._begin
        whose = "all processes" if self._complete else "the tests and what they waited for"
        scaled = self._used * self._speed
        line = f"{wall:.0f} s; {self._used:.0f} s of CPU time of {whose}, {scaled:.0f} s at the speed of reference"
        is_dear = self.is_whole() and scaled > MOST_CPU_S
        if is_dear:
            line = f"WARNING: {line}: more than {MOST_CPU_S:.0f} s"
        terminalreporter.write_line(line, yellow=is_dear)


def _floor() -> float:
    """CPU seconds of the smallest program that does what each of ours does first, and makes as many files.

    The tests make about ten in that time.  Where files were deleted shortly before, ext4 without a journal takes
    fifty times as long to make one.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = "import click; [open(str(number), 'x').close() for number in range(10)]"
        process = subprocess.Popen([sys.executable, "-I", "-c", program], cwd=folder)
        _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # it has been reaped
    return used.ru_utime + used.ru_stime


def _make_group() -> Path | None:
    """A control group with this process, so with all that it will start; None where that is not allowed."""
    for parent, name in _find_parents():
        group = parent / f"sessionrun-tests-{os.getpid()}"
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
            (group / name).read_text()
            return group
        except OSError:
            _remove(group)
    return None


def _find_parents() -> Iterator[tuple[Path, str]]:
    """The groups in which this process is that can count, and the file that tells."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpuacct" in controllers.split(","):
            yield _GROUPS / controllers / path.lstrip("/"), "cpuacct.usage"
            yield _GROUPS / "cpuacct" / path.lstrip("/"), "cpuacct.usage"
        elif not controllers:
            yield _GROUPS / path.lstrip("/"), "cpu.stat"


def _remove(group: Path) -> None:
    """Give its processes back to its parent, and take it away."""
    with contextlib.suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def _count(group: Path | None) -> tuple[float, bool]:
    """CPU seconds, and whether they are those of all processes."""
    if group is None:
        both = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(used.ru_utime + used.ru_stime for used in both), False
    if (group / "cpuacct.usage").exists():
        used = int((group / "cpuacct.usage").read_text()) / 1e9
    else:
        lines = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        used = int(lines["usage_usec"]) / 1e6
    _remove(group)
    return used, True
