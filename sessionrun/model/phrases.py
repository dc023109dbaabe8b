"""Parts of sentences for people.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def name_some(names: Sequence[str], most: int) -> str:
    """Names for a sentence, at the most so many of them.

    >>> name_some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def suggest(word: str, known: Iterable[str]) -> str:
    """A "did you mean" for a word that is close to a known one, else ""."""
    from difflib import get_close_matches

    close = get_close_matches(word[:80], list(known), n=1, cutoff=0.75)
    return f' (did you mean "{close[0]}"?)' if close else ""
