"""The messages between the scheduler of a cluster, its nodes and the sessions, as JSON objects.

A job is named ``SESSION/KEY``; its key names one attempt, round, phase and start, so no job runs twice.

    tick     node to scheduler     seq: CLOCK_BOOTTIME (ns) of sending, the origin of the lease and the order of
                                   ticks of one boot; boot: their number; node, name, slots, walls; epoch: of the
                                   last answer; wait: seconds; held: jobs that it has, but for those in ends; ends;
                                   out
    answer   scheduler to node     seq, epoch; renew: whether the lease goes on; times; orders; stop: job, level;
                                   void: jobs to kill and forget; ack: ends to forget; wrote: job, name, bytes;
                                   leave: the node is to end
    call     session to scheduler  session, gen: lives of its supervisor; seq; epoch; wait; open, where it was
                                   asked for: job, node, epoch; submit: job, node, order, waits; stop; drop; wrote;
                                   waits: also for a node that is gone;
                                   again: the last reply did not come; close: the session has ended
    reply    scheduler to session  state; epoch; begun; ends; dead: job, reason, ran; out; nodes, if changed

What walls a node cannot build, and why, are the names and reasons of `walls`.
An end is ``{job, kind, files, ...}``: `files` are the names and sizes (bytes) of all that the job leaves; `kind`
is exit, lost, or lease, which ended it; the rest is what `runtime.executors.orders` says of an end.
A chunk of `out` is ``{job, name, at, content}``: bytes of a file as base64, from an offset.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from sessionrun.model.keys import JobKey, parse_job_key

PROTOCOL: Final = 4
"""Counts up with each change that an older node or session would not understand."""

Message: TypeAlias = dict[str, Any]

ReplyState = Literal["ok", "open", "stale", "superseded"]
"""`open`: say first what is open; `stale`: a later call came before; `superseded`: by another supervisor."""

TERM: Final = 1
KILL: Final = 2
ABANDON: Final = 3
"""How a job is stopped: TERM and then KILL; KILL; KILL, for its session has not come back."""

NEVER_DELIVERED: Final = "its order was never delivered"
STOPPED: Final = "it was stopped before its order was delivered"
NEVER_SUBMITTED: Final = "its order never reached the scheduler"
NOT_THERE: Final = "its node does not have it"
NODE_STOPPED: Final = "its node was stopped with the cluster"
LEASE_OVER: Final = "the lease of its node was over"


def session_of(job: str) -> str:
    """The session whose job it is."""
    return job.partition("/")[0]


def key_of(job: str) -> JobKey:
    """The key of a job.

    Raises:
        ValueError: it is no name of a job.
    """
    return parse_job_key(job.partition("/")[2])


def phase_of(job: str) -> str:
    """The phase of a job, as its key names it; '' if the name has none."""
    parts = job.rsplit("/", 2)
    return parts[1] if len(parts) == 3 else ""
