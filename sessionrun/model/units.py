"""Time spans and sizes as people write them, read in one way wherever they stand; and moments to come.  Pure."""

from __future__ import annotations

import re
from typing import Final

from sessionrun.model.words import parse_time

MAX_DURATION_S: Final = 10**8
"""About three years; clocks and timers of some systems fail on much more."""

MAX_AGE_S: Final = 10**10

_UNITS: Final = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_SPAN: Final = re.compile(r"(?:\d+[wdhms])*(?:\d+(?:\.\d+)?|\.\d+)[wdhms]?", re.ASCII)
_PART: Final = re.compile(r"([\d.]+)([wdhms]?)", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds, from text such as ``90``, ``90s``, ``10m``, ``1h30m``, ``1.5h``, ``2d`` or ``1w``.

    A number alone is seconds.  Units go from large to small, each once, and only the last number may have a
    fraction.

    Raises:
        ValueError: what it must be; how it was written is the caller's to say.
    """
    seconds, _ = _parse_span(text)
    if seconds is None:
        raise ValueError('must be seconds or text such as "90s", "15m", "1h30m", "2d"')
    return check_duration(seconds)


def check_duration(seconds: float) -> float:
    """The same seconds, where clocks and timers can count so far.

    Raises:
        ValueError: they cannot.
    """
    if not 0 <= seconds <= MAX_DURATION_S:
        raise ValueError(f"must lie between 0 and {MAX_DURATION_S} seconds")
    return float(seconds)


def parse_age(text: str) -> float:
    """How long ago, in seconds: as a duration, but with a unit; only 0 is the same in all of them.

    Raises:
        ValueError: what is wrong with it.
    """
    seconds, has_unit = _parse_span(text)
    if seconds and not has_unit:
        raise ValueError(f"{text}: say the unit: {text}d, {text}h or {text}m")
    if seconds is None or seconds > MAX_AGE_S:
        raise ValueError(f"{text!r} is not an age such as 7d, 12h, 30m or 1h30m")
    return seconds


def _parse_span(text: str) -> tuple[float | None, bool]:
    """Seconds, None if it is no such text; and whether a unit was written."""
    text = text.strip()
    if len(text) > 40 or not _SPAN.fullmatch(text):
        return None, False
    parts = _PART.findall(text)
    factors = [_UNITS.get(unit, 0) for _, unit in parts]
    if factors != sorted(set(factors), reverse=True) or (len(parts) > 1 and not factors[-1]):
        return None, False
    seconds = sum(float(number) * (factor or 1) for (number, _), factor in zip(parts, factors, strict=True))
    return seconds, factors[-1] > 0


_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)

MAX_LOAD: Final = 10.0**6


def parse_size(text: str) -> int:
    """Bytes, from text such as ``500M``, ``20G`` or ``1.5T``; a number alone is bytes.

    Raises:
        ValueError: it is no such text.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 500M or 20G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def format_size(amount: int) -> str:
    """The same for people, in the largest unit of which there is at least one."""
    power = min(4, max(0, (amount.bit_length() - 1) // 10))
    return f"{amount / 1024**power:.4g}{' KMGT'[power].strip()}"


def parse_coming(text: str, now: float) -> float:
    """A moment to come: the next time that it is ``18:30``, a date with a time, or ``+`` and a duration.

    Raises:
        ValueError: it is none of these, or over.
    """
    from datetime import datetime, time, timedelta

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
