"""Nodes that are to end: they get no new jobs, and go when what they have is done with.

Only a RELEASE still runs there, so that the work of a task comes home first.  A node that waits too long for a
session goes all the same: what it has not told it tells when it is started again.
"""

from __future__ import annotations

from typing import Final

from sessionrun.cluster.messages import Message, phase_of
from sessionrun.cluster.records import Node, Permit

QUIET_S: Final = 2.0
"""A node goes when no session has wanted anything of it for so long: after the end of a job a RELEASE may come."""

NODE_STOPPED: Final = "its node was stopped with the cluster"


def takes(node: Node, permit: Permit) -> bool:
    """Whether an order may still go to the node."""
    return node.leaves_by is None or phase_of(permit.job) == "release"


def may_leave(node: Node, now: float) -> bool:
    """Whether the answer that is made now sends the node away."""
    if node.leaves_by is None:
        return False
    if node.ticked or any(_holds(permit) for permit in node.permits.values()):
        node.quiet_since = now
    leaves = now > node.leaves_by or (not node.ticked and now - node.quiet_since > QUIET_S)
    node.left_at = now if leaves else None
    return leaves


def _holds(permit: Permit) -> bool:
    """Whether something of the job is still to be done on its node."""
    return permit.state in ("delivered", "ended") or (
        permit.state == "offered" and phase_of(permit.job) == "release"
    )


def note_tick(node: Node, tick: Message) -> bool:
    """A node that ticks has not gone; returns whether it was to go, and is to stay: it was started anew."""
    node.left_at, node.ticked = None, list(tick["held"])
    if node.leaves_by is None or tick["epoch"] is not None:
        return False
    node.leaves_by = None
    return True
