"""Processes of a session's jobs that live although they should not be needed any more.

Two traces lead to them: the marker in their environment, and the identity that the ledger has of a job without
a recorded end.  A pid alone is not a trace.  psutil is imported when used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from sessionrun.model.frozen import frozen
from sessionrun.store import processes
from sessionrun.store.ledger import Ledger
from sessionrun.store.processes import Identity


@frozen
class Living:
    """A living process of a job; `key` is the job's, as text.

    `ours` is whether it runs as this user and in this pid namespace, so that its pid means something to the user.
    """

    key: str
    process: Identity
    ours: bool = True

    @property
    def task(self) -> str:
        """The id of the job's task."""
        return self.key.partition("/")[0]


def find_marked() -> dict[str, list[Living]]:
    """All processes that carry a job's marker, by session id: one look at the whole system."""
    import psutil

    by_session: dict[str, list[Living]] = {}
    own_namespace = processes.pid_namespace()
    for process in psutil.process_iter():
        identity = processes.identify(process.pid)
        if identity is None:
            continue
        try:
            marker = process.environ().get(processes.JOB_MARKER, "")
            ours = process.uids().effective == os.geteuid() and _namespace_of(process.pid) == own_namespace
        except (psutil.Error, OSError, UnicodeDecodeError):
            continue
        session_id, _, key = marker.partition("/")
        if key and processes.is_alive(identity):
            by_session.setdefault(session_id, []).append(Living(key, identity, ours))
    return by_session


def find_recorded(ledger: Ledger) -> Iterator[Living]:
    """Living processes that the ledger recorded, without an end, on this boot and in this pid namespace."""
    for key, job in ledger.jobs.items():
        if job.pid is None or not job.started or job.wait_status is not None:
            continue
        if processes.lives(job.boot_id, job.pid_ns, job.pid, job.started):
            yield Living(key, Identity(job.pid, job.started))


def _namespace_of(pid: int) -> str:
    """The pid namespace of process `pid`, spelled as in `processes.pid_namespace`; '' if the system has none."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid").removeprefix("pid:[").removesuffix("]")
    except FileNotFoundError:
        return ""
