"""An end of a job as it travels from a node to its session."""

from __future__ import annotations

from typing import Any

from sessionrun.cluster.messages import Message
from sessionrun.model.ends import Leftover
from sessionrun.model.events import JobLost
from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.runtime.executors.protocol import Exit, Notice

LEASE_WORDS = "its node had no contact with the cluster for longer than its lease, and ended it"


def key_of(job: str) -> JobKey:
    """The key of a job, whose name is ``SESSION/KEY``.

    Raises:
        ValueError: it is not such a name.
    """
    return parse_job_key(job.partition("/")[2])


def pack_end(job: str, notice: Notice, *, over: bool) -> Message | None:
    """Return the message of an end; None: the notice is no end.  `over`: the job was ended with the lease."""
    if isinstance(notice, Exit):
        fields: Message = {
            "status": notice.wait_status,
            "cpu_s": notice.cpu_s,
            "left": [(left.command, left.how) for left in notice.left],
        }
        if notice.errno is not None:
            fields = {"errno": notice.errno, "detail": notice.detail}
        return {"job": job, "kind": "lease" if over else "exit", "files": {}, **fields}
    if isinstance(notice, JobLost):
        fields = {"verdict": notice.verdict, "reason": notice.reason, "counts": notice.counts, "gone": notice.gone}
        return {"job": job, "kind": "lease" if over else "lost", "files": {}, **fields}
    return None


def unpack_end(end: Message, node: str) -> Exit | JobLost:
    """What a session hears of an end; `node` is the name of the node, for people.

    Raises:
        ValueError, KeyError, TypeError: it is damaged.
    """
    key = key_of(end["job"])
    if end["kind"] == "lease":
        return JobLost(key, "lost", f"{end.get('reason') or LEASE_WORDS} (node {node})", gone=True)
    if end["kind"] == "exit":
        status, cpu_s = _whole(end.get("status")), end.get("cpu_s")
        detail = end.get("detail")
        cpu_s = float(cpu_s) if cpu_s is not None else None
        left = tuple(Leftover(str(command), str(how)) for command, how in end.get("left", ()))
        detail = f"{detail} on node {node}" if detail else None
        return Exit(key, status, None, cpu_s, _whole(end.get("errno")), detail, left)
    if end["verdict"] not in ("lost", "interrupted", "void"):
        raise ValueError(f"unknown verdict {end['verdict']!r}")
    reason = f"{end['reason']} (node {node})"
    return JobLost(key, end["verdict"], reason, counts=bool(end["counts"]), gone=end["gone"])


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
