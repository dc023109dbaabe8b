"""`precache`: fetch ahead the repositories that the tasks of an input name, and build their environments."""

from __future__ import annotations

from typing import Any

import click

from sessionrun.cli.options import Answer, Count, cache_dir_option, flag, json_option, valued, verb
from sessionrun.cli.render import escape
from sessionrun.model.errors import name_some
from sessionrun.worktrees.precache import Record, precache


@verb("precache", cache_dir_option, json_option)
@click.argument("file", required=False, metavar="[FILE]")
@valued("--limit", Count(1), "Only what the first N tasks name.")
@valued("--from dialect", "FORMAT", "Input format.  [default: guessed]")
@flag("--no-environments", "Fetch repositories only; build no environment.")
def command(file: str | None, no_environments: bool, **options: Any) -> Answer:
    """Fetch the repositories and commits that the tasks in FILE name, and build their environments.

    All of it stays in the cache, where all sessions find it: with --require-cache they fetch and build nothing.
    Ends with exit code 1 if a repository or one of its refs could not be fetched, or an environment not be built.
    """
    records = precache(
        file, environments=not no_environments, tell=_tell, tell_environment=_tell_environment, **options
    )
    environments = [environment for record in records for environment in record["environments"]]
    done = {
        "repositories": [record for record in records if record["mirror"] is not None],
        "environments": list({record["digest"] or id(record): record for record in environments}.values()),
    }
    lines = [
        f"{sum(record['error'] is None for record in there)} of {len(there)} {what} are in the cache"
        for what, there in done.items()
        if there
    ]
    has_failed = any(record["error"] is not None for record in (*records, *environments))
    return Answer({"repositories": records}, lines, int(has_failed))


def _tell(record: Record) -> None:
    refs = len(record["refs"])
    what = f"{record['repo']} ({'1 ref' if refs == 1 else f'{refs} refs'})"
    _say(record, f"fetching {what}", f"fetched {what}", "")


def _tell_environment(record: Record) -> None:
    whose = f"the environment of task {name_some(record['tasks'], 1)}"
    is_there = f"{whose} is in the cache" if record["cached"] else ""
    _say(record, f"building {whose}", f"built {whose}", f"{whose}: ", is_there)


def _say(record: Record, doing: str, done: str, about: str, is_there: str = "") -> None:
    if record["duration_s"] is None:
        line = doing
    elif record["error"] is not None:
        line = f"failed: {about}{record['error']}"
    else:
        line = is_there or f"{done} in {record['duration_s']:.1f}s"
    click.echo(escape(" ".join(line.split())), err=True)
