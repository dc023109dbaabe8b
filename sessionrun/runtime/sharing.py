"""Shares limits with the user's other sessions: writes what this session met, reads what they met.

Our own holds are written to the account's file (see `accounts`).  What others wrote there becomes events, which
the supervisor records: the journal alone says what a session knew.  There is no tick: a look costs one stat of the
directory before a decision, and the files are read where that has changed.  At the end of a limit each session
sends a trial of its own.

A failure here is logged once and never harms the session: it then knows its own limits only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from sessionrun.engine.providers import SAME_S
from sessionrun.engine.state import Provider, State
from sessionrun.model.events import Event, LimitHeard
from sessionrun.model.spec import PROVIDER_PREFIX, SessionSpec
from sessionrun.runtime.accounts import MAX_TEXT, Limit, find_files, load_limit, write_limit
from sessionrun.store.session import SessionDir

STALE_S: Final = 3600.0
"""So long after its end the file of a limit is removed."""

_COARSE_S: Final = 2.0
"""Within so long after a change of a directory another one may leave it with the same time (see FAT)."""

_SHOWN: Final = 8


class LimitSharing:
    """The part of one session in what all sessions of its user know of their accounts."""

    def __init__(
        self, session: SessionDir, spec: SessionSpec, environ: Mapping[str, str], log: Callable[[str], None]
    ) -> None:
        self._session_id = spec.session_id
        self._environ, self._log = environ, log
        self._agents = spec.agents
        self._files = find_files(spec, environ)
        self._told: dict[str, float] = {}
        self._seen: tuple[int, int] | None = None
        self._looked_at = 0.0
        self._complaint = ""

    def hear(self, state: State, at: float, mono: float) -> list[Event]:
        """Tell what is new here, and return what is new elsewhere, to be recorded; `at` is wall time."""
        if len(state.spec.agents) != len(self._agents):  # agents are added, and never changed or removed
            self._agents, self._files = state.spec.agents, find_files(state.spec, self._environ)
            self._seen = None
        if not self._files or state.ended is not None:
            return []
        try:
            for provider, known in state.providers.items():
                if provider in self._files:
                    self._tell(state, provider, known, at)
            return self._listen(state, at) if self._has_changed(at) else []
        except Exception as error:  # whatever it is, the session goes on
            self._complain(error)
            return []

    def _tell(self, state: State, provider: str, known: Provider, at: float) -> None:
        """Write down a limit that this session met."""
        is_due = known.until_at is None or known.until_at <= at
        if (
            provider not in state.holds
            or known.heard is not None
            or is_due
            or self._told.get(provider) == known.met_at
        ):
            return
        self._told[provider] = known.met_at
        limit = Limit(
            provider=provider.removeprefix(PROVIDER_PREFIX)[:MAX_TEXT],
            effect=known.effect,
            reason=state.holds[provider].reason[:MAX_TEXT],
            until_at=known.until_at or 0.0,
            met_at=known.met_at,
            session=self._session_id,
            strikes=max(1, known.strikes),
        )
        write_limit(self._files[provider], limit, at)

    def _listen(self, state: State, at: float) -> list[Event]:
        events: list[Event] = []
        for provider, path in self._files.items():
            limit = load_limit(path, at)
            if limit is not None and limit.until_at + STALE_S < at:
                path.unlink(missing_ok=True)
            elif limit is not None and (news := find_news(state, provider, limit, at)) is not None:
                events.append(news)
        return events

    def _has_changed(self, at: float) -> bool:
        """Whether a file was written since the last look, or may have been."""
        folder = next(iter(self._files.values())).parent
        try:
            inode = os.stat(folder)
        except OSError:
            self._seen = None
            return False
        seen = (inode.st_ino, inode.st_mtime_ns)
        changed = seen != self._seen or self._looked_at <= inode.st_mtime + _COARSE_S
        if changed:
            self._seen, self._looked_at = seen, at
        return changed

    def _complain(self, error: Exception) -> None:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else repr(error)
        complaint = f"limits are not shared with other sessions: {why}"
        if self._complaint != complaint:
            self._log(complaint)
        self._complaint = complaint


def find_news(state: State, provider: str, limit: Limit, at: float) -> LimitHeard | None:
    """What a session learns from an account's file at a wall time; None: nothing new."""
    known, hold = state.providers.get(provider), state.holds.get(provider)
    if limit.until_at <= at or (hold is not None and hold.until is None):  # the second only a request ends
        return None
    if known is not None and limit.met_at <= known.met_at:
        return None  # after a release a limit may be met that ends earlier: the last that was met counts
    if hold is not None and known is not None and abs(limit.until_at - (known.until_at or 0.0)) <= SAME_S:
        return None
    reason = f"{limit.reason} (met by session {limit.session[:_SHOWN]})"
    return LimitHeard(provider, limit.effect, reason, limit.until_at, limit.met_at, limit.strikes, limit.session)
