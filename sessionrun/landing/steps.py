"""Settles how the work of a session lands by itself."""

from __future__ import annotations

import shlex
from typing import Final

from sessionrun.client.planning.assemble import Draft
from sessionrun.input.plan import LandingWish
from sessionrun.input.rows import BY_NAME
from sessionrun.model.errors import InputError
from sessionrun.model.spec import Landing

GATE_TIMEOUT_S: Final = 3600.0
"""How long a gate may take where nothing else is said."""


def settle_landing(draft: Draft) -> Draft:
    """How the work of the session lands by itself: the command line wins over the plan.

    Raises:
        InputError: options without landing, no worktrees, or no such branch.
    """
    given, wish, repository = draft.options.given, draft.plan.landing, draft.spec.repository
    if draft.into is not None:
        return draft  # it lands as it was launched
    if not given.get("land", wish is not None and wish.lands):
        if draft.plan.feed is not None:
            return draft.remark(f"nothing lands by itself: {_word_merge(draft)}")
        lost = next((name for name in ("land_into", "gates", "mends") if name in given), None)
        if lost is not None:
            raise InputError(f"{BY_NAME[lost].spell()} needs --land")
        return draft
    if repository is None:
        raise InputError("land needs tasks with a worktree: add --worktree")
    from sessionrun.landing.target import find_target  # few sessions land, and this imports all that git needs

    wish = wish or LandingWish()
    timeout_s = GATE_TIMEOUT_S if wish.gate_timeout_s is None else wish.gate_timeout_s
    target = find_target(repository, given.get("land_into", wish.into))
    gates, mends = given.get("gates", wish.gates), given.get("mends", wish.mends)
    return draft.settle(landing=Landing(target, gates, timeout_s or None, wish.batch, mends, wish.sandbox))


def _word_merge(draft: Draft) -> str:
    """The command that lands the work as the session would: with its gates."""
    wish = draft.plan.landing or LandingWish()
    gates = draft.options.given.get("gates", wish.gates)
    words = ["sessionrun", "merge", draft.spec.session_id[:8]]
    words += [word for gate in gates for word in ("--gate", gate)]
    words += ["--gate-timeout", f"{wish.gate_timeout_s:g}"] if gates and wish.gate_timeout_s else []
    return shlex.join(words)
