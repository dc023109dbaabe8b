"""Settles what a plan and the command line of `run` say about landing."""

from __future__ import annotations

from typing import Final, NamedTuple

from sessionrun.dialects.plan import LandingWish
from sessionrun.model.errors import InputError
from sessionrun.model.places import Repository
from sessionrun.model.spec import Landing

GATE_TIMEOUT_S: Final = 3600.0
"""How long a gate may take where nothing else is said."""


class AskedLand(NamedTuple):
    """What the command line of `run` says about landing; without `land_into`: on the branch of the session."""

    land: bool = False
    land_into: str | None = None
    gates: tuple[str, ...] = ()
    mends: int | None = None


def settle_landing(wish: LandingWish | None, asked: AskedLand, repository: Repository | None) -> Landing | None:
    """How the work of the session lands by itself; None: it does not.

    Args:
        wish: what the plan says.
        asked: what the command line says; it wins over the plan.
        repository: where the session begins.

    Raises:
        InputError: options without landing, no worktrees, or no such branch.
    """
    if wish is None and not asked.land:
        given = {"--land-into": asked.land_into, "--gate": asked.gates or None, "--mends": asked.mends}
        lost = next((option for option, value in given.items() if value is not None), None)
        if lost is not None:
            raise InputError(f"{lost} needs --land")
        return None
    if repository is None:
        raise InputError("land needs tasks with a worktree: add --worktree")
    from sessionrun.landing.target import find_target  # few sessions land, and this imports all that git needs

    wish = wish or LandingWish()
    timeout_s = GATE_TIMEOUT_S if wish.gate_timeout_s is None else wish.gate_timeout_s
    target = find_target(repository, asked.land_into or wish.into)
    mends = wish.mends if asked.mends is None else asked.mends
    return Landing(target, asked.gates or wish.gates, timeout_s or None, wish.batch, mends, wish.sandbox)
