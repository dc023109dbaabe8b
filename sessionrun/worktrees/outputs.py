"""What `diff` and `precache` print with `--json`, as shapes."""

from __future__ import annotations

from typing import Final

from sessionrun.client.shapes import only, several
from sessionrun.model.shown import Task
from sessionrun.worktrees.diff import DIFF_KEYS

DIFF: Final = {"session_id": str, "tasks": [{**only(Task, DIFF_KEYS), "patch": str | None}]}
_PREBUILT: Final = {
    "digest": str | None,
    "tasks": [str],
    "path": str | None,
    "cached": bool,
    "error": str | None,
    "log": str | None,
    "duration_s": float,
}
PRECACHED: Final = {
    "repositories": [
        {
            "repo": str,
            "mirror": str | None,
            "refs": [{"ref": str | None, "commit": str | None}],
            "error": str | None,
            "duration_s": float,
            "environments": [_PREBUILT],
        }
    ]
}

OUTPUTS: Final = {"diff": several(DIFF), "precache": (PRECACHED,)}
