"""Ends the programs of a cluster: first those of its nodes, when their jobs are done with, then its head.

The nodes hear of it through the head, so a node that has no contact with it cannot be told.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from sessionrun.client.cluster.address import ask_scheduler, check_reachable, show_cluster
from sessionrun.model.cluster import Cluster
from sessionrun.model.errors import InputError
from sessionrun.model.phrases import name_some

LOOK_S: Final = 0.3
NODES_TIMEOUT_S: Final = 90.0
"""Longer than a node waits for sessions (`cluster.records`)."""

HEAD_TIMEOUT_S: Final = 15.0
NAMED: Final = 5
"""So many jobs a refusal names."""


def stop_cluster(cluster: Cluster, *, force: bool) -> dict[str, Any]:
    """End the nodes, then the head; returns what became of each, and the sessions that go on without them.

    Raises:
        InputError: jobs run and `force` is not given, or the head cannot be reached.
    """
    answer = ask_scheduler(cluster, "sr_stop", head=False, force=force)
    if not answer["begun"]:
        raise InputError(_describe_busy(answer["busy"]))
    deadline = time.monotonic() + NODES_TIMEOUT_S
    while _find_staying(answer["nodes"]) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        answer = ask_scheduler(cluster, "sr_stop", head=False, force=force)
    sessions = [session["id"] for session in show_cluster(cluster)["sessions"]]
    staying = _find_staying(answer["nodes"])
    head = "up" if staying else _stop_head(cluster)
    return {"address": cluster.address, "nodes": answer["nodes"], "head": head, "sessions": sessions}


def _find_staying(nodes: Sequence[dict[str, Any]]) -> list[str]:
    return [node["name"] for node in nodes if node["state"] in ("up", "leaving")]


def _stop_head(cluster: Cluster) -> str:
    """`left`; `up` if it did not end; `foreign` if `cluster head` did not start it, so it is the user's own."""
    if not ask_scheduler(cluster, "sr_stop", head=True, force=False)["ends"]:
        return "foreign"
    deadline = time.monotonic() + HEAD_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            check_reachable(cluster)
        except InputError:
            return "left"
        time.sleep(LOOK_S)
    return "up"


def _describe_busy(busy: Sequence[dict[str, Any]]) -> str:
    named = []
    for each in busy:
        session_id, _, key = each["job"].partition("/")
        named.append(f"task {key.partition('/')[0]} of session {session_id} on {each['node']}")
    return (
        f"{len(busy)} jobs still run: {name_some(named, NAMED)}; wait for them, or cancel the sessions; "
        "with --force the jobs are killed, and their tasks are lost"
    )
