"""Frozen record of the queue from which a session takes its tasks while it runs: a part of `model`.

This module must not know queues, files or processes.
"""

from __future__ import annotations

from typing import Final

from sessionrun.model.frozen import frozen

QUEUE_LABEL: Final = "queue"
"""The label of a task that says which task of the queue it is."""

UNCLAIMED: Final = "it is claimed in the queue first"
"""The reason of the hold on a task that may have no claim; the session lifts it by itself."""

POLL_S: Final = 2.0
SYNC_S: Final = 30.0
TAKE_BACK_S: Final = 60.0


@frozen
class FeedSpec:
    """Which queue, which of its tasks, and for how long.

    Attributes:
        top: the directory with the queue (absolute).
        backend: what keeps it, by name.
        group: only tasks of this group.
        chosen: only these tasks, by their ids in the queue; empty: all.
        watch: whether to wait for more tasks when none is left.
        poll_s: how often to look whether the queue has changed.
        sync_s: how often to load a queue of which no file tells that it changed, and to exchange it with others.
        ingest: how many follow-ups of agents may come into the queue by themselves; 0: none.
        take_back_s: how often to look for claims of sessions that are gone (seconds); 0: never.
        take_back_most: of how many tasks at once; None: of all.
        lands_again: whether work that did not land is tried again when its task is closed by another.
    """

    top: str
    backend: str
    group: str | None = None
    chosen: tuple[str, ...] = ()
    watch: bool = False
    poll_s: float = POLL_S
    sync_s: float = SYNC_S
    ingest: int = 0
    take_back_s: float = TAKE_BACK_S
    take_back_most: int | None = None
    lands_again: bool = True


TROUBLE: Final = "feed"
"""The hold of this name says what is wrong with the queue; no task waits for it."""
