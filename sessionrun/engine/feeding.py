"""What the queue means for a session that takes its tasks from it: what is shown of it."""

from __future__ import annotations

from typing import Any, Final

from sessionrun.engine.state import State

TROUBLE: Final = "feed"
"""The hold of this name says what is wrong with the queue; no task waits for it."""


def project_feed(state: State) -> dict[str, Any] | None:
    """Where the tasks come from, and whether more may come; null for a session with all its tasks."""
    feed = state.spec.feed
    if feed is None:
        return None
    return {
        "queue": state.spec.source,
        "backend": feed.backend,
        "group": feed.group,
        "tasks": list(feed.chosen) or None,
        "watch": feed.watch,
        "open": state.feed_open,
        "held": state.held,
    }
