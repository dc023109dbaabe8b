"""Shares limits with the user's other sessions: writes what this session met, reads what they met.

Our own holds, the claim of our canary and the end of a hold are written to the account's file (see `accounts`);
what others wrote there becomes events (see `hearsay`), which the supervisor records: the journal alone says what a
session knew.  There is no tick: a look costs one stat of the directory before a decision, and the files are read
where that has changed or a hold is due.  A waiting session names itself in the file, and gets a byte when the hold
ends.  While the canary of another session works we look every `LOOK_S`: a killed session sends no byte.

A failure here is logged once and never harms the session: it then knows its own limits only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.engine.providers import CANARY_S
from sessionrun.engine.state import Provider, State, provider_of
from sessionrun.model.events import Event, LimitHeard
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import PROVIDER_PREFIX, SessionSpec
from sessionrun.runtime.accounts import MAX_TEXT, MAX_WAITING, Canary, Limit, change_limit, find_files, load_limit
from sessionrun.runtime.hearsay import find_news, merge_limits
from sessionrun.store.inbox import ring
from sessionrun.store.session import SessionDir

LONGEST_TRY_S: Final = 2 * CANARY_S
"""A canary that has claimed so long ago and still says nothing is stopped, or stuck: another one may go."""

PATIENCE_S: Final = 1.0
"""How long the lock is waited for; after it was once in vain, not at all."""

_COARSE_S: Final = 2.0
"""Within so long after a change of a directory another one may leave it with the same time (see FAT)."""


class LimitSharing:
    """The part of one session in what all sessions of its user know of their accounts."""

    def __init__(
        self, session: SessionDir, spec: SessionSpec, environ: Mapping[str, str], log: Callable[[str], None]
    ) -> None:
        self._us = str(session.path.absolute())
        self._session_id = spec.session_id
        self._files = find_files(spec, environ)
        self._log = log
        self._told: dict[str, float] = {}
        self._freed: dict[str, float] = {}
        self._claims: dict[str, str] | None = None
        self._seen: tuple[int, int] | None = None
        self._looked_at = 0.0
        self._patience_s = PATIENCE_S
        self._complaint = ""

    def hear(self, state: State, at: float, mono: float) -> list[Event]:
        """Tell what is new here, and return what is new elsewhere, to be recorded; `at` is wall time."""
        if not self._files or state.ended is not None:
            return []
        try:
            for provider, known in state.providers.items():
                if provider in self._files:
                    self._tell(state, provider, known, at)
            return self._listen(state, at, mono)
        except Exception as error:  # whatever it is, the session goes on
            self._complain(error)
            return []

    def claim(self, state: State, key: JobKey, at: float, mono: float) -> Event | None:
        """A WORK job is about to start.  If it would go first of its provider: for all sessions, or not at all."""
        task = state.tasks[key.task]
        provider = provider_of(state, task)
        known = state.providers.get(provider)
        if key.phase != "work" or known is None or not known.probing or provider not in self._files:
            return None
        events: list[Event] = []

        def change(limit: Limit | None) -> Limit | None:
            news = None if limit is None else self._find_news(state, provider, limit, at, mono)
            if limit is None or limit.opened_at is not None:
                return limit
            if isinstance(news, LimitHeard):
                events.append(replace(news, task=key.task))
                return self._enlist(limit)
            return replace(limit, canary=Canary(self._session_id, self._us, key.task, at))

        limit = self._change(provider, at, change)
        if limit is not None and self._is_ours(limit.canary):
            self._load_claims(at)[provider] = key.task
        return events[0] if events else None

    # --- telling ---

    def _tell(self, state: State, provider: str, known: Provider, at: float) -> None:
        """Write down what this session found out: a limit, its end, that it was released."""
        claims, is_held = self._load_claims(at), provider in state.holds
        is_due = known.until_at is None or known.until_at <= at
        if is_held and known.heard is None and not is_due and self._told.get(provider) != known.met_at:
            self._told[provider] = known.met_at
            claims.pop(provider, None)
            mine = self._describe(state, provider, known)
            self._change(provider, at, lambda limit: merge_limits(limit, mine, at))
        elif provider in claims and not (known.probing and known.canary == claims[provider]):
            del claims[provider]
            self._end_canary(provider, at, passed=not is_held and not known.probing)
        elif known.freed and self._freed.get(provider) != known.met_at:
            self._freed[provider] = known.met_at
            self._free(provider, known, at)

    def _describe(self, state: State, provider: str, known: Provider) -> Limit:
        return Limit(
            provider=provider.removeprefix(PROVIDER_PREFIX)[:MAX_TEXT],
            effect=known.effect,
            reason=state.holds[provider].reason[:MAX_TEXT],
            until_at=known.until_at or 0.0,
            met_at=known.met_at,
            session=self._session_id,
            strikes=max(1, known.strikes),
            waiting=(self._us,),
        )

    def _end_canary(self, provider: str, at: float, *, passed: bool) -> None:
        """Our canary has its answer, or gave up: all may go, or another one may try."""
        waiting: list[str] = []

        def change(limit: Limit | None) -> Limit | None:
            if limit is None or not self._is_ours(limit.canary):
                return limit
            waiting.extend(limit.waiting)
            if passed:
                return replace(limit, canary=None, opened_at=at, waiting=())
            return replace(limit, canary=None)

        self._change(provider, at, change)
        self._ring(waiting)

    def _free(self, provider: str, known: Provider, at: float) -> None:
        """The user has released the hold as this session knew it: one task of any session may try now."""
        waiting: list[str] = []

        def change(limit: Limit | None) -> Limit | None:
            if limit is None or limit.until_at <= at or limit.met_at > known.met_at:
                return limit
            waiting.extend(limit.waiting)
            return replace(limit, until_at=at)

        self._change(provider, at, change)
        self._ring(waiting)

    def _ring(self, waiting: list[str]) -> None:
        for folder in waiting:
            session = SessionDir(Path(folder))
            try:
                inode = os.lstat(session.wake_path)
            except OSError:
                continue
            if folder != self._us and stat.S_ISFIFO(inode.st_mode) and inode.st_uid == os.geteuid():
                ring(session)

    # --- listening ---

    def _listen(self, state: State, at: float, mono: float) -> list[Event]:
        changed, events = self._has_changed(at), []
        for provider in self._files:
            hold = state.holds.get(provider)
            is_due = hold is not None and hold.until is not None and hold.until <= mono
            limit = load_limit(self._files[provider], at) if changed or is_due else None
            if limit is not None and limit.is_stale(at):
                self._change(provider, at, lambda limit: limit)
            elif limit is not None and (news := self._find_news(state, provider, limit, at, mono)):
                events.append(news)
                if self._enlist(limit) != limit:
                    self._change(provider, at, lambda limit: limit and self._enlist(limit))
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

    def _find_news(self, state: State, provider: str, limit: Limit, at: float, mono: float) -> Event | None:
        return find_news(state, provider, limit, at, mono, is_tried=self._is_tried(limit.canary, at))

    def _is_tried(self, canary: Canary | None, at: float) -> bool:
        """Whether the canary of another session works; one whose session is dead does not."""
        if canary is None or self._is_ours(canary) or not -1.0 < at - canary.since_at < LONGEST_TRY_S:
            return False
        return SessionDir(Path(canary.folder)).is_alive()

    def _is_ours(self, canary: Canary | None) -> bool:
        return canary is not None and canary.folder == self._us

    # --- the file ---

    def _enlist(self, limit: Limit) -> Limit:
        """With us among those that are rung for."""
        if self._us in limit.waiting or limit.opened_at is not None or len(limit.waiting) >= MAX_WAITING:
            return limit
        return replace(limit, waiting=(*limit.waiting, self._us))

    def _load_claims(self, at: float) -> dict[str, str]:
        """The canaries of ours, by provider; a supervisor before us may have claimed one."""
        if self._claims is None:
            limits = {provider: load_limit(path, at) for provider, path in self._files.items()}
            canaries = {provider: limit.canary for provider, limit in limits.items() if limit is not None}
            self._claims = {
                name: canary.task for name, canary in canaries.items() if canary and self._is_ours(canary)
            }
        return self._claims

    def _change(self, provider: str, at: float, change: Callable[[Limit | None], Limit | None]) -> Limit | None:
        """What is in the file then; None also where it cannot be written."""
        try:
            limit = change_limit(self._files[provider], at, change, timeout_s=self._patience_s)
        except Exception as error:  # what was read, and what happens here, counts all the same
            self._patience_s = 0.0
            self._complain(error)
            return None
        self._patience_s, self._complaint = PATIENCE_S, ""
        return limit

    def _complain(self, error: Exception) -> None:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else repr(error)
        complaint = f"limits are not shared with other sessions: {why}"
        if self._complaint != complaint:
            self._log(complaint)
        self._complaint = complaint
