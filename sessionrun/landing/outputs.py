"""What `merge` prints with `--json`, as shapes."""

from __future__ import annotations

from typing import Final, Literal

from sessionrun.client.shapes import only, several
from sessionrun.landing.records import Fate
from sessionrun.model.kinds import Count
from sessionrun.model.shown import Task

_LANDED: Final = {
    **only(Task, ("id", "num", "title", "branch")),
    **only(Fate, ("status", "reason_class", "commit", "files", "against")),
    **dict.fromkeys(("reason", "output", "group", "not_chosen"), str | None),
    "chosen": bool | None,
}
MERGED: Final = {
    "session_id": str,
    "target": str,
    "old": str | None,
    "new": str | None,
    "dry_run": bool,
    "choose": Literal["best"] | None,
    "gate_runs": Count,
    "hold": ({"reason_class": str, "reason": str, "mend": str | None}, None),
    "remarks": [str],
    "tasks": [_LANDED],
}

OUTPUTS: Final = {"merge": several(MERGED)}
