"""Gathers what `explanation` explains from: a session's logs, its processes and the time."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from typing import Any

from sessionrun.client.explaining.explanation import Grounds, explain_session, explain_tasks, find_holders
from sessionrun.client.lookup import choose_tasks
from sessionrun.client.reading.landed import count_landings
from sessionrun.client.reading.telling import tell
from sessionrun.client.reading.view import load_history
from sessionrun.model.times import format_time
from sessionrun.runtime.history import find_damage
from sessionrun.store import damage, processes
from sessionrun.store.journal import read_log
from sessionrun.store.ledger import LedgerJob, fold_ledger
from sessionrun.store.networks import read_denials
from sessionrun.store.session import SessionDir


def explain(session: SessionDir, wanted: Sequence[str] = (), grounds: Grounds | None = None) -> dict[str, Any]:
    """Why a session's tasks do not run, by cause; for `wanted` tasks their whole story instead.

    The answer is the object of ``explain --json``, made from the grounds as they are now, or as they are given.

    Raises:
        InputError: a name that is not a task of the session.
        StoreError: the session's files are damaged.
    """
    grounds = grounds or gather(session)
    shown = grounds.view["tasks"]
    facts = explain_session(grounds) | {"landings": count_landings(shown)}
    if wanted:
        chosen = choose_tasks({**grounds.view, "tasks": shown}, wanted)
        facts["tasks"] = [
            {**facts_of, "telling": tell(session, task), **{key: task[key] for key in ("landing",) if key in task}}
            for facts_of, task in zip(explain_tasks(grounds, chosen), chosen, strict=True)
        ]
    chosen_ids = {task["id"] for task in facts["tasks"]} if wanted else set(grounds.state.tasks)
    return {**facts, "denied": _find_denied(session, grounds, chosen_ids)}


def _find_denied(session: SessionDir, grounds: Grounds, chosen: Container[str]) -> list[dict[str, Any]]:
    """The hosts that jobs of the chosen tasks were denied."""
    tasks = [task.spec for task in grounds.state.tasks.values() if task.spec.id in chosen]
    return [
        {
            "task": task.id,
            **host,
            "first_at": format_time(host["first_at"]),
            "last_at": format_time(host["last_at"]),
        }
        for task in tasks
        if task.sandbox is not None and task.sandbox.network == "proxy"
        for host in read_denials(session.path, task.id)
    ]


def describe_rest(facts: dict[str, Any]) -> str:
    """A line on what can still be done with a session that is damaged and cannot go on."""
    return damage.describe_rest(str(facts["session_id"]))


def gather(session: SessionDir) -> Grounds:
    """Gather all that an explanation is made from, as it is now.

    Raises:
        StoreError: the session's files are damaged.
    """
    view, state, entries = load_history(session)
    ledger = fold_ledger(read_log(session.ledger_path).payloads)

    def lives(job: LedgerJob) -> bool | None:
        return processes.lives(job.boot_id, job.pid_ns, job.pid, job.started)

    return Grounds(view, state, entries, ledger, time.time(), lives, find_holders(state), find_damage(session))
