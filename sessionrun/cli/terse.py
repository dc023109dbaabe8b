"""`status` for callers that pay for each byte: the counts and what needs a look, or some fields."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import click

from sessionrun.cli.render import escape_line, print_json, print_table
from sessionrun.cli.standing import IDS_WIDTH, INDENT, head_lines
from sessionrun.client.reading.telling import BRIEF_BYTES, add_tellings
from sessionrun.client.reading.terse import choose_fields, make_brief
from sessionrun.model.wording import REASON_WIDTH, Group, clip, group_tasks, list_ids, name_tasks, needs_look
from sessionrun.store.session import SessionDir

MOST_BYTES: Final = 1600
"""The brief form has no more, however many tasks there are and whatever their reasons say."""

MOST_REASONS: Final = 8
MOST_HEAD: Final = 6
HEAD_BYTES: Final = 120
"""Of each line about the session but the first two."""

View = dict[str, Any]


def print_brief(session: SessionDir, view: View, tasks: Sequence[View], *, as_json: bool) -> None:
    """Print the counts, and the tasks that need a look."""
    if as_json:
        print_json(make_brief(view, add_tellings(session, tasks, BRIEF_BYTES)))
    else:
        click.echo("\n".join(brief_lines(view, tasks, time.time())))


def brief_lines(view: View, tasks: Sequence[View], now: float) -> list[str]:
    """At most `MOST_BYTES` bytes: the head, tasks that need a look by their reasons, and a cursor."""
    first, *more = head_lines(view, now)
    head = [first, *more[:1], *(_cut(line, HEAD_BYTES) for line in more[1:MOST_HEAD])]
    groups = group_tasks(filter(needs_look, tasks), name_tasks(view), now)
    for count in range(min(MOST_REASONS, len(groups)), -1, -1):
        left = groups[count:]
        rest = [f"and {len(left)} other reasons, {sum(len(group.tasks) for group in left)} tasks"] if left else []
        shown = [line for group in groups[:count] for line in _brief_group(group)]
        lines = [*head, *shown, *rest, f"Cursor: {view['seq']}"]
        if sum(len(line.encode("utf-8", "backslashreplace")) + 1 for line in lines) <= MOST_BYTES:
            break
    return lines


def _brief_group(group: Group) -> list[str]:
    head = escape_line(group._replace(reason=clip(group.reason, REASON_WIDTH)).head)
    return [head, INDENT + list_ids(group.tasks, IDS_WIDTH - len(INDENT))]


def _cut(line: str, most: int) -> str:
    """The beginning of a line in so many bytes."""
    content = line.encode("utf-8", "backslashreplace")
    return line if len(content) <= most else content[: most - 3].decode("utf-8", "ignore") + "..."


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


def _tell(value: object) -> str:
    """A value in a table: texts and numbers as they are, nothing for null, else JSON."""
    if value is None:
        return ""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    import json

    return json.dumps(value)
