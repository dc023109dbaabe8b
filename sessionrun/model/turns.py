"""The time limit of PREPARE, PARK and RELEASE counts from the turn that they wait for (see `runtime.jobs.job`)."""

from __future__ import annotations

from typing import Final

from sessionrun.model.keys import Phase
from sessionrun.model.spec import Limits

WORKSPACE_PHASES: Final[frozenset[Phase]] = frozenset(("prepare", "park", "release"))
"""What is done by our own code in the repository, with the time limit `workspace_timeout`."""

TURN_LOOKS: Final = 4
"""So often in its time a workspace job is looked at until it has its turn; from there on the time counts."""


def turn_deadline(limits: Limits, now: float, printed: int) -> float | None:
    """When a workspace job is looked at next (monotonic): it prints something (bytes) once it has its turn."""
    limit = limits.workspace_timeout_s
    if not limit:
        return None
    return now + (limit if printed else limit / TURN_LOOKS)
