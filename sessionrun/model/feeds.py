"""Frozen record of the queue from which a session gets its tasks while it runs.

A part of `model`.  This module must not know files, processes or backends of the queue.
"""

from __future__ import annotations

from typing import Final

from sessionrun.model.frozen import frozen

TITLE: Final = "{title}"
BODY: Final = "{body}"
QUEUE_ID: Final = "{id}"
"""What the prompt of the template has in the places of a task's title, text and id."""

LABEL: Final = "queue"
"""The label of a task of the session that says which task of the queue it is."""


@frozen
class Feed:
    """Which tasks of a queue a session takes; each becomes a task like the session's `template`.

    Attributes:
        top: the directory of the queue.
        backend: what keeps it, as `queue.table` calls it.
        group: only tasks of this group; None: of all.
        only: only these tasks, by their ids in the queue; empty: all.
        watch: whether the session waits for further tasks when none is ready.
        poll_s: how often a queue is looked at that cannot be watched (seconds).
        ingest: how many follow-ups of agents go into the queue by themselves, in all; 0: none.
    """

    top: str
    backend: str
    group: str | None = None
    only: tuple[str, ...] = ()
    watch: bool = False
    poll_s: float = 30.0
    ingest: int = 0


@frozen
class QueueTold:
    """The queue knows what became of a task: it was closed there, or opened again, with this reason."""

    task: str
    closes: bool
    reason: str
