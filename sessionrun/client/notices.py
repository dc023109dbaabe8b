"""What a caller should know though nothing failed: Python's own warnings, which each door shows in its own way."""

from __future__ import annotations

import warnings


class SessionWarning(UserWarning):
    """Something that a caller of ours should be told: a damaged file, a limit, a setting without effect."""


_told: set[str] = set()


def begin() -> None:
    """Forget what was told: a new command begins."""
    _told.clear()


def notify(message: str) -> None:
    """Tell the caller, once in each command: a verb that waits looks many times.

    Whoever wants to catch or to count warnings uses the module `warnings`.
    """
    if message not in _told:
        _told.add(message)
        warnings.warn(message, SessionWarning, stacklevel=2)
