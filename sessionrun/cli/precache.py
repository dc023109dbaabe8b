"""`precache`: fetch ahead the repositories that the tasks of an input name, and build their environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from sessionrun.cli.options import Count, cache_dir_option, flag, json_option, valued
from sessionrun.cli.render import escape, print_json
from sessionrun.model.errors import name_some
from sessionrun.worktrees.mirrors import Record
from sessionrun.worktrees.precache import precache


@click.command("precache")
@click.argument("file", required=False, metavar="[FILE]")
@valued("--limit", Count(1), "Only what the first N tasks name.")
@valued("--from dialect", "FORMAT", "Input format.  [default: guessed]")
@flag("--no-environments", "Fetch repositories only; build no environment.")
@cache_dir_option
@json_option
def command(
    file: str | None,
    limit: int | None,
    dialect: str | None,
    no_environments: bool,
    cache_dir: Path | None,
    as_json: bool,
) -> int:
    """Fetch the repositories and commits that the tasks in FILE name, and build their environments.

    All of it stays in the cache, where all sessions find it: with --require-cache they fetch and build nothing.
    Ends with exit code 1 if a repository or one of its refs could not be fetched, or an environment not be built.
    """
    records = precache(
        file,
        dialect=dialect,
        limit=limit,
        cache_dir=cache_dir,
        environments=not no_environments,
        tell=_tell,
        tell_environment=_tell_environment,
    )
    environments = [environment for record in records for environment in record["environments"]]
    if as_json:
        print_json({"repositories": records})
    else:
        _count([record for record in records if record["mirror"] is not None], "repositories are")
        _count(
            list({record["digest"] or id(record): record for record in environments}.values()), "environments are"
        )
    return 1 if any(record["error"] is not None for record in (*records, *environments)) else 0


def _count(records: Sequence[Record], words: str) -> None:
    if records:
        good = sum(record["error"] is None for record in records)
        click.echo(f"{good} of {len(records)} {words} in the cache")


def _tell(record: Record) -> None:
    """A line for people, on standard error, when a repository begins and when it is done."""
    repo, refs = record["repo"], len(record["refs"])
    what = "1 ref" if refs == 1 else f"{refs} refs"
    if record["duration_s"] is None:
        line = f"fetching {repo} ({what})"
    elif record["error"] is None:
        line = f"fetched {repo} ({what}) in {record['duration_s']:.1f}s"
    else:
        line = f"failed: {record['error']}"
    click.echo(escape(" ".join(line.split())), err=True)


def _tell_environment(record: Record) -> None:
    whose = f"the environment of task {name_some(record['tasks'], 1)}"
    if record["duration_s"] is None:
        line = f"building {whose}"
    elif record["error"] is not None:
        line = f"failed: {whose}: {record['error']}"
    elif record["cached"]:
        line = f"{whose} is in the cache"
    else:
        line = f"built {whose} in {record['duration_s']:.1f}s"
    click.echo(escape(" ".join(line.split())), err=True)
