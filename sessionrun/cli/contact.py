"""That a session has no contact with a node, or with the head, of its cluster, as lines for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sessionrun.cli.render import escape_line, local_time
from sessionrun.model.times import parse_time


def contact_lines(view: Mapping[str, Any]) -> list[str]:
    """What has no contact, for how long, and when its lease ends."""
    return [_word(silence, time.time()) for silence in view["no_contact"]]


def cancel_lines(view: Mapping[str, Any], tasks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What becomes of tasks that are to stop and whose node cannot be told."""
    for silence in view["no_contact"]:
        node = silence["node"]
        names = [
            task["id"]
            for task in tasks
            if task["status"] != "completed" and task["node"] is not None and node in (None, task["node"])
        ]
        if names:
            yield _word(silence, time.time())
            yield escape_line(
                f"{', '.join(names)}: the order to stop waits for contact; without contact the node itself ends "
                f"the job when its lease ends, at the latest at {local_time(silence['lease_ends_at'])}"
            )


def _word(silence: Mapping[str, Any], now: float) -> str:
    node, left_s = silence["node"], parse_time(silence["lease_ends_at"]) - now
    since = f"{max(0.0, now - parse_time(silence['since'])):.0f} s"
    over = f"ended {-left_s:.0f} s ago" if left_s < 0 else f"ends in {left_s:.0f} s"
    if node is None:
        return f"No contact with the cluster's head for {since}; if it is gone, the lease of its nodes {over}"
    return escape_line(f"No contact with node {node} for {since}; its lease {over}")
