"""What a run of the tests costs: one line of figures at its end.

The processes of sessions are nobody's children, so the kernel adds up their time only in a control group.  Where
none can be made the figure is that of the tests and of what they waited for, and the line says so.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_GROUPS: Final = Path("/sys/fs/cgroup")


class Bill:
    """Hooks of the process that starts the others."""

    def __init__(self) -> None:
        """Begin to count, before any process of the tests is there."""
        self._begin = time.monotonic()
        self._group = _make_group()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The one line."""
        wall = time.monotonic() - self._begin
        used, complete = _count(self._group)
        whose = "all processes" if complete else "the tests and what they waited for"
        terminalreporter.write_line(f"{wall:.0f} s; {used:.0f} s of CPU time of {whose}")


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
