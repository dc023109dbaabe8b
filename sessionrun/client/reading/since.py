"""Finds the tasks that changed since a caller last looked.

The caller keeps only a number: the `seq` of the view that it saw.  How the tasks stood then is folded from the
journal anew, so the session keeps nothing for its readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from sessionrun.client.reading.landed import add_landings
from sessionrun.client.reading.view import load_history, load_view, show_as_it_lies
from sessionrun.model.errors import InputError
from sessionrun.store.session import SessionDir


def load_since(session: SessionDir, since: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The view of a session, and those of its tasks that are not as they were at the cursor `since`.

    A task of a session whose processes are gone may be shown although it did not change.

    Raises:
        InputError: the session has not come as far as the cursor.
        StoreError: the session's files are damaged.
    """
    view = load_view(session)
    if view["seq"] < since:  # status.json may lag behind what a reader without a supervisor saw
        view = load_history(session)[0]
    if view["seq"] < since:
        raise InputError(
            f"--since {since}: session {view['session_id']} has only come to {view['seq']}; "
            "give the cursor that was printed for this session"
        )
    if view["seq"] == since and view["status"] != "interrupted":
        return view, []
    before = _load_tasks(session, since)
    return view, [task for task in view["tasks"] if not _is_same(task, before.get(task["id"]))]


def _load_tasks(session: SessionDir, since: int) -> dict[str, dict[str, Any]]:
    """The tasks by id as they were shown at the cursor."""
    from sessionrun.runtime.history import project_status, replay

    state, _, _ = replay(session, since)
    shown = [show_as_it_lies(task) for task in project_status(session, state)["tasks"]]
    return {task["id"]: task for task in add_landings(session, shown)}


def _is_same(task: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Whether a task is as it was, in all that is shown of it."""
    sort = orjson.OPT_SORT_KEYS
    return before is not None and orjson.dumps(task, option=sort) == orjson.dumps(before, option=sort)
