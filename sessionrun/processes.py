"""Processes of this machine: who is who, and which belong to a job.

A process is named by pid *and* the kernel's start time of that pid, within one boot and one pid namespace; a
bare pid is never trusted and never signalled.  On Linux the start time is in clock ticks since boot (proc(5));
elsewhere microseconds of the creation time.  psutil is imported only to look at whole trees.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

JOB_MARKER: Final = "SESSIONRUN_JOB"
"""Environment variable that all processes of a job carry."""

_LINUX: Final = sys.platform.startswith("linux")


@dataclass(frozen=True, slots=True)
class Identity:
    """The process that answers to `pid` since `started`."""

    pid: int
    started: int


def boot_id() -> str:
    """What changes with each boot of this machine; '' where the system does not say."""
    if _LINUX:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
                return stream.read().strip()
        except OSError:
            return ""
    import psutil

    return str(int(psutil.boot_time()))


def pid_namespace() -> str:
    """The pid namespace of this process, as an inode number; '' where there is no such thing."""
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """When the process `pid` was started, in a unit of the system's own; None when there is none (or a zombie)."""
    if not _LINUX:
        return _start_time_by_psutil(pid)
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
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(process: Identity) -> bool:
    """Whether that very process still runs."""
    return start_time(process.pid) == process.started


def find_tree(leader: Identity, marker: str, seen: Iterable[Identity] = ()) -> set[Identity]:
    """The living processes of a job: its session, the descendants of it, and the holders of its marker.

    Processes that were `seen` in an earlier scan stay in, wherever they went since.
    """
    import psutil

    parents: dict[int, int] = {}
    members: set[int] = set()
    for process in psutil.process_iter():
        try:
            pid = process.pid
            parents[pid] = process.ppid()
            if pid == leader.pid or os.getsid(pid) == leader.pid or _carries(process, marker):
                members.add(pid)
        except (psutil.Error, OSError):
            continue
    members |= _descendants(parents, members | {leader.pid})
    members.discard(os.getpid())
    found = {identity for pid in members if (identity := identify(pid)) and identity.started >= leader.started}
    return found | {known for known in seen if is_alive(known)}


def identify(pid: int) -> Identity | None:
    """The identity of the living process `pid`."""
    started = start_time(pid)
    return None if started is None else Identity(pid, started)


def send_signal(process: Identity, number: int) -> None:
    """Signal that very process, never another that got its pid since."""
    if not hasattr(os, "pidfd_open"):
        if is_alive(process):
            _kill(process.pid, number)
        return
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if is_alive(process):
            signal.pidfd_send_signal(fd, number)
    except OSError:
        pass
    finally:
        os.close(fd)


def group_is_empty(pgid: int) -> bool:
    """Whether no process, not even a zombie, is left in a process group whose leader was reaped."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _carries(process: object, marker: str) -> bool:
    """Whether the process was started with the job's marker in its environment."""
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        return process.environ().get(JOB_MARKER) == marker
    except (psutil.Error, OSError, UnicodeDecodeError):
        return False


def _descendants(parents: dict[int, int], roots: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def _start_time_by_psutil(pid: int) -> int | None:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return int(process.create_time() * 1e6)
    except psutil.Error:
        return None
