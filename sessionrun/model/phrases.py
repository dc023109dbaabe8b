"""Parts of sentences for people.  Pure."""

from __future__ import annotations

from collections.abc import Sequence


def name_some(names: Sequence[str], most: int) -> str:
    """Names for a sentence, at the most so many of them.

    >>> name_some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
