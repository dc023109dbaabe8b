"""Claims of sessions of which no process is left: what landed is closed, all else is open again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from sessionrun.client.lookup import find_session, resolve_results_dir
from sessionrun.client.reading.view import add_views
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.git.git import Git
from sessionrun.model.errors import SessionNotFound, SessionrunError
from sessionrun.queue.feed import Feed
from sessionrun.queue.sync import Kind, find_standing
from sessionrun.queue.task import QueueTask
from sessionrun.session.history import project_status, replay
from sessionrun.store.session import SessionDir

PROBE_AGAIN_S: Final = 1.0
"""A session changes its processes by itself: it is gone if none of them lives, and none so much later."""


Gone = tuple[SessionDir, State | None]
"""A session of which no process is left, and its state; None: that cannot be read."""


def reclaim(
    feed: Feed,
    results_dir: Path | None,
    *,
    most: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[QueueTask]:
    """Settle the claims of sessions that are gone; return the tasks as they are then.

    What a session has done counts, also if it was killed before it could say so.  Sessions are looked for in
    `results_dir` (None: the directory in use) before the user's index.
    """
    here = resolve_results_dir(results_dir)
    probe = cache(lambda session_id: find_gone(session_id, here, sleep))
    settled: list[QueueTask] = []
    for task in feed.load():
        worker = task.worker
        gone = None if worker is None or len(settled) == most else probe(worker.session)
        if worker is None or gone is None:
            continue
        kind, reason = _judge(gone, worker.name)
        if kind == "held":
            continue  # it must not be done again: a retry of its session lands it
        if kind == "done":
            one = feed.close(task.id, reason=reason, worker=worker)
        else:
            one = feed.reopen(task.id, reason=f"its worker {worker.name} is gone", worker=worker)
        settled += [one] if one is not None else []
    return settled


def find_gone(session_id: str, results_dir: Path, sleep: Callable[[float], None] = time.sleep) -> Gone | None:
    """Return a session of which no process is left; None: it lives, or is not known here: it may run elsewhere."""
    try:
        session = find_session(results_dir, session_id)
    except SessionNotFound:
        return None
    if session.session_id != session_id or session.is_alive():
        return None
    sleep(PROBE_AGAIN_S)
    if not os.path.exists(session.path) or session.is_alive():
        return None
    try:
        return session, replay(session)[0]
    except (SessionrunError, OSError):
        return session, None


def _judge(gone: Gone, name: str) -> tuple[Kind, str]:
    """Where a task of a session that is gone stands for the queue, and why."""
    session, state = gone
    task = state.tasks.get(name) if state is not None else None
    one = find_standing(state, task) if state is not None and task is not None else None
    if state is None or task is None or one is None:
        return "undone", ""
    try:
        commit = None if one.kind == "done" else _find_landed(session, state, task)
    except (SessionrunError, OSError):
        commit = None  # what the journal says holds: held work must not be done again
    if commit is not None:
        as_commit = f" as {commit[:12]}" if commit else ""
        return "done", f"landed{as_commit} (session {session.session_id[:8]}, task {name})"
    return one.kind, one.reason


def _find_landed(session: SessionDir, state: State, task: TaskState) -> str | None:
    """The commit with which a task's work landed, empty if it was there by content; None: it has not landed.

    The journal may be behind what readers know, and behind git.
    """
    tip = task.place.commit if task.place is not None and not task.place.holds_no_work else None
    repository, landing = state.spec.repository, state.spec.landing
    if tip is None or repository is None or landing is None:
        return None
    row = next(row for row in project_status(session, state)["tasks"] if row["id"] == task.spec.id)
    found = add_views(session, [{**row, "landing": None}])[0]["landing"]
    if found is not None and found["status"] == "landed" and found["at"] >= row["ended_at"]:
        return found["commit"] or ""  # what landed before the task ended was the work of an earlier attempt
    git = Git(Path(repository.common_dir))
    return tip if git.attempt("merge-base", "--is-ancestor", tip, landing.target).returncode == 0 else None
