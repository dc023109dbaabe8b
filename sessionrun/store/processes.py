"""Processes of this machine: which is which, and which belong to a job.

A process is named by pid *and* the kernel's start time of that pid, within one boot and one pid namespace; a
bare pid is never trusted and never signalled.  On Linux all is read from /proc, the start time in clock ticks
since boot (proc(5)); elsewhere by psutil, which is imported when it is needed, the start time in microseconds.
The keeper imports this module without site-packages.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

JOB_MARKER: Final = "SESSIONRUN_JOB"
"""Environment variable that all processes of a job carry."""

PARENT_VARIABLE: Final = "SESSIONRUN_PARENT"
"""What it is renamed to in a session that was launched from a job: that job's end is not this session's."""

SCRIPT_MARKER: Final = "SESSIONRUN_SCRIPT"
"""Environment variable that all processes of a gate, or of another script of the user's, carry beside it."""

FREEZE_LOOKS: Final = 20
"""A tree that still grows after so many looks is killed as far as it is stopped: the next look comes soon."""

KILL_PATIENCE_S: Final = 5.0
"""A process in the kernel's hands may not die for a while; nothing is held up for longer."""

_LINUX: Final = sys.platform.startswith("linux")


class Identity(NamedTuple):
    """The process that answers to `pid` since `started`."""

    pid: int
    started: int


def boot_id() -> str:
    """What changes with each boot of this machine; '' where the system does not say."""
    if _LINUX:
        return os.fsdecode(_read("/proc/sys/kernel/random/boot_id").strip())
    import psutil

    return str(int(psutil.boot_time()))


def _read(path: str) -> bytes:
    """A file of /proc; nothing where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def pid_namespace(pid: int | str = "self") -> str:
    """The pid namespace of a process, as an inode number; '' where there is no such thing or it cannot be seen."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:
        return ""


def is_this_boot(boot: str) -> bool:
    """Whether that boot, as a log recorded it ('-' or '': the system did not say), is the present one."""
    return (boot or "-") == (boot_id() or "-")


def is_here(boot: str, namespace: str) -> bool:
    """Whether numbers of processes that a log recorded on that boot, in that pid namespace, are such from here."""
    return is_this_boot(boot) and (namespace or "-") == (pid_namespace() or "-")


def lives(boot: str, namespace: str, pid: int | None, started: int | None) -> bool | None:
    """Whether the process that a log recorded so still runs; None: it cannot be seen from here."""
    if not is_this_boot(boot):
        return False
    return is_alive(Identity(pid or 0, started or 0)) if is_here(boot, namespace) else None


def start_time(pid: int, *, zombie: bool = False) -> int | None:
    """When the process `pid` was started, in a unit of the system's own; None when there is none.

    One that has ended and was not reaped yet counts as none, but where `zombie` asks for it.
    """
    seen = _look_at(pid)
    return None if seen is None or (seen.state in _ENDED and not zombie) else seen.started


def parent_of(pid: int) -> int | None:
    """The parent of a process, also of a zombie; None when there is none."""
    seen = _look_at(pid)
    return None if seen is None else seen.parent


class _Seen(NamedTuple):
    """What the system says of a process; `state` is a letter of proc(5), `name` is known on Linux alone."""

    name: bytes
    state: bytes
    parent: int
    session: int
    started: int


_ENDED: Final = (b"Z", b"X")
_STOPPED: Final = (b"T", b"t")


def _look_at(pid: int) -> _Seen | None:
    """A process, also a zombie; None when there is none."""
    if not _LINUX:
        return _look_by_psutil(pid)
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        head, _, rest = os.read(fd, 4096).rpartition(b")")
    except OSError:
        return None
    finally:
        os.close(fd)
    fields = rest.split()
    return _Seen(head.partition(b"(")[2], fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def _look_by_psutil(pid: int) -> _Seen | None:
    import psutil

    states = {psutil.STATUS_ZOMBIE: b"Z", psutil.STATUS_STOPPED: b"T", psutil.STATUS_TRACING_STOP: b"t"}
    session = 0
    with suppress(OSError):  # a zombie has none there
        session = os.getsid(pid)
    try:
        process = psutil.Process(pid)
        state, started = states.get(process.status(), b""), int(process.create_time() * 1e6)
        return _Seen(b"", state, process.ppid(), session, started)
    except psutil.Error:
        return None


def session_and_name(pid: int) -> tuple[int, bytes]:
    """The session of a process, also of a zombie, and the first 15 bytes of its program's name; else (0, b'')."""
    seen = _look_at(pid)
    return (0, b"") if seen is None else (seen.session, seen.name)


def command_of(pid: int) -> bytes:
    """The words of a process's command, with spaces between them; its name where there are none."""
    words = _read(f"/proc/{pid}/cmdline")[:4096].rstrip(b"\0").replace(b"\0", b" ")
    return words or session_and_name(pid)[1]


def is_alive(process: Identity) -> bool:
    return start_time(process.pid) == process.started


def is_stopped(pid: int, started: int) -> bool:
    """Whether that very process is stopped now, by a signal or a debugger."""
    seen = _look_at(pid)
    return seen is not None and seen.state in _STOPPED and seen.started == started


class Scan:
    """All processes of this machine at one moment: identities, and pids by parent, session and marker."""

    def __init__(self) -> None:
        self.identities: dict[int, Identity] = {}
        self.parents: dict[int, int] = {}
        self.children: dict[int, list[int]] = {}
        self.sessions: dict[int, list[int]] = {}
        self.marked: dict[str, list[int]] = {}


def scan() -> Scan:
    """Look at every process but this one once, however many trees are wanted."""
    whole = Scan()
    for pid in _list_pids():
        # the identity is read first: if another process gets the pid meanwhile, nothing that follows can hit it
        seen = _look_at(pid)
        if pid == os.getpid() or seen is None or seen.state in _ENDED:
            continue
        whole.identities[pid] = Identity(pid, seen.started)
        whole.parents[pid] = seen.parent
        whole.children.setdefault(seen.parent, []).append(pid)
        whole.sessions.setdefault(seen.session, []).append(pid)
        variables = environment(pid)
        for name in (JOB_MARKER, SCRIPT_MARKER):
            if marker := variables.get(name):
                whole.marked.setdefault(marker, []).append(pid)
    return whole


def _list_pids() -> list[int]:
    if _LINUX:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    import psutil

    return psutil.pids()


def environment(pid: int) -> Mapping[str, str]:
    """The environment that the process was started with; empty where we may not look."""
    if _LINUX:
        pairs = [os.fsdecode(entry).partition("=") for entry in _read(f"/proc/{pid}/environ").split(b"\0")]
        return {name: value for name, _, value in pairs if name}
    import psutil

    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError, UnicodeDecodeError):
        return {}


