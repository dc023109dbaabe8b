"""What a LAND is asked for, and what it answers; see `runtime.jobs.job`."""

from __future__ import annotations

from collections.abc import Mapping

from sessionrun.landing.records import Fate, Hold, LandRequest
from sessionrun.model.frozen import frozen


@frozen
class LandOrder:
    """Work that is to land.

    Attributes:
        request: as the room of landing takes it; the tip of each entry is the commit that its task left.
        branches: by task, the branch that may have gone on from there.
        only_mend: finish or put back what an earlier LAND left, and land nothing new.
    """

    request: LandRequest
    branches: Mapping[str, str]
    only_mend: bool = False


@frozen
class LandAnswer:
    """What became of the work.

    Attributes:
        fates: of each task whose work is decided, or held.
        hold: why work is held.
        remarks: what an earlier landing left, and a person has to look at.
    """

    fates: tuple[Fate, ...]
    hold: Hold | None = None
    remarks: tuple[str, ...] = ()
