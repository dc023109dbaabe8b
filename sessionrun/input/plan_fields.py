"""The keys of a whole plan; and what a plan says of the queue from which its tasks come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sessionrun.input.fields import as_landing, as_limits, as_seats
from sessionrun.input.kinds import (
    Kind,
    Misfit,
    as_capacities,
    as_duration,
    as_flag,
    as_labels,
    as_limit,
    as_line,
    as_links,
    as_list,
    as_record,
    as_whole,
    describe,
    reference,
    takes,
)
from sessionrun.input.reading import Field, of_business, record, table
from sessionrun.model.words import SCHEMA_VERSION

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


@takes({"const": True})
def _as_all(value: Any) -> dict[str, Any]:
    if value is not True:
        raise Misfit(f"must be true or an object, not {describe(value)}")
    return {}


as_feed: Final = record(
    "feed",
    dict[str, Any],
    table(
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
    ),
    _as_all,
)
"""Which tasks of the queue, and for how long: an object, or true for all that are ready."""


@takes({"const": SCHEMA_VERSION})
def as_schema_version(value: Any) -> int:
    """The version of the plan format: there is one."""
    if value != SCHEMA_VERSION or isinstance(value, bool):
        raise Misfit(f"must be {SCHEMA_VERSION}, not {describe(value)}")
    return SCHEMA_VERSION


as_task_list: Final = as_list(1, items=reference("prompt"))

TOP_FIELDS: Final[Mapping[str, Field]] = {
    **table(
        schema_version=as_schema_version,
        name=as_line,
        agent=as_line,
        model=as_line,
        max_parallel=as_limit,
        resources=as_capacities,
        limits=as_limits,
        auto_release=as_flag,
        require_cache=as_flag,
        labels=as_labels,
    ),
    "$schema": Field("schema", as_line),
    "prompts": Field("tasks", as_task_list),
    "tasks": Field("tasks", as_task_list),
    "defaults": Field("defaults", Kind(as_record.read, reference("defaults"))),
    "feed": Field("feed", of_business("queue", as_feed)),
    "land": Field("landing", of_business("landing", as_landing)),
    "worktrees": Field("seats", as_seats),
}
