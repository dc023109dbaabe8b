"""`clean`: take away sessions that have ended, and what they left behind that is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sessionrun.cli.options import (
    Age,
    Answer,
    Count,
    Size,
    Words,
    cache_dir_option,
    flag,
    json_option,
    label_option,
    results_dir_option,
    since_option,
    valued,
    verb,
)
from sessionrun.cli.render import escape
from sessionrun.client.clean import CLEANED, clean, clean_cache
from sessionrun.model.errors import InputError


@verb("clean", json_option, cache_dir_option, results_dir_option)
@click.argument("session_ids", metavar="[ID]...", nargs=-1)
@valued("--older-than older_than_s", Age(), "Only sessions that ended longer ago than this: 7d, 12h, 30m.")
@valued(
    "--state states",
    Words(CLEANED),
    "Only sessions in these states, such as failed or interrupted.  [default: completed,cancelled]",
)
@label_option
@since_option
@valued("--keep", Count(), "Keep the newest N sessions.")
@flag("--worktrees", "Delete worktrees whose work is on a branch, and branches that are merged or empty.")
@flag("--cache", "Delete mirrors, environments, replicas that nothing uses, longest unused first.")
@valued("--max-size", Size(), "With --cache: only until the cache is this small: 20G.")
@flag("--dry-run", "Only list what would be deleted, at most.")
def command(
    session_ids: tuple[str, ...],
    older_than_s: float | None,
    worktrees: bool,
    cache: bool,
    max_size: int | None,
    dry_run: bool,
    cache_dir: Path | None,
    results_dir: Path | None,
    **wanted: Any,
) -> Answer:
    """Delete sessions that have ended, or with --worktrees only the worktrees and branches that they left.

    Say which sessions: by ID, --older-than, --state or --keep.  A session that runs is never deleted, nor one
    whose branches or worktrees are still there, but for empty branches.  What stays is listed with the reason.

    With --cache mirrors and environments are deleted that no session uses and that hold no work.
    """
    selects = older_than_s is not None or any(value not in (None, ()) for value in wanted.values())
    if cache and (session_ids or worktrees or any(wanted.values())):
        raise InputError("clean: --cache goes with --older-than, --max-size and --dry-run only")
    if not cache and (max_size is not None or cache_dir is not None):
        raise InputError("clean: --max-size and --cache-dir need --cache")
    if not (cache or selects or session_ids or worktrees):
        raise InputError(
            "clean: say what to clean: an ID, --older-than, --state, --label, --since, --keep, "
            "--worktrees or --cache"
        )
    if cache:
        records = clean_cache(cache_dir=cache_dir, older_than_s=older_than_s, max_bytes=max_size, dry_run=dry_run)
    else:
        records = clean(
            session_ids,
            results_dir=results_dir,
            **{**wanted, "labels": dict(wanted["labels"])},
            older_than_s=older_than_s,
            worktrees=worktrees,
            directories=selects or not worktrees,
            dry_run=dry_run,
        )
    lines = []
    for record in records:
        done = "would remove" if record["would_remove"] else "removed" if record["removed"] else "kept"
        lines.append(escape(f"{done} {record['what']} {record['name']}: {record['why']}"))
    return Answer({"findings": records}, lines or ["Nothing to clean."])
