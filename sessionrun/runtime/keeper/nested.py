"""Tells which processes lead a session: of those that jobs left behind, and of those that dead keepers did.

A session that a job launched is not part of the job: its processes come to our keeper or root as orphans do, and
live on.  Any process may claim to belong to one, so locks have to prove it: the process holds a lock of a session,
or carries the marker of a job of a session whose locks are held.
"""

from __future__ import annotations

import os
from pathlib import Path

from sessionrun.store import locks, processes


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
    other = processes.marker_of(pid).partition("/")[0]
    names = f"session-{other}", f"node-{other}"
    if not other or session.name in names:
        return False
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return any(_leads(other_pid, session, names) for other_pid in pids)


def find_orphan(session: Path) -> processes.Identity | None:
    """Asked by a supervisor: the one before it, if that holds the session's lock and its keeper is dead.

    The journal may not know it yet.  The proof is the lock, and that its keeper's death made it our root's child.
    """
    keeper, seen = os.getppid(), processes.scan()
    siblings = seen.children.get(seen.parents.get(keeper, 0), ())
    orphans = (pid for pid in siblings if pid != keeper and _leads(pid, None, (session.name,)))
    return next((seen.identities[pid] for pid in orphans), None)


def _leads(pid: int, but: Path | None, names: tuple[str, ...] = ()) -> bool:
    """Whether a process holds a lock of a session, or node: of one of these names, or of any but this one."""
    is_shown = _shows_locks()
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


def _shows_locks() -> bool:
    """Whether /proc/PID/fdinfo shows locks here: this process or its parent holds one."""
    return any(_is_flocked(pid, fd) for pid in (os.getpid(), os.getppid()) for fd, _ in _open_locks(pid))


def _is_flocked(pid: int, fd: str) -> bool:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", "rb") as stream:
            # a reader has it shared, for an instant
            return any(line.startswith(b"lock:") and b"FLOCK" in line and b"WRITE" in line for line in stream)
    except OSError:
        return False
