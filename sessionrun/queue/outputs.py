"""What `queue` prints with `--json`, as shapes."""

from __future__ import annotations

from typing import Final, Literal

from sessionrun.client.shapes import LAUNCH, LAUNCHED, keys_of
from sessionrun.model.kinds import Count
from sessionrun.queue.task import QueueTask

QUEUE_TASK: Final = {
    **keys_of(QueueTask),
    "ready": bool,
    "worker": str | None,
    "session_id": str | None,
}
QUEUE: Final = {"backend": Literal["file", "beads"], "place": str, "tasks": [QUEUE_TASK]}
QUEUE_TASKS: Final = {"tasks": [QUEUE_TASK]}
IMPORTED: Final = {"added": [QUEUE_TASK], "known": [str]}
INGESTED: Final = {
    "dry_run": bool,
    "added": [{"id": str | None, "title": str, "source": str}],
    "known": [{"title": str, "source": str}],
    "kept": [{"source": str, "lines": Count}],
}
SPLIT: Final = {
    "group": (QUEUE_TASK, None),
    "tasks": [QUEUE_TASK],
    "titles": [str],
    "by": Literal["agent", "rule"],
    "session_ids": [str],
    "dispatch?": (LAUNCHED, None),
}

OUTPUTS: Final = {"queue": (QUEUE, QUEUE_TASK, QUEUE_TASKS, IMPORTED, *LAUNCH, INGESTED, SPLIT)}
