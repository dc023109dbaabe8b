"""`status`: where a session and its tasks stand; of a matrix a row for each task, and a column for each arm."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import click

from sessionrun.cli.options import Answer, Count, Fields, flag, session_verb, valued
from sessionrun.cli.render import (
    escape,
    escape_line,
    is_json,
    is_seed_block,
    lay_out,
    local_time,
    sign,
    table_lines,
    tell_value,
    terminal_width,
)
from sessionrun.client.reading.view import choose_tasks, load_unparsed, load_view
from sessionrun.model.errors import InputError
from sessionrun.model.wording import BRIEF_BYTES
from sessionrun.model.words import AXES, BAD, is_matrix
from sessionrun.store.session import SessionDir

NAME_COLUMNS: Final = 28

_ROW_AXES: Final[Mapping[str, Sequence[str]]] = {
    "model": ("task",),
    "agent": ("task", "model"),
    "task": ("agent", "model"),
}

View = Mapping[str, Any]


@session_verb("status", "since")
@click.option("--by", type=click.Choice(AXES), help="Compare the tasks of a matrix by model, task or agent.")
@flag("--all show_all", "A row for each task, also of more than 20.")
@flag("--failed", "Only tasks that failed, with a row for each.")
@valued("--since", "CURSOR", "Only tasks that changed since this cursor.", Count())
@flag("--brief", "Only counts and tasks that need attention; in JSON no nulls.")
@valued("--fields", Fields(), "Only these keys of the session and its tasks.")
def command(
    session: SessionDir,
    tasks: tuple[str, ...],
    *,
    by: str | None,
    show_all: bool,
    failed: bool,
    since: int | None,
    brief: bool,
    fields: tuple[str, ...] | None,
) -> Answer:
    """Show where session ID stands: the newest if no ID is given.

    ID is a session's id, an unambiguous beginning of it, its name, or `last`; TASK a task's id or number.

    --brief and --since print a cursor: the next call with --since CURSOR shows what changed since then.
    """
    if by is not None and (brief or fields or since is not None):
        raise InputError("status: --by cannot be had with --since, --brief or --fields")
    if brief and fields:
        raise InputError("status: choose one of --brief and --fields")
    as_it_is = is_json() and not (tasks or by or brief or fields or failed) and since is None
    if as_it_is and (unparsed := load_unparsed(session)) is not None:
        return Answer(unparsed)
    view, chosen = _load(session, tasks, since)
    chosen = [task for task in chosen if task["word"] in BAD or not failed]
    if fields:
        return _choose_fields(view, chosen, fields)
    if brief:
        return _tell_brief(session, view, chosen)
    if is_json() and by is not None:
        from sessionrun.client.reading.comparison import compare_tasks

        return Answer(compare_tasks(view, chosen, by))
    if is_json():
        return Answer({**view, **({} if since is None else {"cursor": view["seq"]}), "tasks": chosen})
    if is_seed_block():
        return Answer(None, _seed_lines(view, chosen))
    if tasks and since is None and by is None:
        from sessionrun.cli.explain import story_lines
        from sessionrun.client.explain import explain

        return Answer(None, story_lines(session, *explain(session, tasks)))
    every = show_all or failed or bool(tasks) or since is not None
    cursor_line = [] if since is None else [f"Cursor: {view['seq']}"]
    by = by or ("model" if not every and is_matrix(chosen) else None)
    return Answer(None, [*status_lines(session, view, chosen, every=every, by=by), *cursor_line])


def _load(
    session: SessionDir, names: Sequence[str], since: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The view, and the tasks of these names, all without any, that have changed since the cursor."""
    if since is None:
        view = load_view(session)
        return view, choose_tasks(view, names)
    from sessionrun.client.reading.digest import load_since

    view, changed = load_since(session, since)
    ids = {task["id"] for task in changed}
    return view, [task for task in choose_tasks(view, names) if task["id"] in ids]


def _tell_brief(session: SessionDir, view: View, tasks: Sequence[dict[str, Any]]) -> Answer:
    if is_json():
        from sessionrun.client.reading.digest import make_brief
        from sessionrun.client.reading.telling import add_tellings

        return Answer(make_brief(view, add_tellings(session, tasks, BRIEF_BYTES)))
    from sessionrun.cli.standing import brief_lines

    return Answer(None, brief_lines(view, tasks, time.time()))


def status_lines(
    session: SessionDir, view: View, tasks: Sequence[View], *, every: bool = False, by: str | None = None
) -> list[str]:
    """What `status` shows of tasks of a session: rows, groups of many, or a grid; and what to do next."""
    from sessionrun.cli.standing import head_lines, next_lines, task_lines, tell_left

    now, width = time.time(), terminal_width()
    head = head_lines(view, now, left=tell_left(view, now) if sys.stdout.isatty() else "")
    if by is None:
        shown = task_lines(view, tasks, now, width, every=every)
    else:
        from sessionrun.client.reading.comparison import compare_tasks

        shown = comparison_lines(compare_tasks(view, tasks, by), width, show_all=every)
    return [*head, *shown, *next_lines(session, view, tasks, verb="status")]


# --- a matrix ---


