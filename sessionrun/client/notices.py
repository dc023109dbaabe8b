"""Warnings for the caller when nothing failed: Python's own, so that each door shows them in its own way."""

from __future__ import annotations

import warnings


class SessionWarning(UserWarning):
    """A warning for the caller: a damaged file, a limit, a setting without effect."""


_told: set[str] = set()


def begin() -> None:
    """Forget which warnings were given: a new command begins."""
    _told.clear()


def notify(message: str, *, again: bool = False) -> None:
    """Warn the caller, once in each command: a verb that waits looks many times.

    A program that calls us is one long command, unless it calls `begin`.  With `again` the warning is given each
    time: the same words are about another thing.

    A program that wants to catch or to count warnings uses the module `warnings`.
    """
    if again or message not in _told:
        _told.add(message)
        warnings.warn(message, SessionWarning, stacklevel=2)
