"""Views that a test writes by hand, with the words, counts and state that a session's own would have."""

from __future__ import annotations

from typing import Any

from sessionrun.engine.status import recount
from sessionrun.model.words import choose_word

_TASK: dict[str, Any] = {
    **dict.fromkeys(("outcome", "reason_class", "held_until", "mends", "landing", "diff_stat")),
    "labels": {},
    "needs": [],
}


def with_word(task: dict[str, Any]) -> dict[str, Any]:
    """A task with its word, and with all that the state of its session depends on."""
    task = _TASK | task
    word = choose_word(
        task["outcome"],
        runs=task["status"] == "running",
        held=task["reason_class"] == "held",
        landing=(task["landing"] or {}).get("status"),
        changed=task["diff_stat"] is None or task["diff_stat"]["files"] > 0,
    )
    return task | {"word": word}


def with_state(view: dict[str, Any]) -> dict[str, Any]:
    """A view with its state and counts, and its tasks with their words."""
    nothing = dict.fromkeys(("feed", "usage", "budget", "ended_at")) | {"stopped": [], "no_contact": []}
    view = {**nothing, "status": "running", **view}
    return recount({**view, "tasks": [with_word(task) for task in view["tasks"]]})
