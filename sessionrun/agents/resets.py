"""When a limit ends: the times that agents and model servers write into their messages, as epoch seconds.

Pure: what time it is comes as an argument.  A clock time without a zone is the machine's local time.  Hostile
text never makes it raise; a time that cannot be meant is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Final

MAX_AHEAD_S: Final = 8 * 86400.0
"""A limit of a week, and a day for clocks that differ."""

_JUST_NOW_S: Final = 300.0
"""A clock time that passed this little ago is meant as past, not as tomorrow's."""

_LOOKED_AT: Final = 16 * 1024
_LATEST: Final = 253_000_000_000.0
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}

# Words, not `re.compile`: `re` compiles a pattern, and keeps it, when it is used; a good run uses none.
# "Claude AI usage limit reached|1755615600"; {"resets_at": 1777936568}: claude, codex
_EPOCH: Final = r"(?i)reached\|(\d{10,13})\b|\bresets?_?at\\?[\"']?\s*[:=]\s*\\?[\"']?(\d{10,13})\b"
# {"resets_in_seconds": 13872}: codex; a Retry-After header; "retry_after": 30
_SECONDS: Final = (
    r"(?i)\b(?:resets_in_seconds|retry[-_ ]after(?:[-_](?:seconds|secs?))?)\\?[\"']?\s*[:=]\s*\\?[\"']?"
    r"(\d{1,9}(?:\.\d{1,9})?)(?:s\b|\\?[\"'}\s,]|\Z)"
)
# Google's RetryInfo and "Please retry in 12.5s": wrong where the quota is one of a day
_RETRY_DELAY: Final = (
    r"(?i)(?:retryDelay\\?[\"']?\s*[:=]\s*\\?[\"']?|please retry in )"
    r"((?:\d{1,9}(?:\.\d{1,12})?(?:ms|[smhd])){1,4})\b"
)
_PER_DAY: Final = r"(?i)PerDay|per\s+day|daily"
# "try again in 3 days 5 hours 2 minutes", "reset after 8h44m7s", "retrying in 6h16m"
_AMOUNT: Final = (
    r"\d{1,6}(?:\.\d{1,12})?\s?(?:weeks?|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?|ms|[smhdw])(?![a-z])"
)
_IN: Final = (
    r"(?i)\b(?:try again|retry(?:ing)?|resets?|available(?: again)?)\s+(?:in|after)\s+(?:about\s+)?"
    rf"({_AMOUNT}(?:,?\s?(?:and\s)?{_AMOUNT}){{0,4}})"
)
_PART: Final = r"(?i)(\d{1,6}(?:\.\d{1,12})?)\s?(ms|[wdhms])"
_WHEN: Final = r"(?i)\b(?:resets?|try again|retry|available(?: again)?)(?:_?time_?stamp)?(?: (?:at|on|until))?"
# "quotaResetTimeStamp": "2025-10-20T19:14:08Z"; "You will regain access on 2026-12-01 at 00:00 UTC": Anthropic
_ISO: Final = (
    r"(?i)(?:reset[\w \\\"':=]{0,24}?|regain access on )"
    r"(\d{4}-\d\d-\d\d(?:[T ]| at )\d\d:\d\d(?::\d\d)?)(?:\.\d{1,9})?\s?(Z|UTC|[+-]\d\d:?\d\d)"
)
# "resets 3:30am (Asia/Calcutta)", "resets Jan 30, 11am (UTC)", "try again at Jul 5th, 2026 8:19 PM"
_CLOCK: Final = (
    _WHEN
    + r" (?:(?P<month>[a-z]{3})[a-z]{0,6}\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,?(?: (?P<year>\d{4}))?(?: at)? )?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?\s?(?P<half>[ap]m)?(?:\s?\(?(?P<zone>[A-Za-z]+(?:/[A-Za-z_+-]+){1,2}|UTC|GMT)\)?)?"
)