def comparison_lines(record: View, width: int, *, show_all: bool) -> list[str]:
    """The grid of `compare_tasks`; where that is wider than `width`, a row for each arm with what fits."""
    from sessionrun.cli.standing import MOST_ROWS
    from sessionrun.client.reading.comparison import conclude
    from sessionrun.model.wording import clip, columns

    groups = record["groups"]
    keys = [clip(escape_line(group["key"]), NAME_COLUMNS) for group in groups]
    kept = rows = _find_rows(record)
    if len(rows) > MOST_ROWS and not show_all:
        words = {name: {word for cell in found.values() for word in cell["words"]} for name, found in rows.items()}
        kept = {name: found for name, found in rows.items() if len(words[name]) > 1}
    cells = [[name, *(_tell_cell(found.get(group["key"])) for group in groups)] for name, found in kept.items()]
    figures = [*_figures(record)]
    corner = f"{sum(group['runs'] for group in groups)} runs"
    rights = range(1, 1 + len(groups))
    lines = lay_out([[corner, *keys], *cells, *figures], rights)
    if columns(lines[0]) > width:
        turned = [
            [name, *column] for name, column in zip([corner, *keys], zip(*figures, strict=True), strict=True)
        ]
        while columns((lines := lay_out(turned, range(1, len(turned[0]))))[0]) > width and len(turned[0]) > 2:
            turned = [row[:-1] for row in turned]
    if len(rows) > len(kept):
        lines.append(f"and {len(rows) - len(kept)} on which all are alike: --all shows each")
    return [*lines, *map(escape_line, conclude(record))]


def _find_rows(record: View) -> dict[str, dict[str, View]]:
    """The cells by row and arm; a row is named by the axes on which there are several."""
    from sessionrun.model.wording import clip

    cells = [(group["key"], cell) for group in record["groups"] for cell in group["cells"]]
    axes = _ROW_AXES[record["by"]]
    differing = [axis for axis in axes if len({cell[axis] for _, cell in cells}) > 1] or axes[-1:]
    rows: dict[str, dict[str, View]] = {}
    for key, cell in cells:
        name = clip(escape_line("/".join(cell[axis] for axis in differing)), NAME_COLUMNS)
        rows.setdefault(name, {})[key] = cell
    return rows


def _tell_cell(cell: View | None) -> str:
    """How many runs of a cell succeeded, and of few a sign for each run: together these are all runs."""
    if cell is None:
        return "-"
    signs = [sign(word) for word in cell["words"]] if cell["runs"] <= 6 else []
    between = " " if any(len(each) > 1 for each in signs) else ""
    return f"{cell['succeeded']}/{cell['runs']} {between.join(signs)}".rstrip()


def _figures(record: View) -> Iterator[list[str]]:
    """What is known of each group in sum, the most telling first."""
    from sessionrun.client.reading.comparison import list_figures

    groups = record["groups"]
    yield ["solved", *(f"{group['succeeded']}/{group['runs']}" for group in groups)]
    rates = [group["pass_at"].get("1") for group in groups]
    yield ["pass@1", *("-" if rate is None else f"{rate['estimate']:.0%}" for rate in rates)]
    yield ["  95 % interval", *("-" if rate is None else _interval(rate) for rate in rates)]
    behind = [group["behind"] for group in groups]
    if any(behind):
        yield ["behind", *("-" if found is None else f"{100 * found['estimate']:.0f} pts" for found in behind)]
        yield ["  95 % interval", *("-" if found is None else _interval(found) for found in behind)]
    yield from ([name, *texts] for name, texts in list_figures(record))


def _interval(found: View) -> str:
    return f"{100 * found['low']:.0f} to {100 * found['high']:.0f}"


# --- in another form ---


def _choose_fields(view: View, tasks: Sequence[View], fields: Sequence[str]) -> Answer:
    from sessionrun.client.reading.digest import choose_fields

    record = choose_fields(view, tasks, fields)
    lines = [escape_line(f"{key}: {tell_value(value)}") for key, value in record.items() if key in fields]
    columns = [key for key in fields if any(key in task for task in view["tasks"])]
    rows = [[tell_value(task.get(key)) for key in columns] for task in tasks]
    table = table_lines([key.upper() for key in columns], rows) if columns and rows else ()
    return Answer(record, chain(lines, table))


_SEED_WORDS: Final = {"succeeded": "completed", "landed": "completed", "waiting": "pending"}
_SEED_SIGNS: Final = {
    **dict.fromkeys(("completed", "changed_nothing"), "done"),
    **dict.fromkeys(("running", "pending", "held"), "open"),
}


def _seed_lines(view: View, tasks: Sequence[View]) -> list[str]:
    """The block of ``--status``, for programs that read it: with the words and signs of an older tool."""
    lines = [
        f"Session: {view['session_id']}",
        f"Status: {view['status']}",
        f"Started: {local_time(view['started_at'])}",
        f"Tasks: {view['completed']}/{view['total']}",
        "",
        "Tasks:",
    ]
    for task in tasks:
        word = str(_SEED_WORDS.get(task["word"], task["word"]))
        shown = f"Task {task['num']} (ID: {escape(task['id'])}): {word.replace('_', ' ')}"
        lines.append(f"  {sign(_SEED_SIGNS.get(word, 'wrong'))} {shown}")
    return lines
