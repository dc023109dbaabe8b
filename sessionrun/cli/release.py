"""`release`: what was held on request may start again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sessionrun.cli.control import EXIT_TIMEOUT, NOT_TAKEN, control_options, count_words
from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import session_head
from sessionrun.cli.selecting import Done, act_on_each, make_wanted
from sessionrun.client.asking.control import release
from sessionrun.client.reading.selection import choose_sessions
from sessionrun.store.session import SessionDir


@click.command("release")
@control_options
@json_option
@results_dir_option
def command(
    words: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...] | None,
    since: float | None,
    timeout: float,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Let session ID, or only the given tasks, or several sessions, go on after `hold`.

    Without TASK every hold that was asked for ends, and that of a soft budget.  Holds that the machine made stay.
    """
    chosen = choose_sessions(results_dir, words, make_wanted(labels, states, since), only_open=True)

    def act(session: SessionDir) -> Done:
        taken, tasks_before, view, tasks = release(session, chosen.tasks, timeout_s=timeout)
        before, held = _held(tasks_before), _held(tasks)
        effect = count_words(((len(before - held), "released"), (len(held), "still held"))) or _describe_rest(view)
        line = f"{session_head(view)}: {effect if taken else NOT_TAKEN}"
        return Done({**view, "tasks": tasks}, line, EXIT_TIMEOUT if timeout and not taken else 0)

    return act_on_each(chosen, act, as_json=as_json)


def _held(tasks: Sequence[Mapping[str, Any]]) -> set[str]:
    return {task["id"] for task in tasks if task["reason_class"] == "held"}


def _describe_rest(view: Mapping[str, Any]) -> str:
    """What a release means where no task waited."""
    feed = view.get("feed") or {}
    return "takes tasks from its queue again" if feed.get("open") and not feed["held"] else "nothing is held"
