"""`precache`: fetch ahead the repositories and commits that the tasks of an input name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sessionrun.cli.options import Count, cache_dir_option, json_option
from sessionrun.cli.render import escape, print_json
from sessionrun.client.prefetching import precache


@click.command("precache")
@click.argument("file", required=False, metavar="[FILE]")
@click.option("--limit", type=Count(), metavar="N", help="Only what the first N tasks name.")
@click.option("--from", "dialect", metavar="DIALECT", help="Input format.  [default: guessed]")
@cache_dir_option
@json_option
def command(
    file: str | None, limit: int | None, dialect: str | None, cache_dir: Path | None, as_json: bool
) -> int:
    """Fetch the repositories and commits that the tasks in FILE name.

    What is fetched stays in the cache, where all sessions find it: with --require-cache they use no network.
    Ends with exit code 1 if a repository or one of its refs could not be fetched.
    """
    records = precache(file, dialect=dialect, limit=limit, cache_dir=cache_dir, tell=_tell)
    if as_json:
        print_json(records)
    failed = sum(record["error"] is not None for record in records)
    if not as_json:
        click.echo(f"{len(records) - failed} of {len(records)} repositories are in the cache")
    return 1 if failed else 0


def _tell(record: dict[str, Any]) -> None:
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
