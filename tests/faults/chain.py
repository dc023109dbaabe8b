"""Who is root, keeper and supervisor of a session, asked of the system (Linux), and killing exactly that process.

Between vfork and exec a child shows its parent's command line.  Such a child must not be taken for the keeper:
it would be a job that dies before it has begun, and truthfully end with signal 9.  Such a child has all signals
blocked, but for an instant in which it is a session of its own already: both are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import psutil
from conftest import eventually, find_processes, kill_together

from sessionrun.store.session import SessionDir

Role = Literal["root", "keeper", "supervisor"]
ROLES: Final[tuple[Role, ...]] = ("root", "keeper", "supervisor")

_KEEPER_FILE: Final = "/sessionrun/keeper/__main__.py"
_SUPERVISOR_CODE: Final = "sessionrun.session.main"


def find_chain(session: Path) -> dict[Role, list[psutil.Process]]:
    """The processes of a session's chain; of each role there may be none, or several for a moment."""
    name = str(session)
    programs, supervisors = dict[psutil.Process, int](), dict[psutil.Process, int]()  # with their parents
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()  # or those of its parent, before its exec
            if len(words) > 4 and words[3].endswith(_KEEPER_FILE) and words[4] == name:
                programs[process] = process.ppid()
            elif len(words) > 4 and words[1] == "-c" and _SUPERVISOR_CODE in words[2] and name in words:
                supervisors[process] = process.ppid()
    roots = [one for one, parent in programs.items() if parent not in _pids(programs)]
    keepers = [one for one, parent in programs.items() if parent in _pids(roots)]
    # a keeper whose root is dead looks like a root: its supervisor is its child, or the ledger is open in it
    orphaned = [one for one in roots if _holds(one, session / "ledger")]
    return {
        "root": [one for one in roots if one not in orphaned],
        "keeper": [one for one in [*keepers, *orphaned] if _is_no_vfork_child(one.pid)],
        "supervisor": [one for one, parent in supervisors.items() if parent not in _pids(supervisors)],
    }


def kill_role(session: Path, role: Role) -> int:
    """Kill who plays this role; how many were hit."""
    hit = 0
    for process in find_chain(session)[role]:
        with suppress(psutil.Error):
            if process in find_chain(session)[role]:  # what was a child of it has become its program by now
                process.kill()
                hit += 1
    return hit


def kill_surely(session: SessionDir, role: Role) -> None:
    """Kill who plays this role; for the moment of a spawn a keeper looks like what it spawns, and is not found."""
    eventually(lambda: kill_role(session.path, role))


def kill_at_once(session: Path) -> bool:
    """Kill the whole chain; whether there was any.  All are stopped first: one that is left starts the others."""
    stopped: dict[psutil.Process, None] = {}
    while fresh := [one for found in find_chain(session).values() for one in found if one not in stopped]:
        for process in fresh:
            stopped[process] = None
            with suppress(psutil.Error):
                process.suspend()
    kill_together(stopped)
    return bool(stopped)


def find_left(session: Path) -> list[psutil.Process]:
    """Every process that belongs to a session: by the path on its command line, or by the marker of a job."""
    return find_processes(session.parent, {session.name.removeprefix("session-")})


def _pids(processes: Iterable[psutil.Process]) -> set[int]:
    return {process.pid for process in processes}


def _is_no_vfork_child(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        blocked = next(line for line in lines if line.startswith("SigBlk:"))
        return int(blocked.split()[1], 16) == 0 and os.getsid(pid) != pid
    except (OSError, StopIteration):
        return False


def _holds(process: psutil.Process, file: Path) -> bool:
    try:
        return any(opened.path == str(file) for opened in process.open_files())
    except psutil.Error:
        return False
