"""Reads amounts of memory and room on the disk as people write them, in bytes.

Pure: one reading for plans, settings and options.
"""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)


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
    return f"{amount / 1024**power:.3g}{' KMGT'[power].strip()}"
