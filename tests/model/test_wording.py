"""What people are told in plain text, beside what the golden screens show: heads, reasons, ids, times."""

from __future__ import annotations

from typing import Any

import pytest
from shown import with_state

from sessionrun.model.wording import (
    find_cause,
    fit_counts,
    list_ids,
    name_tasks,
    tell_head,
    tell_reason,
    tell_span,
    tell_until,
)

BEGAN = "2026-01-02T03:00:00.000Z"
NOW = 1767322804.0
"""4 seconds after `BEGAN`."""


def ended(name: str, outcome: str = "failed", reason: str | None = None, **facts: Any) -> dict[str, Any]:
    kind = reason.partition(":")[0] if reason else None
    return {"id": name, "status": "completed", "outcome": outcome, "reason": reason, "reason_class": kind, **facts}


def skipped(name: str, *needs: str, why: str) -> dict[str, Any]:
    return ended(name, "skipped", f"need: {why!r} did not succeed", needs=list(needs))


def make_view(*tasks: dict[str, Any], **facts: Any) -> dict[str, Any]:
    view: dict[str, Any] = {"session_id": "0d6e3015-0000", "name": "night", "started_at": BEGAN}
    return with_state({**view, "tasks": list(tasks), **facts})


def why(task: dict[str, Any], *others: dict[str, Any]) -> str:
    view = make_view(task, *others)
    return tell_reason(view["tasks"][0], name_tasks(view), NOW)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (None, ""),
        ("check_failed: exit code 2 of: echo of: it", "check failed, exit code 2: echo of: it"),
        ("setup_timeout: not done after 3 s", "setup timeout, not done after 3 s"),
        ("usage_limit: 5 hours of: yours are over", "usage limit: 5 hours of: yours are over"),
        ("auth: 401\n\n  refused", "auth: 401 refused"),
        ("their_own: words of another agent", "their own: words of another agent"),
        ("start_failed: no such program", "start failed: no such program"),
    ],
)
def test_a_reason_says_it_without_its_class_if_it_can(reason: str | None, told: str) -> None:
    assert why(ended("a", reason=reason)) == told


def test_work_that_did_not_land_says_why() -> None:
    gate = {"status": "bounced", "reason": "exit code 1 of: make", "reason_class": "gate_red"}
    assert why(ended("a", "succeeded", landing=gate)) == "gate failed, exit code 1: make"
    landed = {"status": "landed", "reason": "already there by content", "reason_class": None}
    assert why(ended("a", "succeeded", landing=landed)) == ""


def test_what_waits_does_not_say_why_its_last_attempt_failed() -> None:
    failed = {"reason": "exit_code: exit code 1", "reason_class": "exit_code"}
    assert why({"id": "a", "status": "pending", "outcome": None, **failed}) == ""


def test_what_was_skipped_names_the_first_cause() -> None:
    bad = ended("migrate", reason="exit_code: exit code 2")
    seed, e2e = skipped("seed", "migrate", why="migrate"), skipped("e2e", "lint", "seed", why="migrate")
    lint = ended("lint", "succeeded")
    assert why(e2e, seed, bad, lint) == why(seed, bad) == "because migrate failed: exit code 2"
    cancelled = ended("migrate", "cancelled", "cancelled: on request")
    assert why(seed, cancelled) == "because migrate was cancelled"
    assert why(seed, ended("migrate", "lost", "lost: its end was not seen")).startswith(
        "because migrate was lost: "
    )
    again = make_view(seed, {"id": "migrate", "status": "running", "outcome": None})
    assert find_cause(again["tasks"][0], name_tasks(again)) is None
    assert why(seed, again["tasks"][1]) == "'migrate' did not succeed"
    assert why(skipped("a", why="gone")) == "'gone' did not succeed"


def test_ids_are_as_many_as_fit() -> None:
    tasks = [ended(f"t{num:03}") for num in range(300)]
    assert list_ids(tasks, 30) == "t000 t001 t002 and 297 more"
    assert list_ids(tasks[:1], 2) == "t000"


def test_the_head_names_state_tasks_and_time() -> None:
    view = make_view(ended("a"), status="completed", ended_at="2026-01-02T04:01:02.400Z", name=None)
    assert tell_head(view, NOW) == "0d6e3015: ended, 1 task, 1 h 01 m"
    assert tell_head({**view, "state": "stopped", "stopped": ["keeper"]}, NOW).startswith(
        "0d6e3015: stopped (keeper stopped), "
    )
    held = {"id": "a", "status": "pending", "outcome": None, "reason": "held: it", "reason_class": "held"}
    view = make_view({**held, "held_until": "2026-01-02T03:00:34.000Z"}, name=" two\nlines ")
    assert tell_head(view, NOW).startswith("two lines (0d6e3015): held until ")
    assert " (in 30 s), 1 task, 4.0 s" in tell_head(view, NOW)


def test_counts_in_little_room_keep_what_needs_a_look() -> None:
    counts = {"landed": 4, "succeeded": 120, "bounced": 1, "failed": 2, "held": 3, "running": 0}
    assert fit_counts(counts, 80) == "4 landed, 120 succeeded, 1 bounced, 2 failed, 3 held"
    assert fit_counts(counts, 30) == "1 bounced, 2 failed, 3 held"
    assert fit_counts({"succeeded": 100_000}, 12) == "100000 su..."


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(59.94, "59.9 s"), (59.99, "1 m 00 s"), (7500, "2 h 05 m")],
)
def test_spans(seconds: float, told: str) -> None:
    assert tell_span(seconds) == told


def test_a_day_is_named_if_it_is_not_today() -> None:
    assert tell_until("2026-01-02T03:01:04.000Z", NOW).count("-") == 0
    assert tell_until("2026-01-05T03:01:04.000Z", NOW).count("-") == 2
