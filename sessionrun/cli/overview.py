"""`overview`: counts over all sessions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import click

from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import is_seed_block, print_json, session_word
from sessionrun.client.lookup import find_results_dir
from sessionrun.client.reading.listing import load_summaries
from sessionrun.model.errors import InputError
from sessionrun.model.words import STATES as SESSION_STATES
from sessionrun.model.words import WORDS

STATES: Final = ("running", "recovering", "completed", "cancelled", "interrupted")
SEED_KEYS: Final = ("running", "successful", "failed", "skipped")
"""What the block of ``--overview`` counts."""


@click.command("overview")
@click.option("--all", "everywhere", is_flag=True, help="Sessions of all results directories that you used.")
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Make a page: success, time and cost by agent and model.",
)
@json_option
@results_dir_option
def command(everywhere: bool, page: Path | None, as_json: bool, results_dir: Path | None) -> None:
    """Count the sessions and their tasks."""
    if page is not None:
        if as_json:
            raise InputError("overview: choose one of --html and --json")
        _make_page(page, find_results_dir(results_dir), everywhere=everywhere)
        return
    views = load_summaries(find_results_dir(results_dir), everywhere=everywhere)
    by_status = {state: sum(view["status"] == state for view in views) for state in STATES}
    keys = ("total", "completed", "running", "successful", "failed", "skipped")
    tasks = {key: sum(view[key] for view in views) for key in keys}
    words = {word: sum(view["counts"][word] for view in views) for word in WORDS}
    states = {state: sum(view["state"] == state for view in views) for state in SESSION_STATES}
    if as_json:
        stopped = sum(bool(view["stopped"]) for view in views)
        counts = {"total": len(views), **by_status, "stopped": stopped, "states": states}
        print_json({"session_counts": counts, "task_counts": {**tasks, "counts": words}})
        return
    click.echo(f"Sessions: {len(views)}")
    named = sorted((STATES.index(view["status"]), session_word(view)) for view in views)
    for name, count in Counter(name for _, name in named).items():
        click.echo(f"  {name}: {count}")
    click.echo(f"Tasks: {tasks['completed']}/{tasks['total']} completed")
    shown = (
        {key: tasks[key] for key in SEED_KEYS} if is_seed_block() else {key: n for key, n in words.items() if n}
    )
    for key, count in shown.items():
        click.echo(f"  {key.replace('_', ' ')}: {count}")
    good = words["landed"] + words["succeeded"]
    judged = good + words["bounced"] + tasks["failed"]  # what was cancelled, skipped or changed nothing is neither
    if judged:
        click.echo(f"Success rate: {100 * good / judged:.0f}%")


def _make_page(path: Path, results_dir: Path, *, everywhere: bool) -> None:
    from sessionrun.client.report.gathering import write_page
    from sessionrun.client.report.overview import gather_days, make_overview_page

    page = make_overview_page(gather_days(results_dir, everywhere=everywhere))
    content = page.encode("utf-8", "backslashreplace")
    write_page(path, content)
    click.echo(f"{path}: {len(content)} bytes", err=True)
