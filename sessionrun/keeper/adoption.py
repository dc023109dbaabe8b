"""What a new keeper finds: jobs that an earlier one started and whose end is not on record, and sessions in them.

Which processes lead a session is asked twice: of those that jobs left behind, and of those that dead keepers did.

They are not our children any more.  Those that climbed to the root have their codes told by it; of others (the
root was dead as well) only the end can be seen, and a code that was not seen is never guessed.

A session that a job launched is not part of the job: its processes come to our keeper or root as orphans do, and
live on.  Any process may claim to belong to one, so locks have to prove it: the process holds a lock of a session,
or carries the marker of a job of a session whose locks are held.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sessionrun.keeper.children import Child, Children
from sessionrun.store import locks, processes
from sessionrun.store.logs import GONE, LOST, SPAWNED, Ledger, LedgerJob, make_record
from sessionrun.store.processes import JOB_MARKER, Identity

SEARCHES: Final = 4
SEARCH_PAUSE_S: Final = 0.03
"""A child that was spawned this moment shows its own environment only once it has executed its program."""

RECHECK_S: Final = 0.5
"""How often jobs are looked at of which the root cannot tell: another one was dead when they lost their keeper."""


class RootCodes:
    """How orphans ended, as the root reports it: `told` are raw wait statuses of those that it has reaped.

    The pipe's end means that the root is gone.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_open = True
        self.told: dict[Identity, int] = {}
        self._rest = b""
        self._replayed = False
        os.set_blocking(fd, True)
        while self.is_open and not self._replayed:  # all that earlier keepers were told comes first
            self._read()
        os.set_blocking(fd, False)

    def listen(self) -> tuple[bool, int]:
        """Take in what has come; what is given changes with all that comes, be it the end."""
        while self.is_open and self._read():
            pass
        return self.is_open, len(self.told)

    def _read(self) -> bool:
        try:
            chunk = os.read(self.fd, 65536)
        except BlockingIOError:
            return False
        if not chunk:
            self.is_open = False
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line == b"end":
                self._replayed = True
                continue
            pid, started, status = map(int, line.split())
            self.told[Identity(pid, started)] = status
        return bool(chunk)


class Adopted:
    """The jobs of earlier keepers: finds them, watches them, says how they ended."""

    def __init__(self, children: Children, codes: RootCodes) -> None:
        self._children = children
        self._codes = codes
        self._unsettled: list[Child] = []
        self._known: tuple[bool, int] | None = None
        self._look_again_at: float | None = None

    def find(self, ledger: Ledger, session_id: str) -> None:
        """Take over what the ledger leaves open; what cannot be there any more is recorded as lost."""
        note = self._children.note
        for key, job in _complete(ledger, session_id, note):
            if job.pid is None or not processes.is_here(job.boot_id, job.pid_ns):
                note(make_record(LOST if job.wait_status is None else GONE, key))
                continue
            leader = Identity(job.pid, job.started or 0)
            child = Child(key, leader, f"{session_id}/{key}", job.grace_s, ours=False, status=job.wait_status)
            child.watched = processes.start_time(leader.pid, zombie=True) == leader.started
            child.left = job.left or None  # the keeper before has recorded it: not twice
            self._children.add(child)
            if child.has_ended:  # only what it left behind is in question
                self._children.settle([child])
            else:
                self._unsettled.append(child)
        self.look()

    def look(self) -> None:
        """Settle those that have ended: its code was told, or no process has it."""
        is_due = self._look_again_at is not None and time.monotonic() >= self._look_again_at
        while self._known != (known := self._codes.listen()) or is_due:
            is_due, self._known = False, known
            waiting, self._unsettled, self._look_again_at = self._unsettled, [], None
            for child in waiting:
                self._look_at(child)

    def next_time(self) -> float | None:
        """When to look again at those of which the root cannot tell; monotonic."""
        return self._look_again_at

    def _look_at(self, child: Child) -> None:
        parent = processes.parent_of(child.leader.pid)
        if processes.is_alive(child.leader):
            self._unsettled.append(child)
            if parent != os.getppid() or not self._codes.is_open:
                self._look_again_at = time.monotonic() + RECHECK_S
            return
        there = processes.start_time(child.leader.pid, zombie=True) == child.leader.started
        # The root tells before it reaps: it did not reap a process that has vanished and was not told of.
        self._codes.listen()
        code = self._codes.told.get(child.leader)
        if code is not None:
            self._children.take_exit(child, code)
        elif there and self._codes.is_open and parent == os.getppid():
            # a zombie, and the root comes to it; another parent, such as a container's first process, may never
            self._unsettled.append(child)
            return
        else:
            child.unseen = True
        self._children.settle([child])


