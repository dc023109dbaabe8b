"""The work of a LAND: one turn at the slot."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.private import open_fence
from sessionrun.landing.history import load_history
from sessionrun.landing.queue import Queue
from sessionrun.landing.records import Fate, Hold, LandRequest, Report
from sessionrun.landing.turn import land as take_turn
from sessionrun.model.errors import SessionrunError
from sessionrun.model.landings import LAND_FAILED

MEND_LIMIT_S: Final = 600.0
"""So long a LAND that only mends waits for another landing: that one has mended the target as it began."""


def land(request: LandRequest, folder: Path) -> Report:
    """Land what is asked for, as far as it goes.  A LAND that was killed is mended by the next one.

    If something fails on the way, what landed before that counts, and all else is held.
    """
    unwanted = tuple(replace(entry, wanted=False) for entry in request.entries)
    asked = replace(request, entries=unwanted) if request.only_mend else request
    limit_s = MEND_LIMIT_S if request.only_mend else None
    try:
        report = take_turn(asked, lambda line: print(line, flush=True), limit_s=limit_s)
    except (SessionrunError, OSError) as error:
        if getattr(error, "signal", None) == signal.SIGKILL:
            raise
        hold = Hold(LAND_FAILED, " ".join(str(error).split()))
        landed = _find_landed(request)
        done = {fate.task for fate in landed}
        left = [entry.task for entry in request.entries if entry.wanted and entry.task not in done]
        held = (Fate(task, "held", hold.reason_class, hold.reason) for task in left)
        return Report("", "", (*landed, *held), hold)  # where the target stands is not known
    for remark in report.remarks:
        print(remark, flush=True)
    return replace(report, fates=tuple(_find_landed(request))) if request.only_mend else report


def _find_landed(request: LandRequest) -> list[Fate]:
    """What the log of the landing knows to have landed, of what is wanted."""
    try:
        history = load_history(Path(request.folder))[0]
        with open_fence(request.repository) as fence:
            entries = Queue(request, fence.main(), history).entries
    except (SessionrunError, OSError):
        return []
    known = [(entry, history.landed.get(entry.task)) for entry in entries if entry.wanted]
    return [Fate(entry.task, "landed", commit=one[1]) for entry, one in known if one and one[0] == entry.tip]
