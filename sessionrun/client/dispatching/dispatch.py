"""What the verb `dispatch` does before a session starts: find the queue, fill an empty one, settle the session."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from sessionrun.client.dispatching.planning import plan_dispatch
from sessionrun.client.dispatching.settings import Settings
from sessionrun.client.planning import Planned
from sessionrun.client.queue import open_queue
from sessionrun.model.errors import InputError
from sessionrun.model.spec import SLOT, SessionSpec
from sessionrun.queue.graph import by_id, choose_group, choose_ready
from sessionrun.queue.task import QueueTask
from sessionrun.runtime.feeding.tasks import choose_id, make_task


class Prepared(NamedTuple):
    """A dispatch that can be started.

    Attributes:
        planned: its session.
        ready: the tasks of the queue that it can claim at once, the first first.
        left: how many tasks of the queue, of those that it is for, are not closed.
    """

    planned: Planned
    ready: list[QueueTask]
    left: int


def prepare(settings: Settings, *, preview: bool = False) -> Prepared:
    """Settle a dispatch.

    Raises:
        InputError: it cannot be started as it is asked for; no session was created.
    """
    feed = open_queue(settings.top, backend=settings.backend)
    tasks = by_id(feed.load())
    for name in settings.tasks:
        if name not in tasks:
            raise InputError(f"the queue has no task {name!r}; `sessionrun queue list` shows its tasks")
    among = tasks.values() if settings.group is None else choose_group(tasks, settings.group)
    wanted = frozenset(settings.tasks)
    left = [
        task
        for task in among
        if task.status != "closed" and not task.is_group and (not wanted or task.id in wanted)
    ]
    ready = [task for task in choose_ready(tasks, settings.group) if not wanted or task.id in wanted]
    return Prepared(plan_dispatch(settings, feed, preview=preview), ready, len(left))


def foresee(prepared: Prepared) -> Planned:
    """The session with the tasks that it begins with, for a preview."""
    spec: SessionSpec = prepared.planned.spec
    assert spec.template is not None
    taken: set[str] = set()
    tasks = []
    for task in prepared.ready[: spec.resources.get(SLOT)]:
        name = choose_id(task.id, taken)
        taken.add(name.casefold())
        tasks.append(make_task(spec.template, task, name))
    return prepared.planned._replace(spec=replace(spec, tasks=tuple(tasks)))
