"""What becomes of the tasks of a queue in the sessions that take them: what is at work, what needs a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sessionrun.client.lookup import resolve_results_dir
from sessionrun.client.reading.selection import load_summaries
from sessionrun.client.reading.view import load_or_warn, load_view
from sessionrun.model.feeding import QUEUE_LABEL
from sessionrun.model.times import parse_time
from sessionrun.model.wording import needs_look
from sessionrun.queue.feed import Feed
from sessionrun.queue.task import QueueTask
from sessionrun.store.session import SessionDir

Attempt = Mapping[str, Any]
"""A task of a session, with the id and the title that it has in the queue."""


class AtWork(NamedTuple):
    """The attempts that run or wait, those that need a person; since a time, when work landed and what all cost.

    The cost is that of all sessions that did not end before (USD; None: not known of any task).
    """

    working: Sequence[Attempt]
    needing: Sequence[Attempt]
    landed_at: Sequence[float]
    cost_usd: float | None


def find_work(feed: Feed, tasks: Sequence[QueueTask], results_dir: Path | None, since: float) -> AtWork:
    """Look into the sessions that take tasks of this queue, here and in the user's index.

    Args:
        feed: the queue.
        tasks: all that it has.
        results_dir: where sessions are, besides the index; None: the directory in use.
        since: of what ended before, nothing counts (wall time).
    """
    here = resolve_results_dir(results_dir)
    summaries = (*load_summaries(here), *load_summaries(here, everywhere=True))
    recent = [view for view in summaries if view["ended_at"] is None or parse_time(view["ended_at"]) >= since]
    paths = {view["results_dir"]: None for view in sorted(recent, key=lambda view: str(view["started_at"]))}
    attempts: dict[str, Attempt] = {}
    landed_at: list[float] = []
    costs: list[float] = []
    for path in paths:
        session = load_or_warn(SessionDir(Path(path)), load_view)
        if session is None or not session["feed"] or session["feed"]["queue"] != str(feed.place):
            continue
        for task in session["tasks"]:
            if task["usage"] and task["usage"]["cost_usd"] is not None:
                costs.append(task["usage"]["cost_usd"])
            if task["word"] == "landed" and task["ended_at"] and parse_time(task["ended_at"]) >= since:
                landed_at.append(parse_time(task["ended_at"]))
            if QUEUE_LABEL in task["labels"]:
                attempts[task["labels"][QUEUE_LABEL]] = task
    left = [task for task in tasks if task.status != "closed" and task.id in attempts]
    named = [{**attempts[task.id], "id": task.id, "title": task.title} for task in left]
    working = [task for task in named if task["status"] != "completed"]
    needing = [task for task in named if task["status"] == "completed" and needs_look(task)]
    return AtWork(working, needing, landed_at, sum(costs) if costs else None)
