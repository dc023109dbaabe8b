"""The work of a LAND: one turn at the slot."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.landing.history import load_history
from sessionrun.landing.records import (
    Fate,
    Gates,
    GateWalls,
    Hold,
    LandOrder,
    LandRequest,
    Report,
    follow_branches,
)
from sessionrun.landing.turn import land as take_turn
from sessionrun.model.errors import SessionrunError
from sessionrun.model.landings import LAND_FAILED
from sessionrun.walls.build import raise_if_any

MEND_LIMIT_S: Final = 600.0
"""So long a LAND that only mends waits for another landing: that one has mended the target as it began."""


def land(order: LandOrder, folder: Path) -> Report:
    """Land what is asked for, as far as it goes.  A LAND that was killed is mended by the next one.

    If something fails on the way, what landed before that counts, and all else is held.

    Raises:
        SessionrunError: git was killed.
    """
    request = order.request
    try:
        request = _follow(order, folder)
        asked = replace(request, entries=tuple(replace(entry, wanted=False) for entry in request.entries))
        limit_s = MEND_LIMIT_S if order.only_mend else None
        walls = raise_gates(request.gates)
        report = take_turn(
            asked if order.only_mend else request,
            lambda line: print(line, flush=True),
            limit_s=limit_s,
            walls=walls,
        )
    except (SessionrunError, OSError) as error:
        if getattr(error, "signal", None) == signal.SIGKILL:
            raise
        hold = Hold(LAND_FAILED, " ".join(str(error).split()))
        landed = _find_landed(request)
        done = {fate.task for fate in landed}
        left = [entry.task for entry in request.entries if entry.wanted and entry.task not in done]
        held = (Fate(task, "held", hold.reason_class, hold.reason) for task in left)
        return Report("", "", (*landed, *held), hold)  # where the target stands is not known
    return replace(report, fates=tuple(_find_landed(request))) if order.only_mend else report


def raise_gates(gates: Gates) -> GateWalls:
    """The walls that gates wish for.

    Raises:
        SessionrunError, OSError: they cannot be had here.
    """
    build = None if gates.environment is None else gates.environment.walls
    return GateWalls(raise_if_any(gates.walls), raise_if_any(build, builds=True))


def _follow(order: LandOrder, folder: Path) -> LandRequest:
    request = order.request
    return replace(request, entries=follow_branches(request.repository, request.entries, order.branches, folder))


def _find_landed(request: LandRequest) -> list[Fate]:
    """What the log of the landing knows to have landed, of what is wanted."""
    try:
        landed = load_history(Path(request.folder))[0].landed
    except (SessionrunError, OSError):
        return []
    known = [(entry, landed.get(entry.task)) for entry in request.entries if entry.wanted]
    return [Fate(entry.task, "landed", commit=one[1]) for entry, one in known if one and one[0] == entry.tip]
