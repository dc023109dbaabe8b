"""Who is root, keeper and supervisor of a session, asked of the system (Linux), and killing exactly that process.

Between vfork and exec a child shows its parent's command line.  Such a child must not be taken for the keeper:
it would be a job that dies before it has begun, and truthfully end with signal 9.  Such a child has all signals
blocked, but for an instant in which it is a session of its own already: both are looked at.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sessionrun.store.processes import JOB_MARKER, Identity, environment, start_time

Role = Literal["root", "keeper", "supervisor"]
ROLES: Final[tuple[Role, ...]] = ("root", "keeper", "supervisor")

_KEEPER_FILE: Final = b"/sessionrun/keeper/__main__.py"
_SUPERVISOR_CODE: Final = b"sessionrun.session.main"


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it at one moment."""

    identity: Identity
    parent: int
    words: tuple[bytes, ...]


def find_chain(session: Path) -> dict[Role, list[Identity]]:
    """The processes of a session's chain; of each role there may be none, or several for a moment."""
    name = os.fsencode(session)
    ours = {one.identity.pid: one for one in _iterate() if name in one.words}
    programs, supervisors = dict[int, Process](), dict[int, Process]()
    for pid, one in ours.items():  # or a child of theirs before its exec
        words = one.words
        if len(words) > 4 and words[3].endswith(_KEEPER_FILE) and words[4] == name:
            programs[pid] = one
        elif len(words) > 4 and words[1] == b"-c" and _SUPERVISOR_CODE in words[2]:
            supervisors[pid] = one
    roots = [one for one in programs.values() if one.parent not in programs]
    keepers = [one for one in programs.values() if one.parent in {root.identity.pid for root in roots}]
    # a keeper whose root is dead looks like a root: its supervisor is its child, or the ledger is open in it
    orphaned = [one for one in roots if _holds(one.identity.pid, session / "ledger")]
    chain: dict[Role, list[Identity]] = {
        "root": [one.identity for one in roots if one not in orphaned],
        "keeper": [one.identity for one in [*keepers, *orphaned] if _is_no_vfork_child(one.identity.pid)],
        "supervisor": [one.identity for one in supervisors.values() if one.parent not in supervisors],
    }
    return chain


def kill(process: Identity, is_still: Callable[[], bool], number: signal.Signals = signal.SIGKILL) -> bool:
    """Signal that very process if `is_still`, asked once nobody else can have its pid; whether it was sent."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if start_time(process.pid) != process.started or not is_still():
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def kill_role(session: Path, role: Role) -> int:
    """Kill who plays this role; how many were hit."""
    return sum(
        kill(one, lambda one=one: one in find_chain(session)[role])  # type: ignore[misc]
        for one in find_chain(session)[role]
    )


def kill_at_once(session: Path) -> int:
    """Kill the whole chain; how many were hit.  All are stopped first: one that is left starts the others."""
    stopped: dict[Identity, None] = {}
    while fresh := [one for found in find_chain(session).values() for one in found if one not in stopped]:
        for one in fresh:
            stopped[one] = None
            kill(one, lambda: True, signal.SIGSTOP)
    return sum(kill(one, lambda: True) for one in stopped)


def find_left(session: Path) -> list[Process]:
    """Every process that belongs to a session: by the path on its command line, or by the marker of a job."""
    name, prefix = os.fsencode(session), session.name.removeprefix("session-") + "/"
    return [
        one
        for one in _iterate()
        if name in one.words or environment(one.identity.pid).get(JOB_MARKER, "").startswith(prefix)
    ]


def _iterate() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            yield Process(Identity(int(name), int(fields[19])), int(fields[1]), tuple(words))


def _is_no_vfork_child(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        blocked = next(line for line in lines if line.startswith("SigBlk:"))
        return int(blocked.split()[1], 16) == 0 and os.getsid(pid) != pid
    except (OSError, StopIteration):
        return False


def _holds(pid: int, file: Path) -> bool:
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}") == str(file):
                return True
    except OSError:
        pass
    return False
