"""What people may write of the machine's load and memory, and what it becomes; see `convert`."""

from __future__ import annotations

from typing import Any

from sessionrun.dialects.convert import Misfit, describe
from sessionrun.model.units import check_load, parse_size


def as_load(value: Any) -> float:
    """A load of the machine; 0 means that any is right."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return check_load(float(value))
    except (ValueError, OverflowError):
        pass
    raise Misfit(f"must be a load such as 8 or 7.5, not {describe(value)}")


def as_size(value: Any) -> int:
    """An amount of bytes: a whole number, or text with a unit; 0 means that any is right."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_size(value if isinstance(value, str) else "")
    except ValueError:
        raise Misfit(f'must be bytes or text such as "500M", "20G", not {describe(value)}') from None
