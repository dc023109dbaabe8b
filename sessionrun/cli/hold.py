"""`hold`: nothing new of a session, or of some of its tasks, is started until it is released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sessionrun.cli.control import EXIT_TIMEOUT, NOT_TAKEN, control_options, count_words
from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import session_head
from sessionrun.cli.selecting import Done, act_on_each, make_wanted
from sessionrun.client.asking.control import hold
from sessionrun.client.reading.selection import choose_sessions
from sessionrun.store.session import SessionDir


@click.command("hold")
@control_options
@click.option("--reason", metavar="TEXT", help="What `status` shows as the reason.  [default: on request]")
@json_option
@results_dir_option
def command(
    words: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...] | None,
    since: float | None,
    timeout: float,
    reason: str | None,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Start nothing more of session ID, or of the given tasks, or of several sessions, until `release`.

    What runs goes on: its check is still made, its worktree released.
    """
    chosen = choose_sessions(results_dir, words, make_wanted(labels, states, since), only_open=True)

    def act(session: SessionDir) -> Done:
        taken, _, view, tasks = hold(session, chosen.tasks, reason=reason, timeout_s=timeout)
        effect = _count(tasks) or _describe_rest(view)
        line = f"{session_head(view)}: {effect if taken else NOT_TAKEN}"
        return Done({**view, "tasks": tasks}, line, EXIT_TIMEOUT if timeout and not taken else 0)

    return act_on_each(chosen, act, as_json=as_json)


def _count(tasks: Sequence[Mapping[str, Any]]) -> str:
    held, running = (sum(task["word"] == word for task in tasks) for word in ("held", "running"))
    counts = count_words(((held, "held"), (running, "running on")))
    return f"nothing held, {counts}" if running and not held else counts


def _describe_rest(view: Mapping[str, Any]) -> str:
    """What a hold means where no task waits."""
    feed = view.get("feed") or {}
    return "takes no more tasks from its queue" if feed.get("open") and feed["held"] else "nothing to hold"
