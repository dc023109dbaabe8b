"""One of several attempts at the same task lands: ranking and choosing, and the forecast, on real git."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from landings import CHECK, MAIN, Yard, make_yard

from sessionrun.client.reading.comparison import rank_attempts
from sessionrun.landing.queue import forecast
from sessionrun.landing.records import Report
from sessionrun.landing.turn import land


@pytest.fixture
def yard(own_place: Path) -> Yard:
    """`main` is checked out nowhere."""
    yard = make_yard(own_place)
    yard.git("checkout", "-q", "--detach")
    return yard


def attempt(name: str, group: str = "x", **more: Any) -> dict[str, Any]:
    usual = {"id": name, "num": 1, "labels": {"task": group}, "check": None, "proof": None, "usage": None}
    return {**usual, "diff_stat": {"files": 1, "insertions": 5, "deletions": 0}, **more}


def stat(insertions: int, deletions: int = 0) -> dict[str, int]:
    return {"files": 1, "insertions": insertions, "deletions": deletions}


# --- without git ---


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"check": {"passed": True}, "diff_stat": stat(9)}, {}),
        ({"proof": "proved", "diff_stat": stat(9)}, {}),
        ({"diff_stat": stat(9)}, {"check": {"passed": False}}),
        ({"diff_stat": stat(9)}, {"check": {"passed": True}, "proof": "unproved"}),
        ({"diff_stat": stat(1, 2)}, {"diff_stat": stat(0, 4)}),
        ({"num": 2}, {"diff_stat": None}),
        ({"usage": {"cost_usd": 2.0}, "num": 2}, {"usage": {"cost_usd": 3.0}}),
        ({"usage": {"cost_usd": 9.0}, "num": 2}, {"usage": {"cost_usd": None}}),
        ({}, {"num": 2}),
    ],
)
def test_the_better_attempt_comes_first(better: Mapping[str, Any], worse: Mapping[str, Any]) -> None:
    tasks = [attempt("worse", **worse), attempt("better", **better)]
    assert rank_attempts(tasks) == rank_attempts(tasks[::-1]) == {"x": ["better", "worse"]}


def test_a_task_without_the_label_is_a_group_of_its_own() -> None:
    tasks = [attempt("a"), {**attempt("b"), "labels": {}}, attempt("c", "y"), attempt("d", num=2)]
    assert rank_attempts(tasks) == {"x": ["a", "d"], "b": ["b"], "y": ["c"]}


# --- on real git ---


def choose(yard: Yard, *gates: str, groups: dict[str, list[str]], dry_run: bool = False) -> Report:
    request = yard.request(*gates, groups=tuple(map(tuple, groups.values())))
    return forecast(request) if dry_run else land(request)


def reasons(report: Report) -> dict[str, tuple[str, str]]:
    return {fate.task: (fate.status, fate.reason) for fate in report.fates}


def test_an_attempt_that_nobody_asked_for_but_that_landed_keeps_the_others_out(yard: Yard) -> None:
    first = yard.add("x1", {"x.txt": "1"}, wanted=False)
    yard.add("x2", {"x.txt": "2"})
    yard.git("update-ref", MAIN, first.tip)
    chosen = choose(yard, groups={"x": ["x2", "x1"]})
    assert reasons(chosen) == {"x2": ("none", "x1 landed")}


def test_a_hold_ends_the_choice(yard: Yard) -> None:
    yard.git("update-ref", MAIN, yard.commit({"a.txt": "BAD"}))
    yard.add("x1", {"x.txt": "1"})
    yard.add("x2", {"x.txt": "2"})
    chosen = choose(yard, CHECK, groups={"x": ["x1", "x2"]})
    assert chosen.hold is not None and chosen.hold.reason_class == "target_red"
    told = reasons(chosen)
    assert (told["x1"][0], told["x2"]) == ("held", ("none", "x1 was chosen, and is held"))


def add_crossing(yard: Yard) -> dict[str, list[str]]:
    """The best attempts at `x` and `y` conflict; the second best at `y` conflicts with `main`."""
    yard.add("x1", {"shared.txt": "x1\n"})
    yard.add("x2", {"x.txt": "x2\n"})
    yard.add("y1", {"shared.txt": "y1\n"})
    yard.add("y2", {"b.txt": "y2\n"})
    yard.git("update-ref", MAIN, yard.commit({"b.txt": "moved\n"}))
    return {"x": ["x1", "x2"], "y": ["y1", "y2"]}


@pytest.mark.slow
def test_of_the_best_that_conflict_the_next_best_is_tried(yard: Yard) -> None:
    groups = add_crossing(yard)
    for dry_run, word in ((True, "ready"), (False, "landed")):
        told = reasons(choose(yard, CHECK, groups=groups, dry_run=dry_run))
        assert told["x1"][0] == word and told["x2"] == ("none", f"x1 {'would land' if dry_run else 'landed'}")
        assert (told["y1"][0], told["y2"][0]) == ("bounced", "bounced"), "x1 was first, and y2 clashes with main"


# --- the forecast ---


def test_a_forecast_says_what_would_land_and_what_is_in_the_way(yard: Yard) -> None:
    yard.add("one", {"a.txt": "1\n", "new.txt": "1\n"})
    yard.add("two", {"a.txt": "2\n"})
    yard.add("three", {"new.txt": "3\n"})
    yard.add("alone", {"alone.txt": "4\n"})
    need = yard.add("need", {"d/c.txt": "need\n"})
    yard.add("user", {"d/c.txt": "user\n"}, need.tip, needs=("need",))
    yard.add("both", {"both.txt": "b\n"}, yard.entries[1].tip, needs=("two",))
    report = forecast(yard.request(CHECK, batch=2))
    assert yard.statuses(report) == {
        **dict.fromkeys(("one", "alone", "need", "user"), "ready"),
        **dict.fromkeys(("two", "three"), "bounced"),
        "both": "waiting",
    }
    told = {fate.task: (fate.files, fate.against) for fate in report.fates}
    assert (told["two"], told["three"]) == ((("a.txt",), ("one",)), (("new.txt",), ("one",)))
