"""Processes of this machine: who is who, and which belong to a job.

A process is named by pid *and* the kernel's start time of that pid, within one boot and one pid namespace; a
bare pid is never trusted and never signalled.  On Linux the start time is in clock ticks since boot (proc(5));
elsewhere microseconds of the creation time.  psutil is imported only to look at whole trees.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psutil

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


@dataclass(slots=True)
class Scan:
    """All processes of this machine at one moment: who they are, and their pids by parent, session and marker."""

    identities: dict[int, Identity] = field(default_factory=dict)
    children: dict[int, list[int]] = field(default_factory=dict)
    sessions: dict[int, list[int]] = field(default_factory=dict)
    marked: dict[str, list[int]] = field(default_factory=dict)


def scan() -> Scan:
    """Look at every process once, however many trees are wanted.

    The identity is read first: if another process gets the pid meanwhile, nothing that follows can hit it.
    """
    import psutil

    found = Scan()
    for process in psutil.process_iter():
        pid = process.pid
        identity = identify(pid)
        if identity is None or pid == os.getpid():
            continue
        try:
            parent, session = process.ppid(), os.getsid(pid)
        except (psutil.Error, OSError):
            continue
        found.identities[pid] = identity
        found.children.setdefault(parent, []).append(pid)
        found.sessions.setdefault(session, []).append(pid)
        found.marked.setdefault(_marker_of(process), []).append(pid)
    return found


def find_tree(seen: Scan, leader: Identity, marker: str, known: Iterable[Identity] = ()) -> set[Identity]:
    """The living processes of a job: its session, the descendants of it, and the holders of its marker.

    Processes that were `known` from an earlier scan stay in, wherever they went since.
    """
    members = set(seen.marked.get(marker, ()))
    if seen.identities.get(leader.pid, leader) == leader:  # else another process has got the pid since
        members |= {leader.pid, *seen.sessions.get(leader.pid, ())}
    members |= _descendants(seen.children, members)
    found = {seen.identities[pid] for pid in members if pid in seen.identities}
    return {one for one in found if one.started >= leader.started} | {one for one in known if is_alive(one)}


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


def _marker_of(process: psutil.Process) -> str:
    """The job in whose environment the process was started; '' for none, or one that we may not look into."""
    import psutil

    try:
        return process.environ().get(JOB_MARKER, "")
    except (psutil.Error, OSError, UnicodeDecodeError):
        return ""


def _descendants(children: Mapping[int, list[int]], roots: Iterable[int]) -> set[int]:
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
