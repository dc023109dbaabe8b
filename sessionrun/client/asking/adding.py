"""Adds tasks to a session that runs: the request, and what became of it."""

from __future__ import annotations

import orjson

from sessionrun.client.asking.control import TAKEN_TIMEOUT_S, Reply
from sessionrun.client.asking.requests import Refused, ask_open
from sessionrun.client.reading.view import fold_journal, load_view
from sessionrun.client.reading.waiting import has_ended
from sessionrun.model.errors import InputError
from sessionrun.model.events import TasksAdded
from sessionrun.model.spec import SessionSpec
from sessionrun.store.requests import ADD, MAX_BYTES
from sessionrun.store.session import SessionDir


def load_open(session: SessionDir) -> SessionSpec:
    """The spec of a session to which tasks can be added, as it is now.

    Raises:
        InputError: the session has ended.
        StoreError: its files are damaged.
    """
    if has_ended(load_view(session)):
        raise InputError(_describe_end(session))
    return fold_journal(session)[0].spec


def add(session: SessionDir, addition: TasksAdded, *, timeout_s: float = TAKEN_TIMEOUT_S) -> Reply:
    """Ask the session to take these tasks, and wait until it has.

    Raises:
        InputError: the session has ended meanwhile, or refuses them.
        SessionGone: no process of the session is left; the request stays.
        StoreError: the request cannot be written.
    """
    names = ("tasks", "agents", "prices", "resources", "leavings")
    record = {"kind": ADD, **{name: getattr(addition, name) for name in names}}
    if len(orjson.dumps(record)) > MAX_BYTES - 200:
        raise InputError(f"the tasks take more than {MAX_BYTES >> 20} MiB: add fewer at once")
    try:
        taken = ask_open(session, record, timeout_s=timeout_s)
    except Refused as error:
        if has_ended(load_view(session)):
            raise InputError(_describe_end(session)) from None
        raise InputError(f"session {session.session_id} refused the tasks: {error.why}") from None
    view = load_view(session)
    ids = {task.id for task in addition.tasks}
    tasks = [task for task in view["tasks"] if task["id"] in ids]
    if taken and len(tasks) < len(ids):  # it ended, and no process was left to take them
        raise InputError(_describe_end(session))
    return Reply(taken, [], view, tasks)


def _describe_end(session: SessionDir) -> str:
    ended = f"session {session.session_id} has ended, and nothing was added"
    return f"{ended}: start a new one with sessionrun run FILE"
