"""What `cluster` prints with `--json`, as shapes."""

from __future__ import annotations

from typing import Final, Literal

from sessionrun.model.kinds import Count

_NODES: Final = [
    {
        "id": str,
        "name": str,
        "slots": Count,
        "version": str,
        "lives": bool,
        "used": Count,
        "walls": {str: str},
        "silent_s": float | None,
        "lease_s": float | None,
    }
]
_STOPPED: Final = {
    "address": str,
    "nodes": [{"id": str, "name": str, "state": Literal["up", "leaving", "left", "gone"]}],
    "head": Literal["left", "up", "foreign"],
    "sessions": [str],
}
_SHOWN: Final = {"address": str, "epoch": str, "nodes": _NODES, "sessions": [{"id": str, "jobs": Count}]}

OUTPUTS: Final = {"cluster": ({"files": [str]}, _SHOWN, _STOPPED)}
