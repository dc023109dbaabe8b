"""The word that a mistyped one may mean.  Must not know what the words name."""

from __future__ import annotations

from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str:
    """A "did you mean" for a word that is close to a known one, else ""."""
    from difflib import get_close_matches

    close = get_close_matches(word[:80], list(known), n=1, cutoff=0.75)
    return f' (did you mean "{close[0]}"?)' if close else ""
