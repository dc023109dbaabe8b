"""`replay`: a session once more, without models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sessionrun.cli.options import json_option, results_dir_option, session_argument
from sessionrun.cli.render import escape_line, print_json
from sessionrun.client.launching.launch import launch
from sessionrun.client.lookup import open_session
from sessionrun.client.reading.waiting import wait
from sessionrun.store.session import SessionDir


@click.command("replay")
@session_argument
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    metavar="N",
    help="So many times as fast as the agents were.  [default: 10]",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A new directory for all of it.  [default: beside the session]",
)
@click.option(
    "--repository",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="The repository or a bundle of it.  [default: where it was]",
)
@json_option
@results_dir_option
def command(
    session_id: str,
    speed: float,
    directory: Path | None,
    repository: Path | None,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Play session ID again without models, wait for its end, and tell what came out differently.

    What agents printed and changed comes from the session's files.  All else is real, such as setup, checks and
    landing, in a clone of the repository below DIR.

    Exit code 0: all tasks ended as they were recorded; 1: some did not.
    """
    from sessionrun.client.launching.replaying import compare_replay, find_place, plan_replay

    recorded = open_session(results_dir, session_id)
    place = directory.absolute() if directory is not None else find_place(recorded)
    spec = plan_replay(recorded, place, speed=speed, source=repository)
    replayed = launch(spec, place / "results", ready=False, indexed=False)
    if not as_json:
        click.echo(f"Session: {replayed.session_id}\nDirectory: {escape_line(str(place))}")
    wait(replayed)
    differences = compare_replay(recorded, replayed)
    if as_json:
        print_json(_describe(recorded, replayed, [one._asdict() for one in differences]))
    else:
        for one in differences:
            click.echo(escape_line(f"{one.task}: {one.key}: recorded {one.recorded!r}, now {one.replayed!r}"))
        click.echo(f"{len(spec.tasks)} tasks, {len({one.task for one in differences})} of them with differences")
    return 1 if differences else 0


def _describe(recorded: SessionDir, replayed: SessionDir, differences: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "session_id": replayed.session_id,
        "replay_of": recorded.session_id,
        "results_dir": str(replayed.path),
        "differences": differences,
    }
