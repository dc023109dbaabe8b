"""Times as readers see them."""

from __future__ import annotations

from typing import Final

END_OF_TIME: Final = 253370764800
"""The first time that no calendar has, in seconds since the epoch."""

FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 9998
"""Within these years a time can be shown in any time zone."""


def is_time(text: str) -> bool:
    """Whether it is a time as status.json spells them, which can be shown in any time zone."""
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return moment.tzinfo is not None and FIRST_YEAR <= moment.year <= LAST_YEAR


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


def parse_coming(text: str, now: float) -> float:
    """A moment to come: the next time that it is ``18:30``, a date with a time, or ``+`` and a duration.

    Raises:
        ValueError: it is none of these, or over.
    """
    from datetime import datetime, time, timedelta

    from sessionrun.model.units import parse_duration

    if text.startswith("+"):
        return now + parse_duration(text[1:])
    if ":" in text[:3]:
        try:
            at = datetime.combine(datetime.fromtimestamp(now), time.fromisoformat(text.zfill(5)))
        except ValueError:
            raise ValueError(f"{text!r} is not a time such as 18:30") from None
        return (at if at.timestamp() > now else at + timedelta(days=1)).timestamp()
    try:
        moment = parse_time(text)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time such as 18:30, 2026-11-30T08:00 or +2h") from None
    if moment <= now:
        raise ValueError(f"{text} is over")
    return moment


def parse_time(at: str) -> float:
    """An ISO time as seconds since the epoch; without an offset it is local time.

    Raises:
        ValueError: it is not an ISO time.
    """
    from datetime import datetime

    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()
