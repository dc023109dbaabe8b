"""What a LAND is asked for; it answers what its landing came to (`landing.records.Report`)."""

from __future__ import annotations

from collections.abc import Mapping

from sessionrun.landing.records import LandRequest
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
