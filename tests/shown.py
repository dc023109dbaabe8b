"""What is shown of sessions: views that a test writes by hand, and texts that are kept word for word."""

from __future__ import annotations

import os
import re
from pathlib import Path
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


def check_golden(name: str, text: str) -> None:
    """The text is the one that is kept; GOLDEN=write renews the file."""
    golden = Path(__file__).parent / "data" / "looks" / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()


def mask(text: str, session_id: str) -> str:
    """What two runs print alike: without the session's id, moments, and how long something took."""
    text = text.replace(session_id, "SESSION").replace(session_id[:8], "ID")
    text = re.sub(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r" *\b(\d+\.\d+|\d+ m \d\d) s\b", " N s", text)
    return re.sub(r" +TOOK", " TOOK", text)
