"""Adds to the tasks that a reader shows what became of their work: `landing`, from the logs of landings.

A session that lands by itself says it in status.json too.  Then the log counts only where it is newer: a `merge`
may have landed later what the session could not land.

The readers call it only for a session that has a folder of landings: of any other they know by one call of stat.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.words import IN_LANDING, choose_word, format_time
from sessionrun.store.files import list_folders
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.landing.records import End


def add_landings(session: SessionDir, tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks, each whose work was tried with `landing`; a log that cannot be read is a warning.

    Of several targets the last that was tried counts.  What was tried before the task ended is not told: it was
    the work of an earlier attempt.
    """
    from sessionrun.client.notices import notify
    from sessionrun.landing.records import MAX_BYTES, load_history
    from sessionrun.model.errors import SessionrunError

    ends: dict[str, End] = {}
    folder = session.path / LANDING_FOLDER
    try:
        for path in find_killed_landings(session):
            notify(f"a landing was killed and left {path}: sessionrun merge {session.session_id} mends it")
        for name in sorted(os.listdir(folder)):
            for task_id, end in load_history(folder / name, MAX_BYTES)[0].ends.items():
                if task_id not in ends or ends[task_id].at <= end.at:
                    ends[task_id] = end
        logged = {task_id: _describe(end) for task_id, end in ends.items()}
    except (SessionrunError, OSError, ValueError) as error:
        notify(f"what landed is not shown: {error}")
        return list(tasks)
    return [_add(task, logged.get(task["id"])) for task in tasks]


def find_killed_landings(session: SessionDir) -> list[Path]:
    """What landings of the session's work left that were killed while they moved a branch: `merge` mends it.

    Raises:
        SessionrunError: the session's spec or a record of a landing is damaged.
    """
    from sessionrun.landing.gates import WORK

    folder = session.path / LANDING_FOLDER
    begun = [name for name in list_folders(folder) if os.path.lexists(folder / name / WORK)]
    if not begun:
        return []
    from sessionrun.landing.moving import find_killed
    from sessionrun.session.history import load_spec_now

    repository = load_spec_now(session).repository
    left = [] if repository is None else [find_killed(repository, name) for name in begun]
    return [path for path in left if path is not None]


def _describe(end: End) -> dict[str, Any]:
    return {
        "status": end.status,
        "target": end.target.removeprefix("refs/heads/"),
        **{name: getattr(end, name) or None for name in ("commit", "reason_class", "reason", "mend", "output")},
        "files": list(end.files),
        "against": list(end.against),
        "at": format_time(datetime.fromisoformat(end.at).timestamp()),
    }


def is_of(task: Mapping[str, Any], at: str) -> bool:
    """Whether a landing at a time is of a task's work as it is now; of an earlier attempt it is not."""
    return task["status"] == "completed" and at[:19] >= (task.get("ended_at") or "")[:19]


def _add(task: dict[str, Any], logged: Mapping[str, Any] | None) -> dict[str, Any]:
    if logged is None or not is_of(task, logged["at"]):
        return task
    known = task.get("landing")  # what status.json says
    if known is not None:
        is_on_its_way = known["status"] in (*IN_LANDING, "waiting")
        if is_on_its_way or logged["at"][:23] <= (known["at"] or "")[:23]:  # to the millisecond
            return task  # it is newer than what the log says
    changed = task["word"] != "changed_nothing"
    word = choose_word(task["outcome"], landing=logged["status"], changed=changed)
    return {**task, "landing": dict(logged), "word": word}
