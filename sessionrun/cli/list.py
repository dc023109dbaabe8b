"""`list`: the sessions of the results directory, or all of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.contact import contact_lines
from sessionrun.cli.options import Count, json_option, results_dir_option
from sessionrun.cli.render import (
    clip,
    escape_line,
    print_json,
    print_table,
    session_word,
    short_time,
    terminal_width,
    unversioned,
)
from sessionrun.cli.selecting import make_wanted, selector_options
from sessionrun.client.reading.listing import arrange, find_depths
from sessionrun.client.reading.selection import find_sessions, find_views
from sessionrun.client.reading.view import load_summary_view
from sessionrun.model.errors import InputError

SHORT_ID: Final = 8
AGENT_WIDTH: Final = 10
OTHER_COLUMNS: Final = 63
"""Columns of a row without its id and its name, at most, for up to 9,999 tasks."""

NARROW: Final = 76
"""A terminal with fewer columns has no room for all of a row."""
NARROW_COLUMNS: Final = 24
"""As `OTHER_COLUMNS`, without agent, time of start and failures."""


@click.command("list")
@click.argument("session_ids", metavar="[ID]...", nargs=-1)
@selector_options
@click.option("--limit", type=Count(1), metavar="N", help="Only the newest N.")
@click.option("--all", "everywhere", is_flag=True, help="Sessions of all results directories that you used.")
@json_option
@results_dir_option
def command(
    session_ids: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...] | None,
    since: float | None,
    limit: int | None,
    everywhere: bool,
    as_json: bool,
    results_dir: Path | None,
) -> None:
    """List sessions, the newest first."""
    if everywhere and results_dir is not None:
        raise InputError("--all lists the sessions of all results directories: leave out --results-dir")
    wanted = make_wanted(labels, states, since)
    if session_ids:
        views = [load_summary_view(session) for session in find_sessions(results_dir, session_ids, wanted)]
    else:
        views = find_views(results_dir, wanted, everywhere=everywhere)
    views = arrange(views[:limit])
    if as_json:
        print_json({"sessions": [unversioned(view) for view in views]})
    elif not views:
        click.echo("No sessions." if wanted.is_empty else f"No session matches {escape_line(wanted.describe())}.")
    else:
        places = [(os.path.dirname(view["results_dir"]),) if everywhere else () for view in views]
        heads: tuple[object, ...] = (
            "ID",
            "STATUS",
            "TASKS",
            "FAILED",
            "AGENT",
            "STARTED",
            "NAME",
            *(("DIRECTORY",) * everywhere),
        )
        depths = find_depths(views)
        rows = [(*row, *place) for row, place in zip(_rows(views, max(depths)), places, strict=True)]
        if terminal_width() < NARROW:
            heads, rows = _choose_columns(heads), [_choose_columns(row) for row in rows]
        print_table([str(head) for head in heads], rows, depths)
        for view, row in zip(views, rows, strict=True):
            for line in contact_lines(view):
                click.echo(f"{row[0]}: {line}")


def _choose_columns(row: tuple[object, ...]) -> tuple[object, ...]:
    """What of a row fits a narrow terminal: id, status, tasks and name, and the directory if asked for."""
    return (*row[:3], *row[6:])


def _rows(views: list[dict[str, Any]], deepest: int) -> list[tuple[object, ...]]:
    length = _unique_length([view["session_id"] for view in views])
    width = terminal_width()
    name_width = max(8, width - length - 2 * deepest - (NARROW_COLUMNS if width < NARROW else OTHER_COLUMNS))
    return [
        (
            view["session_id"][:length],
            session_word(view, short=True),
            f"{view['completed']}/{view['total']}",
            view["failed"] or "",
            clip(escape_line(view["agent"]), AGENT_WIDTH),
            short_time(view["started_at"]),
            clip(escape_line(view["name"] or ""), name_width),
        )
        for view in views
    ]


def _unique_length(ids: list[str]) -> int:
    """How much of an id tells all of these apart, so that what is listed can be typed."""
    length = SHORT_ID
    while length < 36 and len({session_id[:length] for session_id in ids}) < len(ids):
        length += 1
    return length
