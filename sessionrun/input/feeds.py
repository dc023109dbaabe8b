"""What an input says of the queue from which a session takes its tasks: the key ``feed``, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sessionrun.input.fields import read_fields, reference, table
from sessionrun.input.kinds import (
    Kind,
    Misfit,
    as_duration,
    as_flag,
    as_line,
    as_links,
    as_record,
    as_whole,
    describe,
)

FRAME: Final = """\
{task}

Rules:
- Do this task and no other. Change only what it needs.
- Work in the current directory: it is a git worktree of your own. Do not switch branches, and do not push.
- Leave task_queue.json, .beads and .current_task.txt alone.
- Commit your work when it is done.
- Then append 1 to 3 ideas for follow-up tasks to suggested_tasks.txt in the top of the worktree: each on a line
  of its own, short, and one that can be done by itself. Do not commit that file. Write none if nothing is left.
"""
"""The prompt around each task of the queue, where the input has no prompt."""

WORKERS: Final = 4
"""How many tasks of a queue run at once, where nothing else is said."""

MENDS: Final = 3
"""How often a conflict is mended by a task before a person is asked."""

TASK_ID: Final = "task"
DEFAULTS: Final[Mapping[str, Any]] = {"retries": 2, "timeout_s": 1800.0, "expect_change": True}
"""What holds for the tasks of a queue where nothing else is said: a task that could not be done closes nothing."""


def _as_interval(value: Any) -> float:
    seconds = as_duration(value)
    if not 0.05 <= seconds <= 86_400:
        raise Misfit(f"must be from 0.05 to 86400 seconds, not {describe(value)}")
    return seconds


as_interval: Final = Kind(_as_interval, as_duration.schema)
"""Seconds between two looks."""

FEED_FIELDS: Final = table(
    backend=as_line,
    group=as_line,
    chosen=as_links,
    watch=as_flag,
    ingest=as_whole(0),
    poll_s=as_interval,
    sync_s=as_interval,
    take_back_s=as_interval,
    take_back_most=as_whole(1),
    takes_back=as_flag,
    lands_again=as_flag,
)


def _read_feed(value: Any) -> dict[str, Any]:
    if value is True:
        return {}
    unknown: list[Any] = []
    values = read_fields(as_record(value), FEED_FIELDS, unknown)
    if unknown:
        raise Misfit("there is no such key of a feed", *unknown[0])
    return values


as_feed: Final = Kind(_read_feed, {"anyOf": [{"const": True}, reference("feed")]}, "feed", FEED_FIELDS)
"""Which tasks of the queue, and for how long: an object, or true for all that are ready."""
