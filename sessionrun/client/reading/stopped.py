"""Finds processes of a session that were stopped by SIGSTOP, a terminal or a debugger.

A stopped supervisor holds its lock and looks alive, but nothing goes on.  Only the system knows it, so readers ask
the system about the processes that status.json names.  A poll pays one read of a small file for this; what costs
more is done only if a process was found stopped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

ROLES: Final = ("root", "keeper", "supervisor")
"""The processes of a session that `processes` of status.json may name."""

_LINUX: Final = sys.platform.startswith("linux")


def find_stopped(known: object) -> list[str]:
    """The roles of the processes that are stopped now; `known` is `processes` of status.json, of any shape."""
    if not isinstance(known, Mapping):
        return []
    stopped = [role for role in ROLES if _is_stopped(known.get(role))]
    return stopped if stopped and _is_here(known) else []


def _is_stopped(process: object) -> bool:
    if not isinstance(process, Mapping):
        return False
    pid, started = process.get("pid"), process.get("started")
    return isinstance(pid, int) and isinstance(started, int) and _read_state(pid, started) in ("T", "t")


def _is_here(known: Mapping[str, Any]) -> bool:
    """Whether the boot and the pid namespace of the known processes are ours."""
    from sessionrun.store import processes

    return processes.is_here(str(known.get("boot_id")), str(known.get("pid_ns")))


def _read_state(pid: int, started: int) -> str | None:
    """The state of the process with this pid and start time, as proc(5) spells it; None if it is gone."""
    if not _LINUX:
        return _read_state_by_psutil(pid, started)
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    except OSError:
        return None
    finally:
        os.close(fd)
    return fields[0].decode() if int(fields[19]) == started else None


def _read_state_by_psutil(pid: int, started: int) -> str | None:
    import psutil

    from sessionrun.store import processes

    try:
        stopped = psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return None
    if processes.start_time(pid) != started:
        return None
    return "T" if stopped else "R"