def children_of_this() -> list[int] | None:
    """The pids of this process's children, zombies too; None where the system has no cheap way to tell."""
    try:
        with open("/proc/thread-self/children", "rb") as stream:
            return [int(word) for word in stream.read().split()]
    except OSError:
        return None


def become_subreaper() -> bool:
    """Let descendants whose parent dies become our children; False where there is no such thing (prctl(2))."""
    if not _LINUX:
        return False
    import ctypes

    set_child_subreaper = 36
    return bool(ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0)


def die_with_parent() -> None:
    """Be killed when the parent dies (prctl(2)); nothing where there is no such thing."""
    if not _LINUX:
        return
    import ctypes

    set_death_signal, parent = 1, os.getppid()
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def raw_status(waitid_result: Any) -> int:
    if waitid_result.si_code == os.CLD_EXITED:
        return int(waitid_result.si_status) << 8
    return int(waitid_result.si_status) | (0x80 if waitid_result.si_code == os.CLD_DUMPED else 0)


def find_tree(
    seen: Scan, leader: Identity, marker: str, known: Iterable[Identity] = (), *, by_session: bool = True
) -> set[Identity]:
    """The living processes of a job: its session, the descendants of it, and the holders of its marker.

    Processes that were `known` from an earlier scan stay in, wherever they went since.  Without `by_session` the
    session of a leader that is gone is not the job's: it ended unseen, and its number may be another's by now.
    """
    members = set(seen.marked.get(marker, ()))
    if seen.identities.get(leader.pid, leader if by_session else None) == leader:  # else another has the pid now
        members |= {leader.pid, *seen.sessions.get(leader.pid, ())}
    members |= find_descendants(seen, members)
    living = {seen.identities[pid] for pid in members if pid in seen.identities}
    return {identity for identity in living if identity.started >= leader.started} | {
        identity for identity in known if is_alive(identity)
    }


def identify(pid: int) -> Identity | None:
    started = start_time(pid)
    return None if started is None else Identity(pid, started)


def freeze(find: Callable[[Scan], Iterable[Identity]]) -> list[Identity]:
    """Stop all processes that `find` returns, before any of them is told to end; parents come first.

    Of processes that are ended one by one, a shell would see its child die, and run its next command.  A parent is
    stopped before its children: one that waits with WUNTRACED would go on as well.  The system is looked at again
    until nothing is new, for a process starts others until it is stopped.
    """
    frozen: dict[Identity, None] = {}
    for _ in range(FREEZE_LOOKS):
        seen = scan()
        fresh = [process for process in find(seen) if process not in frozen]
        if not fresh:
            break
        for process in sorted(fresh, key=lambda process: _depth(seen, process.pid)):
            send_signal(process, signal.SIGSTOP)
            frozen[process] = None
    return list(frozen)


def _depth(seen: Scan, pid: int) -> int:
    ancestors: set[int] = set()
    while pid in seen.parents and pid not in ancestors:
        ancestors.add(pid)
        pid = seen.parents[pid]
    return len(ancestors)


def kill_as_one(find: Callable[[Scan], Iterable[Identity]]) -> list[Identity]:
    """Kill all processes that `find` returns; they may take a moment to die."""
    frozen = freeze(find)
    for process in frozen:
        send_signal(process, signal.SIGKILL)
    return frozen


def kill_tree(leader: Identity, marker: str, patience_s: float) -> bool:
    """Kill all of a tree (see `find_tree`), and wait until it is gone; False: something of it does not die."""
    give_up_at = time.monotonic() + patience_s
    while kill_as_one(lambda seen: find_tree(seen, leader, marker)):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.005)
    return True


def send_signal(process: Identity, number: int) -> None:
    """Signal that very process, never another that got its pid since."""
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            if is_alive(process):
                os.kill(process.pid, number)
            return
        fd = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def group_is_empty(pgid: int) -> bool:
    """Whether no process, not even a zombie, is left in a process group whose leader was reaped."""
    try:
        os.killpg(pgid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def find_descendants(seen: Scan, roots: Iterable[int]) -> set[int]:
    """The pids of what these processes have started, and so on."""
    descendants: set[int] = set()
    queue = list(roots)
    while queue:
        for child in seen.children.get(queue.pop(), ()):
            if child not in descendants:
                descendants.add(child)
                queue.append(child)
    return descendants
