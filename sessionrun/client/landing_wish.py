"""Settles what a plan and the command line of `run` say about landing."""

from __future__ import annotations

from typing import Final

from sessionrun.dialects.plan import LandingWish
from sessionrun.landing.target import find_target
from sessionrun.model.errors import InputError
from sessionrun.model.places import Repository
from sessionrun.model.spec import Landing

GATE_TIMEOUT_S: Final = 3600.0
"""How long a gate may take where nothing else is said."""


def settle_landing(
    wish: LandingWish | None,
    into: str | None,
    gates: tuple[str, ...],
    repository: Repository | None,
    *,
    asked: bool,
    mends: int | None = None,
) -> Landing | None:
    """How the work of the session lands by itself; None: it does not.

    Args:
        wish: what the plan says.
        into: the branch that the command line names; it wins over the plan.
        gates: the gates of the command line, in place of those of the plan.
        repository: where the session begins.
        asked: whether the command line asks for landing.
        mends: how many mends it asks for; None: as the plan says.

    Raises:
        InputError: options without landing, no worktrees, or no such branch.
    """
    if wish is None and not asked:
        if into is not None or gates or mends is not None:
            raise InputError(f"{'--land-into' if into else '--gate' if gates else '--mends'} needs --land")
        return None
    if repository is None:
        raise InputError("land needs tasks with a worktree: add --worktree")
    wish = wish or LandingWish()
    timeout_s = GATE_TIMEOUT_S if wish.gate_timeout_s is None else wish.gate_timeout_s
    target = find_target(repository, into or wish.into)
    return Landing(
        target, gates or wish.gates, timeout_s or None, wish.batch, wish.mends if mends is None else mends
    )
