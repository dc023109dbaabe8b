"""Asks the queue: claims tasks for the session, and tells what became of them.  Blocks as long as the queue does.

A claim is made in the name of the task of the session, before the session knows of that task.  So after a crash
the claims in the session's name say which tasks it was about to take.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from sessionrun.model.feeds import BODY, LABEL, QUEUE_ID, TITLE, Feed
from sessionrun.model.spec import TaskSpec
from sessionrun.queue.feed import Feed as Queue
from sessionrun.queue.task import QueueTask, Worker
from sessionrun.runtime.feeding.desk import Fetch, Settle

_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST: Final = 80
_PARTS: Final = re.compile("|".join(map(re.escape, (TITLE, BODY, QUEUE_ID))))


class Clerk:
    """One session at one queue.

    All methods raise what those of the queue do: see `queue.feed`.
    """

    def __init__(self, queue: Queue, feed: Feed, template: TaskSpec, session_id: str) -> None:
        self._queue = queue
        self._feed = feed
        self._template = template
        self._session_id = session_id
        self._has_looked = False

    def fetch(self, call: Fetch) -> list[TaskSpec]:
        """Claim tasks that are ready; first those that an earlier process of the session has claimed."""
        names = set(call.names)
        found = [] if self._has_looked else self._find_claimed(names)
        self._has_looked = True
        names |= {task.id for task in found}
        given_up = dict(call.given_up)
        for task in self._queue.ready(self._feed.group):
            if len(found) >= call.count:
                break
            if self._feed.only and task.id not in self._feed.only:
                continue
            if task.id in given_up and task.reason == given_up[task.id]:
                continue
            name = make_name(task.id, names)
            claimed = self._queue.claim(task.id, Worker(name, self._session_id))
            if claimed is not None:
                names.add(name)
                found.append(make_task(self._template, claimed, name))
        return found

    def settle(self, call: Settle) -> None:
        """Close a task, or open it again; if something else has changed it meanwhile, that stands.

        A task that the session has opened again, and that is done after all, is claimed once more to be closed.
        """
        worker = Worker(call.name, self._session_id)
        close, reopen, reason = self._queue.close, self._queue.reopen, call.fate.reason
        if not call.fate.closes:
            reopen(call.queue_id, reason=reason, worker=worker)
            return
        done = close(call.queue_id, reason=reason, worker=worker)
        if done is None and call.again and self._queue.claim(call.queue_id, worker) is not None:
            close(call.queue_id, reason=reason, worker=worker)

    def _find_claimed(self, names: Collection[str]) -> list[TaskSpec]:
        """The tasks that are claimed in the session's name, and that the session does not know."""
        claims = [(task, task.claim.worker) for task in self._queue.load() if task.claim is not None]
        return [
            make_task(self._template, task, worker.name)
            for task, worker in claims
            if worker.session == self._session_id and worker.name not in names
        ]


def make_name(queue_id: str, taken: Collection[str]) -> str:
    """The id of the task of the session; with a number where the session has had that task before."""
    stem = _UNFIT.sub("-", queue_id).strip("-.")[:_MOST] or "task"
    folded = {name.casefold() for name in taken}
    number, name = 1, stem
    while name.casefold() in folded:
        number += 1
        name = f"{stem}-{number}"
    return name


def make_task(template: TaskSpec, task: QueueTask, name: str) -> TaskSpec:
    """The task of the session for a task of the queue."""
    told = {TITLE: task.title, BODY: task.body, QUEUE_ID: task.id}
    prompts = tuple(
        _PARTS.sub(lambda found: told[found[0]], prompt).rstrip("\n") + "\n" for prompt in template.prompts
    )
    return replace(
        template,
        id=name,
        prompts=prompts,
        title=" ".join(task.title.split()),
        priority=task.priority,
        labels={**template.labels, LABEL: task.id},
    )
