"""The cluster as sessions and people see it."""

from __future__ import annotations

from collections.abc import Mapping

from sessionrun.cluster.messages import Message
from sessionrun.cluster.records import Node, Session


def show_node(node: Node, now: float, lease: float) -> Message:
    """A node.

    `used` are its slots in use, by all sessions; `lease_s` is what is left of its lease, and `silent_s` how long
    there has been no contact (seconds, or None).
    """
    used = sum(permit.state in ("offered", "delivered") for permit in node.permits.values())
    about = {"id": node.node_id, "name": node.name, "slots": node.slots, "version": node.version}
    about["walls"] = node.walls
    left_s = round(node.until - now, 1)
    about["silent_s"] = round(lease - left_s, 1) if node.silent else None
    about["lease_s"] = max(0.0, left_s) if node.lives else None
    return {**about, "lives": node.lives and node.leaves_by is None, "used": min(used, node.slots)}


def show_cluster(
    epoch: str, nodes: Mapping[str, Node], sessions: Mapping[str, Session], now: float, lease: float
) -> Message:
    """Nodes, and sessions that have not ended."""
    shown = [show_node(node, now, lease) for node in nodes.values()]
    living = [
        {"id": name, "jobs": len(session.permits)}
        for name, session in sessions.items()
        if session.closed_at is None
    ]
    return {"epoch": epoch, "nodes": shown, "sessions": living}
