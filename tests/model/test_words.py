"""One function decides the word of a task, one the state, the result and the counts of a session; and plain text.

What people are told, beside what the golden screens show: heads, reasons, ids, times.  Time spans as people write
them: one reading wherever one may be said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import Command
from shown import with_state
from test_dialects import load, one, only
from test_leftovers import left, make_older, reseal

from sessionrun.cli.options import Age, Duration, Since
from sessionrun.input.config import load_config
from sessionrun.model import wording
from sessionrun.model.units import MAX_DURATION_S, parse_age, parse_duration
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


BEGAN = "2026-01-02T03:00:00.000Z"
NOW = 1767322804.0
"""4 seconds after `BEGAN`."""


def failed(name: str, reason: str | None = None, outcome: str = "failed", **facts: Any) -> dict[str, Any]:
    kind = reason.partition(":")[0] if reason else None
    return ended(name, outcome, reason=reason, reason_class=kind, **facts)


def skipped(name: str, *needs: str, why: str) -> dict[str, Any]:
    return failed(name, f"need: {why!r} did not succeed", "skipped", needs=list(needs))


def make_view(*tasks: dict[str, Any], **facts: Any) -> dict[str, Any]:
    view: dict[str, Any] = {"session_id": "0d6e3015-0000", "name": "night", "started_at": BEGAN}
    return with_state({**view, "tasks": list(tasks), **facts})


def why(task: dict[str, Any], *others: dict[str, Any]) -> str:
    view = make_view(task, *others)
    return wording.tell_reason(view["tasks"][0], wording.name_tasks(view), NOW)


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
    assert why(failed("a", reason)) == told


def test_work_that_did_not_land_says_why() -> None:
    gate = {"status": "bounced", "reason": "exit code 1 of: make", "reason_class": "gate_red"}
    assert why(failed("a", outcome="succeeded", landing=gate)) == "gate failed, exit code 1: make"
    landed = {"status": "landed", "reason": "already there by content", "reason_class": None}
    assert why(failed("a", outcome="succeeded", landing=landed)) == ""


def test_what_waits_does_not_say_why_its_last_attempt_failed() -> None:
    failed = {"reason": "exit_code: exit code 1", "reason_class": "exit_code"}
    assert why({"id": "a", "status": "pending", "outcome": None, **failed}) == ""


def test_what_was_skipped_names_the_first_cause() -> None:
    bad = failed("migrate", "exit_code: exit code 2")
    seed, e2e = skipped("seed", "migrate", why="migrate"), skipped("e2e", "lint", "seed", why="migrate")
    lint = failed("lint", outcome="succeeded")
    assert why(e2e, seed, bad, lint) == why(seed, bad) == "because migrate failed: exit code 2"
    cancelled = failed("migrate", "cancelled: on request", "cancelled")
    assert why(seed, cancelled) == "because migrate was cancelled"
    assert why(seed, failed("migrate", "lost: its end was not seen", "lost")).startswith(
        "because migrate was lost: "
    )
    again = make_view(seed, {"id": "migrate", "status": "running", "outcome": None})
    assert wording.follow_chain(again["tasks"][0], wording.name_tasks(again)) == []
    assert why(seed, again["tasks"][1]) == "'migrate' did not succeed"
    assert why(skipped("a", why="gone")) == "'gone' did not succeed"


def test_a_long_chain_of_skipped_tasks_is_not_walked_from_each_of_them() -> None:
    class Counted(dict[str, Any]):
        looks = 0

        def __getitem__(self, key: str) -> Any:
            self.looks += 1
            return super().__getitem__(key)

        def get(self, key: str, default: Any = None) -> Any:
            self.looks += 1
            return super().get(key, default)

    chain = [skipped(f"t{each}", f"t{each - 1}", why="t0") for each in range(1, 100)]
    view = make_view(failed("t0", "exit_code: exit code 2"), *chain)
    tasks = Counted(wording.name_tasks(view))
    assert {wording.tell_reason(task, tasks, NOW) for task in view["tasks"][1:]} == {
        "because t0 failed: exit code 2"
    }
    assert tasks.looks < 500


def test_ids_are_as_many_as_fit() -> None:
    tasks = [failed(f"t{num:03}") for num in range(300)]
    assert wording.list_ids(tasks, 30) == "t000 t001 t002 and 297 more"
    assert wording.list_ids(tasks[:1], 2) == "t000"


def test_the_head_names_state_tasks_and_time() -> None:
    view = make_view(failed("a"), status="completed", ended_at="2026-01-02T04:01:02.400Z", name=None)
    assert wording.tell_head(view, NOW) == "0d6e3015: ended, 1 task, 1 h 01 m"
    assert wording.tell_head({**view, "state": "stopped", "stopped": ["keeper"]}, NOW).startswith(
        "0d6e3015: stopped (keeper stopped), "
    )
    held = {"id": "a", "status": "pending", "outcome": None, "reason": "held: it", "reason_class": "held"}
    view = make_view({**held, "held_until": "2026-01-02T03:00:34.000Z"}, name=" two\nlines ")
    assert wording.tell_head(view, NOW).startswith("two lines (0d6e3015): held until ")
    assert " (in 30 s), 1 task, 4.0 s" in wording.tell_head(view, NOW)


def test_counts_in_little_room_keep_what_needs_a_look() -> None:
    counts = {"landed": 4, "succeeded": 120, "bounced": 1, "failed": 2, "held": 3, "running": 0}
    assert wording.fit_counts(counts, 80) == "4 landed, 120 succeeded, 1 bounced, 2 failed, 3 held"
    assert wording.fit_counts(counts, 30) == "1 bounced, 2 failed, 3 held"
    assert wording.fit_counts({"succeeded": 100_000}, 12) == "100000 su..."


@pytest.mark.parametrize(("seconds", "told"), [(59.94, "59.9 s"), (59.99, "1 m 00 s"), (7500, "2 h 05 m")])
def test_spans(seconds: float, told: str) -> None:
    assert wording.tell_span(seconds) == told


def test_a_day_is_named_if_it_is_not_today() -> None:
    assert wording.tell_until("2026-01-02T03:01:04.000Z", NOW).count("-") == 0
    assert wording.tell_until("2026-01-05T03:01:04.000Z", NOW).count("-") == 2


# --- times ---

GOOD = {
    "90": 90,
    " 90s ": 90,
    "0": 0,
    "0.5": 0.5,
    ".5s": 0.5,
    "10m": 600,
    "1h30m": 5400,
    "1.5h": 5400,
    "1h0.5m": 3630,
    "2d": 172800,
    "1w": 604800,
    "1w2d3h4m5s": 788645,
}
BAD = (
    *("", "s", "soon", "5 minutes", "-1", "1e3", "inf", "nan", "1h30", "30m1h", "1m1m", "1.5h30m", "1..5", "٣"),
    "9" * 41,
)


@pytest.mark.parametrize(("text", "seconds"), GOOD.items())
def test_everywhere_the_same(text: str, seconds: float, own_place: Path) -> None:
    (own_place / "sessionrun.toml").write_text(f'idle_timeout = "{text}"\n')
    config = load_config(own_place, {"SESSIONRUN_TIMEOUT": text})
    task = only(load(one(setup_timeout=text, idle_timeout=text)))
    assert parse_duration(text) == Duration().convert(text, None, None) == seconds
    assert config.values == {"idle_timeout_s": seconds, "timeout_s": seconds}
    assert task.setup_timeout_s == task.idle_timeout_s == (seconds or None)


@pytest.mark.parametrize("text", BAD)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="must be seconds or text such as"):
        parse_duration(text)
    for kind in (Duration(), Age(), Since()):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def test_an_age_says_its_unit() -> None:
    assert parse_age("0") == 0
    assert parse_age("200w") > MAX_DURATION_S
    with pytest.raises(ValueError, match="must lie between 0 and 100000000 seconds"):
        parse_duration("200w")
    with pytest.raises(ValueError, match=r"^7: say the unit: 7d, 7h or 7m$"):
        parse_age("7")


def test_readers_bear_times_in_the_future(sessionrun: Command) -> None:
    """The clock was set back after the session: nothing is old enough to go, and nothing fails."""
    session_id = sessionrun.finished({"prompts": ["exit 3"]})
    for at in ("2099-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z"):
        make_older(sessionrun, session_id, at)
        for name in ("status.json", "summary"):
            path = sessionrun.directory(session_id) / name
            record = json.loads(path.read_bytes())
            path.write_bytes(reseal({**record, "started_at": "2098-12-31T00:00:00.000Z"}))
        for words in ("status", "list", "overview", "results", "explain last", "wait"):
            done = sessionrun(*words.split())
            assert (done.returncode, done.stderr) == (1 if words == "wait" else 0, ""), words
        old = at.startswith("1970")
        done = sessionrun("clean", "--older-than", "1s")
        assert done.returncode == 0
        assert left(sessionrun) == (set() if old else {session_id})
