"""`status --by`: the figures of groups and cells, against counting all cases."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from sessionrun.client.reading.comparison import compare_tasks, estimate_pass, wilson


def task(model: str, name: str, outcome: str | None, sample: int = 1, **said: Any) -> dict[str, Any]:
    return {
        "id": f"{model}-{name}-{sample}",
        "labels": {"model": model, "task": name, "agent": "qwen", "sample": str(sample)},
        "status": "completed" if outcome else "running",
        "outcome": outcome,
        "model": "told by the agent",
        "agent": "qwen",
        "duration_s": None,
        "usage": None,
        "diff_stat": None,
        "check": None,
        **said,
    }


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


def test_groups_and_cells() -> None:
    usage = {"cost_usd": 0.5, "cost_source": "agent", "unpriced_jobs": 0}
    passed = {
        "duration_s": 2.0,
        "usage": usage,
        "diff_stat": {"files": 1, "insertions": 4, "deletions": 0},
        "check": {"passed": True, "rounds": 1},
    }
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
    assert first["diff"] == {"files": 1, "insertions": 4, "deletions": 0}
    assert first["pass_at"]["1"]["estimate"] == 0.75  # the mean of a half and, of the only run that counts, one
    assert first["pass_at"]["2"]["estimate"] == 1.0
    cell, other = first["cells"]
    assert (cell["task"], cell["pass_at"]["1"]["estimate"], cell["pass_at"]["2"]["estimate"]) == ("a", 0.5, 1.0)
    assert cell["pass_at"]["2"]["high"] == 1.0
    assert list(other["pass_at"]) == ["1"]
    assert (second["open"], second["pass_at"], second["duration_s"]) == (1, {}, None)
    assert [group["key"] for group in compare(tasks, "task")["groups"]] == ["a", "b"]


def test_without_labels_a_task_counts_by_what_it_is() -> None:
    bare = {**task("m", "a", "succeeded"), "labels": {}}
    assert [compare([bare], by)["groups"][0]["key"] for by in ("model", "task", "agent")] == [
        "told by the agent",
        "m-a-1",
        "qwen",
    ]
    assert compare([bare], "model")["groups"][0]["pass_at"] == {}


def test_a_usage_of_an_older_version_may_lack_the_source_of_its_cost() -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "cost_usd": 0.5}
    (group,) = compare([task("m", "t", "succeeded", usage=usage)], "task")["groups"]
    assert group["cells"][0]["cost_source"] == "agent"
