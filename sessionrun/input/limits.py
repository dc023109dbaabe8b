"""How large, how deep and how odd an input may be, and how a breach of that is told.

Shared by the strict parsers; must not know any format.
"""

from __future__ import annotations

import re
from typing import Final

MAX_INPUT_BYTES: Final = 64 * 1024 * 1024
MAX_DEPTH: Final = 64
MAX_INTEGER: Final = 2**53
"""Beyond it, JSON readers that hold numbers as doubles (most of them) silently change the value."""

TOO_DEEP: Final = f"nesting deeper than {MAX_DEPTH} levels"
_TOO_LARGE: Final = "{} is out of range: whole numbers lie within 2^53 of 0; quote it if it is text"
NOT_FINITE: Final = "{} is not a finite number"
TWICE: Final = "key {} is given twice; keep one"
HALF_CHARACTER: Final = "text holds half of a surrogate pair (\\ud800 to \\udfff); write the whole character"

_MAX_DIGITS: Final = len(str(-MAX_INTEGER))
_SHOWN: Final = 60
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


class Breach(Exception):
    """The text breaks a rule of its format or of ours, at `line` and `column` (both from 1; None: not known)."""

    def __init__(self, line: int | None, column: int | None, problem: str) -> None:
        places = (("line", line), ("column", column))
        where = ", ".join(f"{name} {number}" for name, number in places if number is not None)
        super().__init__(f"{where}: {problem}" if where else problem)
        self.line = line
        self.column = column
        self.problem = problem


def read_integer(digits: str) -> int:
    """A whole number of JSON or YAML.

    Raises:
        Breach: it is out of range.
    """
    # the length first: converting very long numbers takes quadratic time
    if len(digits) > _MAX_DIGITS or abs(number := int(digits)) > MAX_INTEGER:
        raise Breach(None, None, _TOO_LARGE.format(_shorten(digits)))
    return number


def read_finite(digits: str) -> float:
    """A number with a fraction or an exponent.

    Raises:
        Breach: it is none, or infinite.
    """
    number = float(digits)
    if not abs(number) < float("inf"):
        raise Breach(None, None, NOT_FINITE.format(_shorten(digits)))
    return number


def _shorten(digits: str) -> str:
    return digits if len(digits) <= 40 else digits[:40] + "..."


def quote(text: str) -> str:
    """Show foreign text inside a message: quoted, escaped, on one line, not long."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    if shown.isprintable() and '"' not in shown and "\\" not in shown:
        return f'"{shown}"'
    return '"' + shown.replace('"', '\\"').encode("unicode_escape", "backslashreplace").decode() + '"'


def plain(text: str) -> str:
    """Foreign text as it is when it fits a message, else `quote`d: for names that were typed."""
    return text if text.isprintable() and len(text) <= 4096 else quote(text)


def has_half_character(text: str) -> bool:
    """Whether the text cannot be encoded: it holds a surrogate without its other half."""
    return _SURROGATE.search(text) is not None
