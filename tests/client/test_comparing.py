"""`status --by`: the figures of groups and cells, against counting all cases, and the grid that shows them."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_looks import make_task

from sessionrun.cli.status import comparison_lines
from sessionrun.client.reading.comparison import (
    compare_tasks,
    correct_chances,
    estimate_difference,
    estimate_pass,
    wilson,
)
from sessionrun.model.words import AXES, is_matrix


def task(model: str, name: str, outcome: str | None, sample: int = 1, **said: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"id": f"{model}-{name}-{sample}", "model": "told by the agent", "agent": "qwen"}
    known |= {"labels": {"model": model, "task": name, "agent": "qwen", "sample": str(sample)}}
    known |= {"duration_s": None, "usage": None, "check": None, **said}
    return make_task(sample, "completed" if outcome else "running", outcome, **known)


def compare(tasks: list[dict[str, Any]], by: str) -> dict[str, Any]:
    return compare_tasks({"session_id": "s"}, tasks, by)


@pytest.mark.parametrize("runs", range(1, 7))
def test_pass_at_k_is_the_mean_over_all_choices_of_k_runs(runs: int) -> None:
    for successes in range(runs + 1):
        outcomes = [place < successes for place in range(runs)]
        for k in range(1, runs + 1):
            choices = list(combinations(outcomes, k))
            assert estimate_pass(runs, successes, k) == pytest.approx(sum(map(any, choices)) / len(choices))
        assert estimate_pass(runs, successes, runs + 1) is None


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    [(0.5, 10, 0.2366, 0.7634), (0.0, 10, 0.0, 0.2775), (1.0, 3, 0.4385, 1.0), (0.9, 50, 0.7864, 0.9565)],
)
def test_wilson_s_interval(share: float, count: int, low: float, high: float) -> None:
    assert list(wilson(share, count)) == pytest.approx([low, high], abs=5e-5)


MIXED = [1 / 3, 0, 2 / 3, -1 / 3, 0, 1, 0, 0, 1 / 3, 0, 1 / 3, 2 / 3]


@pytest.mark.parametrize(
    ("by_task", "samples", "expected"),
    [
        ([1, 0, 0, 1, 0, -1, 1, 0], 1, (0.25, -0.381972, 0.881972, 0.380713)),
        ([0] * 10, 1, (0, -0.168611, 0.168611, 1)),
        ([0] * 10, 3, (0, -0.097348, 0.097348, 1)),
        (MIXED, 3, (0.25, -0.003425, 0.503425, 0.052663)),
        ([1] * 8, 1, (1, 0.776564, 1, 0.000015)),
        ([1] * 20 + [0] * 18 + [-1] * 2, 1, (0.45, 0.255666, 0.644334, 0.000034)),
    ],
)
def test_differences_by_task(by_task: list[float], samples: int, expected: tuple[float, ...]) -> None:
    found = estimate_difference(by_task, samples)
    assert found and list(found.values()) == pytest.approx(expected, abs=5e-7)


def test_chances_together() -> None:
    assert correct_chances([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert (correct_chances([0.5, 0.9]), estimate_difference([1], 3)) == ([1.0, 1.0], None)


def test_groups_and_cells() -> None:
    usage = {"cost_usd": 0.5, "cost_source": "agent", "unpriced_jobs": 0}
    stat = {"files": 1, "insertions": 4, "deletions": 0}
    passed = {"duration_s": 2.0, "usage": usage, "diff_stat": stat, "check": {"passed": True, "rounds": 1}}
    red = {**passed, "duration_s": 4.0, "check": {"passed": False, "rounds": 1}}
    tasks = [
        task("m", "a", "succeeded", 1, **passed),
        task("m", "a", "failed", 2, **red),
        task("m", "b", "succeeded", 1, **passed),
        task("m", "b", "cancelled", 2),
        task("n", "a", None),
    ]
    record = compare(tasks, "model")
    first, second = record["groups"]
    assert (record["by"], record["samples"], first["key"], second["key"]) == ("model", 2, "m", "n")
    assert (first["runs"], first["succeeded"], first["failed"], first["open"]) == (4, 2, 1, 0)
    assert (first["duration_s"], first["cost_usd"], first["check"]) == (2.667, 1.5, {"passed": 2, "failed": 1})
    assert first["diff"] == stat
    assert first["pass_at"]["1"]["estimate"] == 0.75  # the mean of a half and, of the only run that counts, one
    assert first["pass_at"]["2"]["estimate"] == 1.0
    cell, other = first["cells"]
    assert (cell["task"], cell["pass_at"]["1"]["estimate"], cell["pass_at"]["2"]["estimate"]) == ("a", 0.5, 1.0)
    assert cell["pass_at"]["2"]["high"] == 1.0
    assert list(other["pass_at"]) == ["1"]
    assert (second["open"], second["pass_at"], second["duration_s"]) == (1, {}, None)
    assert (cell["words"], second["cells"][0]["words"]) == (["succeeded", "failed"], ["running"])
    assert first["cost_per_success"] is None, "of a run that was cancelled it is not known what it cost"
    assert [group["key"] for group in compare(tasks, "task")["groups"]] == ["a", "b"]


def test_intervals_count_tasks_whatever_else_differs_between_runs() -> None:
    tasks = [task(model, name, "succeeded") for model in "mn" for name in "abc"]
    rate = compare(tasks, "agent")["groups"][0]["pass_at"]["1"]
    assert rate["low"] == pytest.approx(wilson(1.0, 3)[0], abs=1e-6)


def test_without_labels_a_task_counts_by_what_it_is() -> None:
    bare = {**task("m", "a", "succeeded"), "labels": {}}
    keys = [compare([bare], by)["groups"][0]["key"] for by in ("model", "task", "agent")]
    assert keys == ["told by the agent", "m-a-1", "qwen"]
    assert not is_matrix([bare, bare]) and is_matrix([task("m", "a", None), task("n", "a", None)])


def runs_of(solved: dict[str, list[int]], samples: int = 3, **said: Any) -> list[dict[str, Any]]:
    """The runs of a matrix, given how many of each task an arm solves."""
    return [
        task(arm, f"t{place}", "succeeded" if sample <= count else "failed", sample, **said)
        for arm, counts in solved.items()
        for place, count in enumerate(counts)
        for sample in range(1, samples + 1)
    ]


def test_the_best_stands_first_and_the_others_are_measured_against_it_task_by_task() -> None:
    usage = {"cost_usd": 0.5, "cost_source": "agent", "unpriced_jobs": 0}
    solved = {"poor": [0] * 9, "near": [3] * 8 + [2], "good": [3] * 9}
    good, near, poor = compare(runs_of(solved, usage=usage), "model")["groups"]
    assert [group["key"] for group in (good, near, poor)] == ["good", "near", "poor"]
    assert good["behind"] is None and good["cost_per_success"] == 0.5
    assert (near["behind"]["estimate"], near["behind"]["verdict"]) == (0.037037, "not_told_apart")
    assert (poor["behind"]["estimate"], poor["behind"]["verdict"]) == (1.0, "worse")
    assert poor["cost_per_success"] is None
    few = compare(runs_of({"good": [3] * 7, "poor": [0] * 7}), "model")["groups"]
    assert (few[1]["behind"]["tasks"], few[1]["behind"]["verdict"]) == (7, "not_told_apart")


def test_several_comparisons_at_once_are_told_apart_later() -> None:
    arms = {"best": [3] * 12, "other": [1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3]}
    alone = compare(runs_of(arms), "model")["groups"][1]["behind"]
    (_, *others) = compare(runs_of({**arms, "third": arms["other"]}), "model")["groups"]
    assert others[0]["behind"]["p"] == pytest.approx(2 * alone["p"], abs=2e-6)
    assert others[0]["behind"]["low"] == alone["low"]


outcomes = st.sampled_from(["succeeded", "failed", "timed_out", "lost", "skipped", "cancelled", None])
runs = st.builds(task, st.sampled_from("mno"), st.sampled_from("abc"), outcomes, agent=st.sampled_from("xy"))


@given(st.lists(runs, min_size=1, max_size=40), st.sampled_from(AXES))
def test_cells_add_up_to_the_number_of_runs(tasks: list[dict[str, Any]], by: str) -> None:
    """In the record, and in the grid as it is read: of how many each cell is, and of how many each arm is."""
    record = compare(tasks, by)
    cells = [cell for group in record["groups"] for cell in group["cells"]]
    assert sum(cell["runs"] for cell in cells) == sum(len(cell["words"]) for cell in cells) == len(tasks)
    lines = comparison_lines(record, 1000, show_all=True)
    end = next(place for place, line in enumerate(lines) if line.startswith("solved "))
    assert lines[0].startswith(f"{len(tasks)} runs")
    for part in (lines[1:end], lines[end : end + 1]):
        assert sum(int(number) for line in part for number in re.findall(r"\d/(\d+)", line)) == len(tasks)


def test_of_many_rows_those_are_shown_that_tell_arms_apart() -> None:
    solved = {"m": [3] * 25, "n": [3] * 23 + [1, 0]}
    record = compare(runs_of(solved), "model")
    lines = comparison_lines(record, 80, show_all=False)
    assert [line.split()[0] for line in lines[1:4]] == ["t23", "t24", "solved"]
    assert "and 23 on which all are alike: --all shows each" in lines
    assert len(comparison_lines(record, 80, show_all=True)) == len(lines) + 22


def test_many_arms_are_rows() -> None:
    solved = {f"provider/a-model-{name}": [place] for place, name in enumerate("abcd")}
    head, *rows = comparison_lines(compare(runs_of(solved), "model"), 70, show_all=False)
    assert head.split()[:4] == ["12", "runs", "solved", "pass@1"] and max(map(len, (head, *rows))) <= 70
    best_first = [[f"provider/a-model-{name}", f"{3 - place}/3"] for place, name in enumerate("dcba")]
    assert [row.split()[:2] for row in rows] == best_first
