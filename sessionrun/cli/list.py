"""`list`: the sessions of the results directory, or all of them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import Answer, Count, flag, selector_options, valued, verb
from sessionrun.cli.render import (
    escape_line,
    is_seed_block,
    lay_out,
    short_time,
    table_lines,
    terminal_width,
    unversioned,
    wrap_line,
)
from sessionrun.client.lookup import Wanted, arrange, find_sessions, find_views
from sessionrun.client.reading.view import load_summary_view
from sessionrun.model.errors import InputError
from sessionrun.model.wording import SHORT_ID, clip, columns, fit_counts, name_session, tell_span, took_s
from sessionrun.model.words import STATES, WORDS, tell_counts

STATUSES: Final = ("running", "recovering", "completed", "cancelled", "interrupted")
COUNTED: Final = ("total", "completed", "running", "successful", "failed", "skipped")

View = Mapping[str, Any]


@verb("list")
@click.argument("session_ids", metavar="[ID]...", nargs=-1)
@selector_options
@valued("--limit", Count(1), "Only the newest N.")
@flag("--all everywhere", "Sessions of all results directories that you used.")
@flag("--totals", "Also how many sessions and tasks these are, and what they cost.")
def command(
    session_ids: tuple[str, ...],
    wanted: Wanted,
    limit: int | None,
    everywhere: bool,
    totals: bool,
    results_dir: Path | None,
) -> Answer:
    """List sessions, the newest first."""
    if everywhere and results_dir is not None:
        raise InputError("--all lists the sessions of all results directories: leave out --results-dir")
    if session_ids:
        views = [load_summary_view(session) for session in find_sessions(results_dir, session_ids, wanted)]
    else:
        views = find_views(results_dir, wanted, everywhere=everywhere)
    arranged = arrange(views[:limit])
    views = [view for _, view in arranged]
    record = {**(_count(views) if totals else {}), "sessions": [unversioned(view) for view in views]}
    if is_seed_block():
        return Answer(record, _seed_totals(views) if totals else _seed_table(views))
    if not views and not totals:
        none = "No sessions." if wanted.is_empty else f"No session matches {escape_line(wanted.describe())}."
        return Answer(record, [none])
    lines = _session_lines(arranged, everywhere=everywhere) if views else []
    lines += wrap_line(_tell_totals(views), "", terminal_width()) if totals else []
    return Answer(record, lines)


def _session_lines(arranged: Sequence[tuple[int, View]], *, everywhere: bool) -> list[str]:
    """The head of the table, and for each session its state, its name, how long it took and what came out."""
    views, now = [view for _, view in arranged], time.time()
    names = name_all(views)
    rows = [["STATE", "SESSION", "TOOK", *["DIRECTORY"] * everywhere]]
    for (depth, view), name in zip(arranged, names, strict=True):
        folder = [escape_line(os.path.dirname(view["results_dir"]))] * everywhere
        rows.append([_tell_state(view), "  " * depth + name, tell_span(took_s(view, now)), *folder])
    # some, however narrow the terminal is
    room = max(12, terminal_width() - max(map(columns, lay_out(rows, {2}))) - 2)
    outcomes = ["OUTCOME", *(fit_counts(view["counts"], room) for view in views)]
    lines = lay_out([[*row, outcome] for row, outcome in zip(rows, outcomes, strict=True)], {2})
    if any(view["no_contact"] for view in views):
        from sessionrun.cli.standing import contact_lines

        named = zip(views, names, strict=True)
        lines += [f"{name}: {line}" for view, name in named for line in contact_lines(view)]
    return lines


def _tell_state(view: View) -> str:
    """The state in one word, and which processes are stopped."""
    word = "recovering" if view["status"] == "recovering" else str(view["state"]).partition(",")[0]
    return f"{word} ({' and '.join(view['stopped'])} stopped)" if view["stopped"] else word


def name_all(views: Sequence[View]) -> list[str]:
    """What tells the sessions apart: names and, where several have one or have none, digits of their ids."""
    length = SHORT_ID
    ids = [view["session_id"] for view in views]
    while length < 36 and len({session_id[:length] for session_id in ids}) < len(ids):
        length += 1
    names = Counter(view["name"] for view in views)
    shown = []
    for view in views:
        digits = view["session_id"][:length]
        name = escape_line(name_session(view)) if view["name"] else digits
        shown.append(f"{name} ({digits})" if view["name"] and names[view["name"]] > 1 else name)
    return shown


def _count(views: Sequence[View]) -> dict[str, Any]:
    sessions = {status: sum(view["status"] == status for view in views) for status in STATUSES}
    states = {state: sum(view["state"] == state for view in views) for state in STATES}
    stopped = sum(bool(view["stopped"]) for view in views)
    return {
        "session_counts": {"total": len(views), **sessions, "stopped": stopped, "states": states},
        "task_counts": {
            **{key: sum(view[key] for view in views) for key in COUNTED},
            "counts": {word: sum(view["counts"][word] for view in views) for word in WORDS},
        },
    }


def _tell_totals(views: Sequence[View]) -> str:
    from sessionrun.model.usage import describe_cost, read_usage, sum_usages

    counts = _count(views)
    states = ", ".join(f"{count} {state}" for state, count in Counter(map(_tell_state, views)).items())
    words = tell_counts(counts["task_counts"]["counts"])
    used = sum_usages(read_usage(view["usage"]) for view in views if view["usage"])
    parts = [f"{len(views)} session{'s' * (len(views) != 1)}" + (f": {states}" if states else "")]
    parts += [f"{counts['task_counts']['total']} tasks: {words}"] if words else []
    return "; ".join([*parts, *([f"cost {describe_cost(used)}"] if used is not None else [])])


# --- the blocks of --list and --overview, for programs that read them ---


def _seed_table(views: Sequence[dict[str, Any]]) -> Iterable[str]:
    if not views:
        return ["No sessions."]
    rows = [
        (
            view["session_id"][:SHORT_ID],
            view["status"],
            f"{view['completed']}/{view['total']}",
            view["failed"] or "",
            clip(escape_line(view["agent"]), 10),
            short_time(view["started_at"]),
            clip(escape_line(view["name"] or ""), 9),
        )
        for view in views
    ]
    return table_lines(("ID", "STATUS", "TASKS", "FAILED", "AGENT", "STARTED", "NAME"), rows)


def _seed_totals(views: Sequence[View]) -> list[str]:
    sessions, tasks = _count(views).values()
    judged = tasks["successful"] + tasks["failed"]
    return [
        f"Sessions: {len(views)}",
        *(f"  {status}: {sessions[status]}" for status in STATUSES if sessions[status]),
        f"Tasks: {tasks['completed']}/{tasks['total']} completed",
        *(f"  {key}: {tasks[key]}" for key in ("running", "successful", "failed", "skipped")),
        *([f"Success rate: {100 * tasks['successful'] / judged:.0f}%"] if judged else []),
    ]
