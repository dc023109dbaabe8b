"""Reads amounts of memory and of room on the disk as people write them, in bytes; and loads of a machine.

Pure: one reading for plans, settings and options.
"""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)


MAX_LOAD: Final = 10.0**6


def check_load(load: float) -> float:
    """The same load of a machine, where it is one.

    Raises:
        ValueError: it is not.
    """
    if not 0 <= load <= MAX_LOAD:
        raise ValueError(f"must lie between 0 and {MAX_LOAD:.0f}")
    return load


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
