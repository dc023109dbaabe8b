"""Compares an account's file with what a session knows: what the session learns from it, and what it adds.

Nothing here reads a clock or a file: both are handed in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sessionrun.engine.providers import SAME_S
from sessionrun.engine.state import State
from sessionrun.model.events import LimitHeard, LimitOver
from sessionrun.model.reasons import Effect
from sessionrun.runtime.accounts import MAX_WAITING, Limit

LOOK_S: Final = 5.0
"""So often a session looks whether the canary of another one still lives."""

_SHOWN: Final = 8


def merge_limits(limit: Limit | None, mine: Limit, at: float) -> Limit:
    """What the file says after this session met a limit: of two ends the later one holds."""
    if limit is None:
        return mine
    if max(limit.met_at, limit.opened_at or 0.0) >= mine.met_at:
        return limit  # it is known, and perhaps over, already
    if limit.opened_at is not None or limit.until_at <= at:
        strikes = mine.strikes if limit.opened_at is not None else max(limit.strikes, mine.strikes)
        return replace(mine, strikes=strikes, waiting=_join(limit, mine))
    last = max(limit, mine, key=lambda either: either.until_at)
    effect: Effect = "limit" if "limit" in (limit.effect, mine.effect) else "backoff"
    strikes = max(limit.strikes, mine.strikes)
    return replace(
        last, effect=effect, strikes=strikes, met_at=mine.met_at, canary=None, waiting=_join(limit, mine)
    )


def find_news(
    state: State, provider: str, limit: Limit, at: float, mono: float, *, is_tried: bool
) -> LimitHeard | LimitOver | None:
    """Return the news for this session in an account's file; None: there are none.

    Args:
        state: of this session.
        provider: the resource.
        limit: what the file says.
        at: wall time.
        mono: the same moment, monotonic.
        is_tried: whether the canary of another session works now.
    """
    known, hold = state.providers.get(provider), state.holds.get(provider)
    if hold is not None and hold.until is None:
        return None  # only a request ends it
    left_s = 0.0 if hold is None or hold.until is None else hold.until - mono
    is_new = known is None or limit.met_at > known.met_at
    is_open = hold is None and not (known is not None and known.probing)
    if limit.opened_at is not None:
        waits = known is not None and (hold is not None or known.probing)
        return LimitOver(provider) if waits and known is not None and limit.opened_at >= known.met_at else None
    if limit.until_at > at:
        is_same = known is not None and abs((known.until_at or 0.0) - limit.until_at) <= SAME_S
        return _hear_limit(provider, limit) if (is_new if hold is None else not is_same) else None
    if is_tried:
        was_opened = is_open and not is_new
        return None if was_opened or 0.0 < left_s <= LOOK_S + SAME_S else _hear_canary(provider, limit, at)
    return _hear_limit(provider, limit) if (is_open and is_new) or left_s > SAME_S else None


def _hear_limit(provider: str, limit: Limit) -> LimitHeard:
    reason = f"{limit.reason} (met by session {limit.session[:_SHOWN]})"
    return LimitHeard(
        provider, limit.effect, reason, limit.until_at, limit.met_at, limit.strikes, session=limit.session
    )


def _hear_canary(provider: str, limit: Limit, at: float) -> LimitHeard:
    """To wait for a canary is not a reason to take another agent, so it counts as a moment."""
    canary = limit.canary
    who = f"task {canary.task} of session {canary.session[:_SHOWN]}" if canary else "another session"
    reason = f"{who} goes first after a limit"
    until_at = at + LOOK_S
    return LimitHeard(provider, "backoff", reason, until_at, limit.met_at, limit.strikes, session=limit.session)


def _join(limit: Limit, mine: Limit) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*mine.waiting, *limit.waiting)))[:MAX_WAITING]
