"""Where the tasks of a session come from, as a line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessionrun.cli.render import escape_line


def feed_lines(view: Mapping[str, Any]) -> list[str]:
    """The queue that feeds a session, and how long; nothing for a session with all its tasks."""
    feed = view.get("feed")
    if not feed:
        return []
    which = f", group {feed['group']}" if feed["group"] else ""
    which += f", only {', '.join(feed['tasks'])}" if feed["tasks"] else ""
    if not feed["open"]:
        until = "no more come"
    elif feed["held"]:
        until = f"held: {feed['held']}"
    else:
        until = "waits for more" if feed["watch"] else "until none is ready"
    return [escape_line(f"Queue: {feed['queue']}{which}; {until}")]
