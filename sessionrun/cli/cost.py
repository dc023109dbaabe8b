"""`cost`: what sessions used up and cost, by task, model, agent, day or session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from sessionrun.cli.options import Answer, Since, flag, label_option, state_option, valued, verb
from sessionrun.cli.render import escape_line, short_time, table_lines
from sessionrun.client.lookup import LAST, Wanted, find_results_dir, find_sessions, load_many
from sessionrun.client.reading.view import load_view
from sessionrun.model.errors import InputError
from sessionrun.model.usage import (
    Shown,
    Usage,
    describe_cost,
    describe_usage,
    sum_usages,
    tell_unpriced,
    usages_by_agent,
)
from sessionrun.model.wording import SHORT_ID
from sessionrun.model.words import parse_time
from sessionrun.store.session import iterate_sessions

KEYS: Final = ("task", "model", "agent", "day", "session")


class Spent(NamedTuple):
    """What one task used of one model by one agent."""

    view: Shown
    task: Shown
    agent: str
    model: str
    used: Usage

    @property
    def at(self) -> str:
        """When the task ended or, of one that runs, began."""
        return str(self.task["ended_at"] or self.task["started_at"] or self.view["started_at"])

    def find_key(self, by: str) -> tuple[str, ...]:
        session = str(self.view["session_id"])
        if by == "task":
            return session, str(self.task["id"])
        keys = {"model": self.model, "agent": self.agent, "session": session, "day": short_time(self.at)[:10]}
        return (keys[by],)


@verb("cost")
@click.argument("session_ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--by", type=click.Choice(KEYS), help="One row for each.  [default: task; of several sessions, model]"
)
@valued("--since", Since(), "Only tasks that ended since then, or still run: 2026-11-30, 7d, 12h.")
@flag("--all everything", "All sessions of the results directory.")
@label_option
@state_option
def command(
    session_ids: tuple[str, ...],
    by: str | None,
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...] | None,
    since: float | None,
    everything: bool,
    results_dir: Path | None,
) -> Answer:
    """Show what sessions ID used up and cost: the newest if no ID is given, all with --since.

    A cost that begins with >= is a lower bound, one with ~ comes from the table of prices and not from the agent.
    """
    if everything and session_ids:
        raise InputError("--all takes no session ID")
    wanted = Wanted(labels, states or ())
    chooses = everything or since is not None or not wanted.is_empty
    if session_ids or not chooses:
        named = find_sessions(results_dir, session_ids or (LAST,), wanted)
        views: list[Shown] = [load_view(session) for session in named]
    else:  # the oldest first
        sessions = iterate_sessions(find_results_dir(results_dir).absolute())
        views = [*filter(wanted.takes, load_many(sessions, load_view)[::-1])]
    whole = [
        Spent(view, task, *used) for view in views for task in view["tasks"] for used in usages_by_agent(task)
    ]
    spent = [entry for entry in whole if since is None or parse_time(entry.at) >= since]
    by = by or ("task" if len(views) == 1 else "model")
    groups: dict[tuple[str, ...], list[Spent]] = {}
    for entry in spent:
        groups.setdefault(entry.find_key(by), []).append(entry)
    groups = groups if by == "task" else dict(sorted(groups.items()))
    none = "No agent has reported what it used."
    if not views and not wanted.is_empty:
        none = f"No session matches {escape_line(wanted.describe())}."
    lines = _list_lines(spent, by, groups) if spent else [none]
    unpriced = tell_unpriced(list({entry.find_key("task"): entry.task for entry in spent}.values()))
    aside = [f"sessionrun: warning: {escape_line(unpriced)}"] if unpriced else []
    return Answer(_record(views, spent, by, groups), lines, aside=aside)


def _record(
    views: list[Shown], spent: list[Spent], by: str, groups: dict[tuple[str, ...], list[Spent]]
) -> dict[str, Any]:
    names = ("session_id", "id") if by == "task" else ({"session": "session_id"}.get(by, by),)
    unpriced: dict[str, int] = {}
    for entry in spent:
        if entry.used.unpriced_jobs:
            unpriced[entry.model] = unpriced.get(entry.model, 0) + entry.used.unpriced_jobs
    return {
        "session_ids": [view["session_id"] for view in views],
        "by": by,
        "rows": [{**dict(zip(names, key, strict=True)), **_total(group)} for key, group in groups.items()],
        "total": _total(spent),
        "unpriced": unpriced,
    }


def _total(spent: list[Spent]) -> dict[str, Any]:
    used = sum_usages(entry.used for entry in spent) or Usage()
    unknown = [entry for entry in spent if entry.used.unpriced_jobs]
    return {
        "task_count": _count(spent),
        "unpriced_task_count": _count(unknown),
        "models": sorted({entry.model for entry in spent}),
        "input_tokens": used.input_tokens,
        "cached_input_tokens": used.cached_input_tokens,
        "output_tokens": used.output_tokens,
        "cost_usd": None if used.cost_usd is None else round(used.cost_usd, 9),
        "cost_source": used.cost_source,
        "cost_complete": not used.unpriced_jobs,
    }


def _count(spent: list[Spent]) -> int:
    return len({entry.find_key("task") for entry in spent})


def _list_lines(spent: list[Spent], by: str, groups: dict[tuple[str, ...], list[Spent]]) -> Iterator[str]:
    several = len({entry.view["session_id"] for entry in spent}) > 1
    heads = (("SESSION",) if several else ()) + ("TASK", "MODEL") if by == "task" else (by.upper(), "TASKS")
    rows = []
    for key, group in groups.items():
        used = sum_usages(entry.used for entry in group) or Usage()
        if by == "task":
            models = ", ".join(dict.fromkeys(entry.model for entry in group))
            names: tuple[object, ...] = (key[0][:SHORT_ID],) * several + (key[1], models)
        else:
            names = (key[0], _count(group))
        tokens = (used.input_tokens, used.cached_input_tokens, used.output_tokens)
        rows.append((*names, *("-" if count is None else f"{count:,}" for count in tokens), describe_cost(used)))
    total = sum_usages(entry.used for entry in spent)
    yield from table_lines((*heads, "INPUT", "CACHED", "OUTPUT", "COST"), rows)
    if total is not None:
        yield from ("", f"Total: {describe_usage(total)}")