def _complete(ledger: Ledger, session_id: str, note: Callable[[bytes], None]) -> Iterator[tuple[str, LedgerJob]]:
    """The open jobs; for those that were tried without a word on what came of it the process is searched."""
    unsure = {}
    for key, job in ledger.jobs.items():
        if job.is_open and job.pid is None and job.wait_status is None:
            unsure[key] = job
        elif job.is_open:
            yield key, job
    for number in range(SEARCHES if unsure else 0):
        time.sleep(SEARCH_PAUSE_S if number else 0)
        seen = processes.scan()
        for key, job in unsure.items():
            pids = seen.marked.get(f"{session_id}/{key}", [])
            leaders = [pid for pid in pids if pid in seen.sessions] or pids
            if job.pid is None and leaders:
                leader = min((seen.identities[pid] for pid in leaders), key=lambda identity: identity.started)
                job.pid, job.started = leader.pid, leader.started
                note(make_record(SPAWNED, key, leader.pid, leader.started))
    yield from unsure.items()


def end_strays(session: Path) -> bool:
    """At the end of a session: kill what its jobs have left behind and hidden their marker from.

    Such processes come to the keeper, or, if a keeper has died since, to the root.  Returns whether there was any.
    """
    # the cheap look comes first: this is asked again and again while the session ends
    return bool(_find_strays(session)) and bool(processes.kill_as_one(lambda seen: _find_strays(session)))


def _find_strays(session: Path) -> list[processes.Identity]:
    children = (processes.identify(pid) for pid in processes.children_of_this() or ())
    return [child for child in children if child is not None and not is_nested(child.pid, session)]


def is_nested(pid: int, session: Path) -> bool:
    """Whether a process belongs to another session than this one, which lives."""
    if _leads(pid, session):
        return True
    other = processes.environment(pid).get(JOB_MARKER, "").partition("/")[0]
    names = f"session-{other}", f"node-{other}"
    if not other or session.name in names:
        return False
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return any(_leads(other_pid, session, names) for other_pid in pids)


def _leads(pid: int, but: Path, names: tuple[str, ...] = ()) -> bool:
    """Whether a process holds a lock of a session, or node: of one of these names, or of any but this one."""
    here = (os.getpid(), os.getppid())
    is_shown = any(_is_flocked(own, fd) for own in here for fd, _ in _open_locks(own))  # one of them holds a lock
    for fd, path in _open_locks(pid):
        if path.parent == but or (names and path.parent.name not in names):
            continue
        if _is_flocked(pid, fd) if is_shown else locks.is_held(path):
            return True
    return False


def _open_locks(pid: int) -> list[tuple[str, Path]]:
    """The descriptors with which a process has locks of sessions open."""
    open_locks = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = Path(os.readlink(f"/proc/{pid}/fd/{fd}"))
            if path.name in locks.NAMES and path.parent.name.startswith(("session-", "node-")):
                open_locks.append((fd, path))
    except OSError:
        pass  # it has ended, or is not ours to look into
    return open_locks


def _is_flocked(pid: int, fd: str) -> bool:
    """Whether /proc/PID/fdinfo shows that a process has a lock; it does not everywhere."""
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as stream:
            # a reader has it shared, for an instant
            return any(line.startswith(b"lock:") and b"FLOCK" in line and b"WRITE" in line for line in stream)
    except OSError:
        return False
