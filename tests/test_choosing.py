"""One of several attempts at the same task lands: ranking, choosing, and rounds of landings on real git."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from landings import CHECK, MAIN, Yard, make_yard

from sessionrun.client.reading.attempts import rank_attempts
from sessionrun.landing.batches import choose_size, count_probes, expect_runs, find_green_prefix
from sessionrun.landing.choice import choose_best, choose_union, leave_out, list_enemies
from sessionrun.landing.choosing import Chosen, How, land_chosen
from sessionrun.landing.forecast import forecast
from sessionrun.landing.records import Clash
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


def clash(*pairs: str) -> dict[str, set[str]]:
    return list_enemies([Clash((pair[:2], pair[2:]), ("f",)) for pair in pairs])


GROUPS = {"a": ["a1", "a2"], "b": ["b1", "b2"], "c": ["c1"]}


@pytest.mark.parametrize(
    ("clashes", "chosen"),
    [
        ((), ["a1", "b1", "c1"]),
        (("a1b1",), ["a2", "b1", "c1"]),
        (("a1c1", "b1c1"), ["a2", "b2", "c1"]),
        (("a1b1", "a1b2", "a2b1"), ["a2", "b2", "c1"]),
        (("a1b1", "a1b2", "a2b1", "a2b2"), ["a1", "c1"]),
    ],
)
def test_a_union_has_as_many_groups_as_there_can_be(clashes: Sequence[str], chosen: Sequence[str]) -> None:
    enemies = clash(*clashes)
    picked = choose_union(GROUPS, enemies)
    assert sorted(picked.values()) == sorted(chosen)
    assert not any(enemies.get(one, set()) & set(picked.values()) for one in picked.values())


def test_a_forced_swap_finds_what_greed_does_not() -> None:
    """`m1` has fewer conflicts for its worth than each of `p2` and `q2`, and keeps both of them out."""
    groups = {"m": ["m1"], "p": ["p0", "p1", "p2"], "q": ["q0", "q1", "q2"], "r": ["r1"], "s": ["s1"]}
    enemies = clash("m1p2", "m1q2", "p0p1", "p0r1", "p1r1", "q0s1", "q1s1", "p0s1", "p1s1", "q0r1", "q1r1")
    picked = choose_union(groups, enemies)
    assert picked == {"p": "p2", "q": "q2", "r": "r1", "s": "s1"}


def test_a_group_whose_attempts_are_left_out_is_left_out() -> None:
    assert leave_out(GROUPS, {"a1", "c1"}) == {"a": ["a2"], "b": ["b1", "b2"]}
    assert choose_best(GROUPS) == {"a": "a1", "b": "b1", "c": "c1"}


def test_the_expected_runs_of_gates() -> None:
    assert expect_runs(0, 5, 0.5) == 0
    assert expect_runs(20, 5, 0.0) == 4
    assert expect_runs(8, 8, 0.0) == 1
    assert expect_runs(1, 1, 1.0) == 3, "red, red again, and the target itself"
    assert expect_runs(3, 1, 1.0) == 7
    assert [count_probes(8, green) for green in (0, 5, 7)] == [4, 4, 4]


def search(batch: Sequence[bool]) -> tuple[int, int]:
    """The longest green prefix of entries that are red or not, and how often was asked."""
    asked = []

    def passes(some: int) -> bool:
        asked.append(some)
        return not any(batch[:some])

    return find_green_prefix(len(batch), passes), len(asked)


def test_the_expected_runs_are_the_mean_of_what_a_landing_does() -> None:
    dice, count, share, rounds = Random(7), 12, 0.25, 4000
    size = choose_size(0, 0)
    runs = 0
    for _ in range(rounds):
        left = [dice.random() < share for _ in range(count)]
        is_first = True
        while left:
            batch = left[:size]
            green, asked = search(batch)
            runs += asked
            if green < len(batch):
                runs += 1 + (is_first and (green == 0 or len(batch) > 1))
            left, is_first = left[green + 1 if green < len(batch) else green :], False
    assert expect_runs(count, size, share) == pytest.approx(runs / rounds, rel=0.02)


# --- on real git ---


def choose(yard: Yard, how: How, *gates: str, groups: dict[str, list[str]], dry_run: bool = False) -> Chosen:
    request = yard.request(*gates)
    return land_chosen(request, groups, how, forecast if dry_run else land, dry_run=dry_run)


def reasons(chosen: Chosen) -> dict[str, tuple[str, str]]:
    return {fate.task: (fate.status, fate.reason) for fate in chosen.report.fates}


@pytest.mark.slow
def test_the_next_best_is_tried_when_the_best_is_bounced(yard: Yard) -> None:
    before = yard.git("rev-parse", "main")
    yard.add("x1", {"x.txt": "BAD"})
    yard.add("x2", {"x.txt": "good"})
    yard.add("x3", {"x.txt": "also good"})
    yard.add("y1", {"y.txt": "1"})
    yard.add("y2", {"y.txt": "2"})
    groups = {"x": ["x1", "x2", "x3"], "y": ["y2", "y1"]}
    forecast_of = choose(yard, "best", CHECK, groups=groups, dry_run=True)
    assert yard.git("rev-parse", "main") == before
    assert {task: status for task, (status, _) in reasons(forecast_of).items()} == {
        **dict.fromkeys(("x1", "y2"), "ready"),
        **dict.fromkeys(("x2", "x3", "y1"), "none"),
    }
    chosen = choose(yard, "best", CHECK, groups=groups)
    told = reasons(chosen)
    assert (told["x1"][0], told["x2"], told["y2"]) == ("bounced", ("landed", ""), ("landed", ""))
    assert (told["x3"], told["y1"]) == (("none", "x2 landed"), ("none", "y2 landed"))
    assert chosen.tried == {"x1", "x2", "y2"}
    assert (chosen.report.old, chosen.report.new) == (before, yard.git("rev-parse", "main"))
    assert yard.examine(["x2", "y2"]) == []

    again = choose(yard, "best", CHECK, groups=groups)
    assert again.report.new == chosen.report.new, "a group that has landed one lands no other"
    assert reasons(again)["x1"] == ("none", "x2 landed") and again.tried == {"x2", "y2"}


def test_an_attempt_that_nobody_asked_for_but_that_landed_keeps_the_others_out(yard: Yard) -> None:
    first = yard.add("x1", {"x.txt": "1"}, wanted=False)
    yard.add("x2", {"x.txt": "2"})
    yard.git("update-ref", MAIN, first.tip)
    chosen = choose(yard, "best", groups={"x": ["x2", "x1"]})
    assert reasons(chosen) == {"x2": ("none", "x1 landed")} and not chosen.tried


@pytest.mark.slow
def test_of_a_group_nothing_is_left(yard: Yard) -> None:
    yard.add("x1", {"x.txt": "BAD"})
    yard.add("x2", {"x.txt": "BAD too"})
    chosen = choose(yard, "best", CHECK, groups={"x": ["x1", "x2"]})
    assert {status for status, _ in reasons(chosen).values()} == {"bounced"}
    assert chosen.report.old == chosen.report.new


def test_a_hold_ends_the_rounds(yard: Yard) -> None:
    yard.git("update-ref", MAIN, yard.commit({"a.txt": "BAD"}))
    yard.add("x1", {"x.txt": "1"})
    yard.add("x2", {"x.txt": "2"})
    chosen = choose(yard, "best", CHECK, groups={"x": ["x1", "x2"]})
    assert chosen.report.hold is not None and chosen.report.hold.reason_class == "target_red"
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
def test_a_union_lands_more_than_the_best_and_needs_fewer_rounds(yard: Yard) -> None:
    groups = add_crossing(yard)
    union = choose(yard, "union", CHECK, groups=groups, dry_run=True)
    assert [(one.tasks, one.files) for one in union.report.clashes] == [(("x1", "y1"), ("shared.txt",))]
    assert {task for task, (status, _) in reasons(union).items() if status == "ready"} == {"x2", "y1"}
    done = choose(yard, "union", CHECK, groups=groups)
    assert reasons(done)["x2"] == reasons(done)["y1"] == ("landed", "")
    assert done.report.gate_runs == 1 and done.tried == {"x2", "y1"}
    assert yard.examine(["x2", "y1"]) == []


@pytest.mark.slow
def test_of_the_best_that_conflict_the_next_best_is_tried(yard: Yard) -> None:
    groups = add_crossing(yard)
    for dry_run, word in ((True, "ready"), (False, "landed")):
        told = reasons(choose(yard, "best", CHECK, groups=groups, dry_run=dry_run))
        assert told["x1"][0] == word and told["x2"] == ("none", f"x1 {'would land' if dry_run else 'landed'}")
        assert (told["y1"][0], told["y2"][0]) == ("bounced", "bounced"), "x1 was first, and y2 clashes with main"


@pytest.mark.slow
def test_a_member_of_a_union_that_is_red_gives_way_to_the_next(yard: Yard) -> None:
    groups = add_crossing(yard)
    yard.entries[1] = replace(yard.entries[1], tip=yard.commit({"x.txt": "BAD"}, yard.entries[1].base))
    told = reasons(choose(yard, "union", CHECK, groups=groups))
    assert {task: status for task, (status, _) in told.items()} == {
        "x1": "bounced",
        "x2": "bounced",
        "y1": "landed",
        "y2": "none",
    }


# --- the forecast ---


def test_a_forecast_says_who_conflicts_with_whom(yard: Yard) -> None:
    yard.add("one", {"a.txt": "1\n", "new.txt": "1\n"})
    yard.add("two", {"a.txt": "2\n"})
    yard.add("three", {"new.txt": "3\n"})
    yard.add("folder", {"new.txt/inside.txt": "f\n"})
    yard.add("alone", {"alone.txt": "4\n"})
    user = yard.add("need", {"d/c.txt": "need\n"})
    yard.add("user", {"d/c.txt": "user\n"}, user.tip, needs=("need",))
    third = yard.add("both", {"both.txt": "b\n", "alone.txt": "4\n"}, yard.entries[1].tip, needs=("two",))
    report = forecast(yard.request(CHECK, batch=2))
    pairs = {clash.tasks for clash in report.clashes}
    assert pairs == {("one", "two"), ("one", "three"), ("one", "folder"), ("three", "folder")}
    files = {clash.tasks[1]: clash.files for clash in report.clashes if clash.tasks[0] == "one"}
    assert files == {"two": ("a.txt",), "three": ("new.txt",), "folder": ("new.txt",)}
    assert yard.statuses(report)[third.task] == "waiting", "its own work conflicts with nothing"
    assert yard.statuses(report) | {"two": "", "three": "", "folder": "", "both": ""} == {
        **dict.fromkeys(("one", "alone", "need", "user"), "ready"),
        **dict.fromkeys(("two", "three", "folder", "both"), ""),
    }
    assert report.gate_runs == 2 and report.expected_runs == pytest.approx(expect_runs(4, 2, 1 / 8), abs=0.05)


def test_too_many_pairs_are_not_compared(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionrun.landing.clashes.MAX_PAIRS", 1)
    for name in ("one", "two", "three"):
        yard.add(name, {"a.txt": name})
    report = forecast(yard.request())
    assert [clash.tasks for clash in report.clashes] == [("one", "two")]
    assert report.remarks == ("2 more pairs of tasks change the same files and were not compared",)
    assert (report.gate_runs, report.expected_runs) == (0, 0.0)