def find_reset(text: str, now: float) -> float | None:
    """The time (epoch seconds) at which the text says that a limit ends; None without one that can be meant.

    Args:
        text: the words of a failure.
        now: epoch seconds; a time that is past, or more than `MAX_AHEAD_S` ahead, counts as none.
    """
    looked_at = text[-_LOOKED_AT:]
    for search in _SEARCHES:
        for at in _candidates(search, looked_at, now):
            if (checked := check_reset(at, now)) is not None:
                return checked
    return None


def check_reset(at: float | None, now: float) -> float | None:
    """A stated end of a limit, epoch seconds or milliseconds; None when it cannot be meant."""
    if at is None or not 0 <= now < _LATEST:
        return None
    if at > 1e11:
        at /= 1000
    return float(at) if now < at <= now + MAX_AHEAD_S else None


def _candidates(search: Callable[[str, float], Iterator[float]], text: str, now: float) -> Iterator[float]:
    try:
        yield from search(text, now)
    except (ValueError, OverflowError, OSError):
        return  # no date, or one beyond what the system's calendar knows


def _find_epoch(text: str, now: float) -> Iterator[float]:
    for match in re.finditer(_EPOCH, text):
        yield float(match.group(1) or match.group(2))


def _find_seconds(text: str, now: float) -> Iterator[float]:
    for match in re.finditer(_SECONDS, text):
        yield now + float(match.group(1))


def _find_iso(text: str, now: float) -> Iterator[float]:
    for match in re.finditer(_ISO, text):
        zone = match.group(2).upper().replace("UTC", "Z").replace("Z", "+00:00")
        zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
        yield datetime.fromisoformat(match.group(1).replace(" at ", "T").replace(" ", "T") + zone).timestamp()


def _find_clock(text: str, now: float) -> Iterator[float]:
    for match in re.finditer(_CLOCK, text):
        at = _read_clock(match, now)
        if at is not None:
            yield at


def _find_wait(text: str, now: float) -> Iterator[float]:
    per_day = re.search(_PER_DAY, text) is not None
    for match in re.finditer(_IN, text):
        if per_day and match.group(0).lower().startswith("retry"):
            continue
        yield now + _seconds_of(match.group(1))


def _find_retry_delay(text: str, now: float) -> Iterator[float]:
    if not re.search(_PER_DAY, text):
        for match in re.finditer(_RETRY_DELAY, text):
            yield now + _seconds_of(match.group(1))


_SEARCHES: Final = (_find_epoch, _find_iso, _find_seconds, _find_clock, _find_retry_delay, _find_wait)
"""In the order in which they are believed."""


def _seconds_of(amount: str) -> float:
    return sum(float(number) * _UNIT_S[unit.lower()] for number, unit in re.findall(_PART, amount))


def _read_clock(match: re.Match[str], now: float) -> float | None:
    """The next such time after now; None where a word is not a month or a zone, or the number may be anything."""
    hour, minute, half = int(match["hour"]), int(match["minute"] or 0), (match["half"] or "").lower()
    if not half and match["minute"] is None:
        return None
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    zone = _zone_of(match["zone"])
    if match["zone"] and zone is None:
        return None
    today = datetime.fromtimestamp(now, zone)
    clock = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if match["month"] is None:
        at = clock.timestamp()
        return at if at > now - _JUST_NOW_S else (clock + timedelta(days=1)).timestamp()
    if match["month"].lower() not in _MONTHS:
        return None
    dated = clock.replace(
        year=int(match["year"] or today.year),
        month=_MONTHS.index(match["month"].lower()) + 1,
        day=int(match["day"]),
    )
    if match["year"] is None and dated.timestamp() < now - 180 * 86400:
        dated = dated.replace(year=dated.year + 1)
    return dated.timestamp()


def _zone_of(name: str | None) -> tzinfo | None:
    """The zone of that name; None for the local one, and for a name that this system does not know."""
    if name is None:
        return None
    if name.upper() in ("UTC", "GMT"):
        return timezone.utc
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
