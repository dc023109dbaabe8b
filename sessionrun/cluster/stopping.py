"""Ends nodes for good, as a person wants it: jobs that run are named or, by force, ended; see `messages.Node`."""

from __future__ import annotations

from typing import Final

from sessionrun.cluster.messages import ABANDON, NEVER_DELIVERED, Message, Node, phase_of
from sessionrun.cluster.permits import Permits

LONGEST_S: Final = 60.0
"""A node goes after this time whatever a session still wants, such as one whose supervisor is gone."""

AWAY_S: Final = 1.0
"""A node has gone when it was told so and sent no other tick for so long."""


def find_busy(permits: Permits) -> list[Message]:
    """The jobs that nodes have, or may have: each with its node; also those whose sessions have not come back."""
    return [
        {"job": job, "node": node.name}
        for node in permits.nodes.values()
        for job in dict.fromkeys(
            [
                *(permit.job for permit in node.permits.values() if permit.state in ("offered", "delivered")),
                *(node.ticked if node.lives else ()),
            ]
        )
    ]


def stop_nodes(permits: Permits, now: float, *, force: bool) -> Message:
    """Tell the nodes that live to end, unless they have jobs; says how far that is.

    With `force` their jobs end.  To ask again changes nothing more.
    """
    permits.advance(now)
    busy = find_busy(permits)
    begun = any(node.leaves_by is not None for node in permits.nodes.values())
    if not (busy and not force and not begun):
        for node in permits.nodes.values():
            if node.lives:
                _begin(permits, node, now)
    shown = [
        {"id": node.node_id, "name": node.name, "state": _state(node, now)} for node in permits.nodes.values()
    ]
    return {"busy": busy, "nodes": shown, "begun": begun or not busy or force}


def _begin(permits: Permits, node: Node, now: float) -> None:
    if node.leaves_by is None:
        node.leaves_by, node.quiet_since = now + LONGEST_S, now
        permits.note_change()
    for permit in list(node.permits.values()):
        if phase_of(permit.job) == "release":
            continue
        if permit.state == "offered" and not permit.waits:
            permits.die(permit, NEVER_DELIVERED)
        elif permit.state == "delivered" and abs(permit.stop) < ABANDON:
            permit.stop = ABANDON
            permits.touch(node)


def _state(node: Node, now: float) -> str:
    if node.left_at is not None and now - node.left_at > AWAY_S:
        return "left"
    return ("leaving" if node.leaves_by is not None else "up") if node.lives else "gone"
