"""Kills of a session at random moments, and what its users do then."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from sessionrun.store.session import SessionDir

from .chain import Role, kill_at_once, kill_role
from .oracle import Figures
from .place import Place, wait_until

KILLS: Final = 8
"""A session's kills: so many deaths in a row without progress are what root and keeper put up with."""

PAUSE_S: Final = 0.12
HUNG_S: Final = 300.0
Choice = Callable[[random.Random], Sequence[Role]]
"""Who dies at the same moment."""


def kill_by_chance(
    place: Place, rng: random.Random, session: SessionDir, choose: Choice, *, may_lose: bool
) -> Figures:
    """Kill at random moments, until the session has ended; one that may lose its root is resumed by its users."""
    seen = Figures()

    def go_on() -> bool:
        if seen.kills.total() < KILLS:
            wait_until(lambda: has_ended(session), rng.uniform(0.0, PAUSE_S))
            for role in choose(rng):
                seen.kills[role] += kill_role(session.path, role)
        if may_lose and is_gone(session) and not has_ended(session):
            seen.resumed += resume_by(rng.randint(1, 3), place, session, seen)
        return has_ended(session)

    wait_until(go_on, HUNG_S)
    return seen


def resume_by(users: int, place: Place, session: SessionDir, seen: Figures) -> int:
    """Let so many users resume a session at once; of how many it was started is returned."""
    processes = [place.start_verb("resume", session.session_id) for _ in range(users)]
    said = [process.communicate(timeout=120) for process in processes]
    errors = [error for _, error in said if error]
    seen.wrong += [f"{session.session_id}: resume said {error}" for error in errors]
    started: int = sum(out.strip().endswith("goes on") for out, _ in said)
    if started > 1:
        seen.wrong.append(f"{session.session_id}: {started} users resumed it at once")
    return started


def load_outcome(session: SessionDir) -> dict[str, Any]:
    """Its published status, which is there."""
    status = session.load_status()
    assert status is not None
    return status


def has_ended(session: SessionDir) -> bool:
    """Whether its end is published."""
    status = session.load_status()
    return status is not None and status["ended_at"] is not None


def kill_all(session: SessionDir) -> None:
    """Kill root, keeper and supervisor until nobody is left; raises AssertionError when somebody always is."""
    wait_until(lambda: not kill_at_once(session.path) and is_gone(session), HUNG_S)
    assert is_gone(session)


def is_gone(session: SessionDir) -> bool:
    """Whether nobody runs it: all locks are free, now and a moment later."""
    return not session.is_alive() and not wait_until(session.is_alive, 0.1)
