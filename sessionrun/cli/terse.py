"""`status` for callers that pay for each byte: what changed, what is not fine, or some fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from sessionrun.cli.options import place_lines
from sessionrun.cli.render import escape_line, print_json, print_table, session_head, session_word, telling_lines
from sessionrun.cli.standing import head_line
from sessionrun.client.reading.terse import choose_fields, is_fine, make_brief
from sessionrun.client.reading.view import describe_shortage

View = dict[str, Any]


def print_brief(
    view: View, tasks: Sequence[View], describe: Callable[[View], list[str]], *, as_json: bool
) -> None:
    """Print the counts, and the tasks that are not fine; `describe` gives the lines of a task."""
    if as_json:
        print_json(make_brief(view, tasks))
        return
    shortage = describe_shortage(view)
    lines = [
        f"{session_head(view)}: {session_word(view)}",
        *place_lines(view),
        head_line(view, view["tasks"]),
        *([escape_line(f"Disk full: {shortage}: nothing new starts until there is room")] if shortage else []),
        *(escape_line(f"Warning: {problem}") for problem in view.get("view_problems") or ()),
    ]
    for task in tasks:
        lines += [] if is_fine(task) else [*describe(task), *telling_lines(task, "     ")]
    click.echo("\n".join([*lines, cursor_line(view)]))


def print_fields(view: View, tasks: Sequence[View], fields: Sequence[str], *, as_json: bool) -> None:
    """Print only the given keys: as JSON, or as lines of the session and a table of its tasks."""
    record = choose_fields(view, tasks, fields)
    if as_json:
        print_json(record)
        return
    for key, value in record.items():
        if key in fields:
            click.echo(escape_line(f"{key}: {_tell(value)}"))
    columns = [key for key in fields if any(key in task for task in view["tasks"])]
    if columns and tasks:
        print_table(
            [key.upper() for key in columns], [[_tell(task.get(key)) for key in columns] for task in tasks]
        )


def cursor_line(view: View) -> str:
    """The last line of what a caller may ask to go on from."""
    return f"Cursor: {view['seq']}"


def _tell(value: object) -> str:
    """A value in a table: texts and numbers as they are, nothing for null, else JSON."""
    if value is None:
        return ""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    import json

    return json.dumps(value)
