"""One function decides the word of a task, and one the state, the result and the counts of a session."""

from __future__ import annotations

from typing import Any

import pytest
from shown import with_state

from sessionrun.model.words import WORDS, choose_word, tell_counts

NO_CHANGE = {"files": 0, "insertions": 0, "deletions": 0}


@pytest.mark.parametrize(
    ("outcome", "facts", "word"),
    [
        (None, {}, "waiting"),
        (None, {"held": True}, "held"),
        (None, {"held": True, "runs": True}, "running"),
        ("succeeded", {}, "succeeded"),
        ("succeeded", {"landing": "ready"}, "succeeded"),
        ("succeeded", {"landing": "landed"}, "landed"),
        ("succeeded", {"landing": "bounced"}, "bounced"),
        ("succeeded", {"landing": "held"}, "held"),
        ("succeeded", {"changed": False}, "changed_nothing"),
        ("failed", {"changed": False, "landing": "landed"}, "failed"),
        ("timed_out", {}, "timed_out"),
        ("interrupted", {}, "lost"),
        ("skipped", {"changed": False}, "skipped"),
        ("cancelled", {"held": True}, "cancelled"),
    ],
)
def test_the_word_of_a_task(outcome: str | None, facts: dict[str, Any], word: str) -> None:
    assert choose_word(outcome, **facts) == word


def task(name: str, status: str = "pending", **facts: Any) -> dict[str, Any]:
    return {"id": name, "status": status, **facts}


def ended(name: str, outcome: str = "succeeded", **facts: Any) -> dict[str, Any]:
    return task(name, "completed", outcome=outcome, **facts)


def held(name: str, until: str | None = None, **facts: Any) -> dict[str, Any]:
    return task(name, reason_class="held", held_until=until, **facts)


BOUNCED = ended("b", landing={"status": "bounced"})


@pytest.mark.parametrize(
    ("tasks", "state", "until"),
    [
        ([task("a"), task("b", "running")], "running", None),
        ([task("a", "running"), held("b")], "running, partly held", None),
        ([task("a"), held("b")], "running, partly held", None),
        ([ended("a"), held("b"), task("c", needs=["b"]), task("d", needs=["c"])], "held", None),
        ([held("a"), held("b", "2026-01-02"), held("c", "2026-01-01")], "held", "2026-01-01"),
        ([held("a"), ended("b", landing={"status": "ready"})], "running, partly held", None),
        ([ended("a", landing={"status": "held"}), task("b")], "running", None),
        ([], "running", None),
    ],
)
def test_the_state_of_a_session(tasks: list[dict[str, Any]], state: str, until: str | None) -> None:
    view = with_state({"tasks": tasks})
    assert (view["state"], view["held_until"], view["result"]) == (state, until, None)
    assert with_state({"tasks": tasks, "status": "interrupted"})["state"] == "stopped"


@pytest.mark.parametrize(
    ("tasks", "result"),
    [
        ([ended("a"), ended("b", diff_stat=NO_CHANGE), ended("c", landing={"status": "landed"})], "succeeded"),
        ([ended("a", "cancelled"), BOUNCED, ended("c", "timed_out")], "failed"),
        ([ended("a", "cancelled"), BOUNCED], "bounced"),
        ([ended("a", landing={"status": "held"})], "bounced"),
        ([ended("a"), ended("b", "cancelled"), ended("c", "skipped")], "cancelled"),
        ([ended("a", "interrupted")], "failed"),
        ([ended("a"), ended("m", "failed", mends="a")], "succeeded"),
        ([], "succeeded"),
    ],
)
def test_the_result_of_a_session(tasks: list[dict[str, Any]], result: str) -> None:
    view = with_state({"tasks": tasks, "ended_at": "now", "status": "completed"})
    assert (view["state"], view["result"]) == ("ended", result)


def test_of_a_task_of_the_queue_the_last_attempt_counts() -> None:
    tries = [ended("q-1", "failed", labels={"queue": "q"}), ended("q-2", labels={"queue": "q"})]
    view = {"tasks": tries, "ended_at": "now", "status": "completed"}
    assert (with_state(view)["result"], with_state({**view, "feed": {}})["result"]) == ("failed", "succeeded")


def test_counts_add_up_and_cancelled_is_not_failed() -> None:
    outcomes = ("succeeded", "failed", "timed_out", "lost", "interrupted", "skipped", "cancelled")
    tasks = [ended(name, name) for name in outcomes] + [held("h"), task("w"), task("r", "running"), BOUNCED]
    view = with_state({"tasks": tasks})
    assert list(view["counts"]) == list(WORDS) and sum(view["counts"].values()) == len(tasks)
    assert (view["successful"], view["failed"], view["skipped"], view["completed"]) == (2, 4, 1, 8)
    bad = "1 bounced, 1 failed, 1 timed out, 2 lost"
    assert tell_counts(view["counts"]) == (
        f"1 succeeded, {bad}, 1 skipped, 1 cancelled, 1 held, 1 running, 1 waiting"
    )
