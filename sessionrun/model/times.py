"""Times as readers see them."""

from __future__ import annotations

from typing import Final

END_OF_TIME: Final = 253370764800
"""The first time that no calendar has, in seconds since the epoch."""


def format_time(at: float | None) -> str | None:
    """Seconds since the epoch as ISO 8601 in UTC, to the millisecond.

    Raises:
        ValueError: no calendar has that time.
    """
    if at is None:
        return None
    from datetime import datetime, timezone  # a poll imports this module for its constant alone

    if not 0 <= at < END_OF_TIME:
        raise ValueError(f"there is no time {at}")
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(at: str) -> float:
    """An ISO time as seconds since the epoch; without an offset it is local time.

    Raises:
        ValueError: it is not an ISO time.
    """
    from datetime import datetime

    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()
