"""The swebench dialect: instances, the choice among them, the options of the format, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.given import find_input
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options
from sessionrun.model.errors import InputError

ROOT = Path(__file__).parents[2]
PATCH = "diff --git a/tests/test_a.py b/tests/test_a.py\n--- a/tests/test_a.py\n+++ b/tests/test_a.py\n"
INSTANCE: dict[str, Any] = {
    "instance_id": "o__r-1",
    "repo": "o/r",
    "base_commit": "a" * 40,
    "problem_statement": "It is {broken}.",
    "hints_text": "a hint",
    "patch": "the fix",
    "test_patch": PATCH,
    "FAIL_TO_PASS": '["tests/test_a.py::test_b"]',
    "PASS_TO_PASS": ["tests/test_a.py::test_c"],
    "version": "1.0",
    "environment_setup_commit": "b" * 40,
    "created_at": "2024-01-01T00:00:00Z",
}


def read(entries: Any, options: Options | None = None, name: str = "i.jsonl") -> Plan:
    text = entries if isinstance(entries, str) else "\n".join(map(json.dumps, entries))
    source = Source(name, text.encode(), "/of/file", "/started")
    dialect, _ = choose_format(source, None)
    assert dialect == "swebench"
    return load_plan(dialect, source, options or Options(stamp="20260102-030405"))


def with_own(**own: Any) -> Options:
    return Options(own)


def many(count: int) -> list[dict[str, Any]]:
    return [{**INSTANCE, "instance_id": f"o__r-{number}"} for number in range(count)]


def ids(plan: Plan) -> list[str]:
    return [task.id for task in plan.tasks]


def test_the_agent_does_not_learn_the_fix_or_the_tests() -> None:
    plan = read([{**INSTANCE, "patch": "THE-FIX", "test_patch": PATCH + "THE-TESTS"}])
    (prompt,) = plan.tasks[0].prompts
    assert "It is {broken}." in prompt, "braces in the issue are text"
    assert "o/r at commit aaaa" in prompt
    for secret in ("THE-FIX", "THE-TESTS", "test_b", "test_c", "a hint"):
        assert secret not in prompt
    assert "THE-FIX" not in repr(plan.tasks) + repr(plan.exports)


@pytest.mark.parametrize(
    ("own", "chosen"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"sample": 2}, [0, 1]),
        ({"start": 4}, [4, 5]),
        ({"start": 1, "sample": 2}, [1, 2]),
        ({"sample": 100}, [0, 1, 2, 3, 4, 5]),
        ({"instance": ("o__r-3", "o__r-1")}, [1, 3]),
        ({"filter": "[24]$"}, [2, 4]),
        ({"filter": "r-", "start": 5}, [5]),
    ],
)
def test_which_instances(own: dict[str, Any], chosen: list[int]) -> None:
    assert ids(read(many(6), with_own(**own))) == [f"o__r-{number}" for number in chosen]


def test_shuffled_alike() -> None:
    first = ids(read(many(20), with_own(shuffle=7)))
    assert first == ids(read(many(20), with_own(shuffle=7))) != ids(read(many(20), with_own(shuffle=8)))
    assert sorted(first) == sorted(ids(read(many(20))))
    assert ids(read(many(20), with_own(shuffle=7, start=3, sample=4))) == first[3:7]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FAIL_TO_PASS", {"fail_to_pass": ["tests/test_a.py::test_b"]}),
        ("FAIL_TO_PASS", {"failToPass": ["tests/test_a.py::test_b"]}),
        ("FAIL_TO_PASS", {"FAIL_TO_PASS": "['tests/test_a.py::test_b']"}),
        ("base_commit", {"Base-Commit": "a" * 40}),
        ("test_patch", {"test_patch": PATCH.rstrip()}),
        ("test_patch", {"testPatch": PATCH.replace("\n", "\r\n")}),
        ("instance_id", {"Instance ID": "o__r-1"}),
    ],
)
def test_near_keys_and_spellings_are_read(old: str, new: dict[str, Any]) -> None:
    near = {**{key: value for key, value in INSTANCE.items() if key != old}, **new}
    assert read([near]) == read([INSTANCE])


def test_a_patch_to_lines_that_end_in_a_carriage_return_stays_as_it_is() -> None:
    patch = PATCH + "@@ -1 +1 @@\n-a\r\n+b\r\n"
    (task,) = read([{**INSTANCE, "test_patch": patch}]).tasks
    assert task.prove is not None and task.prove.hidden is not None and task.prove.hidden.patch == patch


def test_instances_without_tests_are_a_warning() -> None:
    bare = {"instance_id": "a", "repo": "./r", "problem_statement": "p", "test_patch": PATCH}
    (warning,) = read([INSTANCE, bare]).warnings
    assert '1 of 2 instances to run name no tests, such as "a"' in warning
    assert read([INSTANCE, bare], with_own(sample=1)).warnings == (), "those that do not run do not matter"


def test_instances_that_only_keep_what_passes_are_a_warning() -> None:
    (warning,) = read([INSTANCE, {**INSTANCE, "instance_id": "x", "FAIL_TO_PASS": []}]).warnings
    assert '1 of 2 instances to run name no test of FAIL_TO_PASS, such as "x"' in warning


def test_docker_by_a_variable(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other formats do not know it, and 0 asks for nothing."""
    Path("i.jsonl").write_text(json.dumps(INSTANCE))
    monkeypatch.setenv("SWEBENCH_USE_DOCKER", "1")
    assert plan_input(["true"], {"agent": "shell"}, preview=True)
    for value in ("0", ""):
        monkeypatch.setenv("SWEBENCH_USE_DOCKER", value)
        assert plan_input("i.jsonl", {"agent": "shell"}, preview=True)


def test_the_input_that_is_usual(own_place: Path) -> None:
    assert find_input("f", {}) == ("f", None)
    assert find_input(None, {"instances": "f"}) == ("f", "swebench")
    assert find_input(None, {}) == (None, None), "standard input"
    assert find_input("-", {"sample": 5, "dialect": "swebench"}) == ("-", "swebench")
    for options in ({"dialect": "swebench"}, {"sample": 5}):
        with pytest.raises(InputError, match=r"artifacts/instances.jsonl is not there: .*SWE-bench_Verified"):
            find_input(None, options)
    os.makedirs("artifacts")
    Path("artifacts/instances.jsonl").write_text("{}")
    assert find_input(None, {"sample": 5}) == ("artifacts/instances.jsonl", "swebench")
    with pytest.raises(InputError, match="both name the input"):
        find_input("f", {"instances": "g"})


def test_the_instances_of_the_example() -> None:
    text = (ROOT / "examples" / "swebench" / "instances.in.jsonl").read_text().replace("BASE_COMMIT", "c" * 40)
    plan = read(text)
    assert len(plan.tasks) == 3
    assert plan.warnings == ()
    for task in plan.tasks:
        assert task.prove is not None and task.prove.hidden is not None and task.prove.hidden.fail_to_pass
