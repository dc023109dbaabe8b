"""The tables of reason classes and of phases: nothing is emitted that they lack, and their rows fit together."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from typing import get_args

import pytest
from house.test_rooms import modules

from sessionrun.agents.markers import MARKERS
from sessionrun.engine.transitions import (
    JUDGEMENTS,
    TASK_PHASES,
    TRANSITIONS,
    WHEN_AGAIN_ENDS,
    Judgement,
    describe_stop,
    judge_stopped,
)
from sessionrun.model.events import VERDICTS, Stopping, Timer, Verdict
from sessionrun.model.keys import PHASES, Phase
from sessionrun.model.spec import Check, Limits, TaskSpec
from sessionrun.model.words import LEFT_RUNNING, REASONS, effect_of

CALLS = {"format_reason": 0, "Problem": 0, "Marker": 0, "_name_phase": 1, "decide_outcome": 3, "JobFinished": 2}
"""Functions that are given a reason class, and at which place."""

TABLES = {"_STATUS_CLASS", "_CLASSES", "_SUBTYPES", "_ENDINGS", "_PHASE_CLASSES", "_WORKSPACE_CLASSES"}
"""Tables whose values are reason classes."""


def strings(node: ast.AST | None) -> Iterator[str]:
    """The constant strings that an expression may come to."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (*strings(node.body), *strings(node.orelse))
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from strings(value)


def find_places(node: ast.AST) -> Iterator[ast.expr]:
    """Where in a call, an object of JSON or a table a reason class belongs."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        yield from node.args[CALLS[name] : CALLS[name] + 1] if name in CALLS else ()
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "reason_class")
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from (value for key, value in pairs if "reason_class" in strings(key))
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        yield from node.value.values if ast.unparse(target) in TABLES else ()


def test_the_code_emits_no_class_that_the_table_lacks() -> None:
    found: dict[str, str] = {}
    for module in modules().values():
        for node in module.nodes if module.path.parent.name != "input" else ():
            found.update((name, module.path.name) for place in find_places(node) for name in strings(place))
    assert {name: where for name, where in found.items() if name not in REASONS} == {}
    assert len(found) > 30  # they are seen


@pytest.mark.parametrize("stopping", ["cancelled", *get_args(Timer)])
@pytest.mark.parametrize("phase", ["prepare", "work", "release"])
def test_a_stopped_job_has_a_published_class(phase: Phase, stopping: Stopping) -> None:
    spec = TaskSpec(
        "a",
        ("x",),
        timeout_s=1.0,
        round_timeout_s=1.0,
        setup_timeout_s=1.0,
        check=Check(("true",), timeout_s=1.0),
        idle_timeout_s=1.0,
    )
    reason_class, reason = describe_stop(spec, Limits(workspace_timeout_s=1.0), phase, stopping)
    assert reason_class in REASONS
    assert reason.startswith(f"{reason_class}: ")


def test_effects() -> None:
    assert {name for name in REASONS if effect_of(name) == "limit"} == {"usage_limit"}
    assert {name for name in REASONS if effect_of(name) == "backoff"} == {"rate_limited", "overloaded"}
    assert effect_of(None) == effect_of("what nobody published") == effect_of("unknown") == "none"
    assert all(REASONS[name].goes_on for name in REASONS if effect_of(name) != "none"), "what was held goes on"
    assert not REASONS["context_full"].goes_on and not REASONS["unknown"].goes_on


def test_what_is_narrow_stands_above_what_is_wide() -> None:
    """A limit of the account answers with the status of haste: its phrases are looked for first."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(MARKERS):
        places.setdefault(row.reason_class, []).append(place)
    assert max(places["usage_limit"]) < min(place for place in places["rate_limited"] if place > 20)
    assert len({row.phrase for row in MARKERS}) == len(MARKERS)
    assert all(row.source for row in MARKERS)


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == set(product(TASK_PHASES, JUDGEMENTS, (True, False)))
    assert set(WHEN_AGAIN_ENDS) == set(TASK_PHASES)


def test_only_a_failed_round_looks_at_the_rounds() -> None:
    differs = [cell[:2] for cell in TRANSITIONS if TRANSITIONS[cell] != TRANSITIONS[cell[0], cell[1], True]]
    assert differs == [("work", "overdue"), ("check", "failed"), ("check", "overdue"), ("prove", "failed")]
    assert {TRANSITIONS[phase, "overdue", False] for phase in ("work", "check")} == {"timed_out"}


@pytest.mark.parametrize("phase", ["setup", "work"])
@pytest.mark.parametrize("verdict", ["lost", "interrupted"])
def test_what_may_have_changed_something_never_runs_again(phase: str, verdict: str) -> None:
    assert {target for cell, target in TRANSITIONS.items() if cell[:2] == (phase, verdict)} == {verdict}


def test_a_passed_job_leads_to_success_and_a_success_only_from_there() -> None:
    assert {cell[1] for cell, target in TRANSITIONS.items() if target == "succeeded"} == {"passed"}


STOPPED: dict[tuple[Phase, Stopping, Verdict], Judgement | None] = {
    # phase, stopping, the job's own verdict -> the verdict that counts (None: its own)
    ("work", "cancelled", "passed"): "cancelled",
    ("work", "cancelled", "failed"): "cancelled",
    ("work", "cancelled", "void"): "cancelled",
    ("work", "cancelled", "lost"): "cancelled",
    ("work", "timeout", "passed"): "timed_out",
    ("work", "timeout", "failed"): "timed_out",
    ("work", "timeout", "lost"): None,
    ("work", "idle_timeout", "passed"): "timed_out",
    ("work", "idle_timeout", "lost"): None,
    ("work", "round_timeout", "passed"): "overdue",
    ("work", "round_timeout", "failed"): "overdue",
    ("work", "round_timeout", "lost"): None,
    ("check", "round_timeout", "passed"): "overdue",
    ("check", "round_timeout", "interrupted"): None,
    ("check", "timeout", "failed"): "timed_out",
    ("check", "check_timeout", "passed"): "failed",
    ("check", "check_timeout", "interrupted"): None,
    ("land", "cancelled", "passed"): None,
    ("land", "cancelled", "lost"): None,
    ("land", "cancelled", "failed"): "cancelled",
    ("prepare", "cancelled", "passed"): "cancelled",
    ("prepare", "workspace_timeout", "passed"): None,
    ("prepare", "workspace_timeout", "lost"): "failed",
    ("release", "workspace_timeout", "lost"): "failed",
    ("release", "workspace_timeout", "passed"): None,
    ("release", "cancelled", "passed"): None,
    ("release", "cancelled", "lost"): "cancelled",
}


@pytest.mark.parametrize(("phase", "stopping", "verdict"), STOPPED)
def test_a_stopped_job_ended_for_that_reason(phase: Phase, stopping: Stopping, verdict: Verdict) -> None:
    assert judge_stopped(phase, stopping, verdict) == STOPPED[phase, stopping, verdict]


@pytest.mark.parametrize("stopping", ["cancelled", *get_args(Timer)])
def test_what_work_said_last_counts_more_than_its_time(stopping: Stopping) -> None:
    """That its time was up says less than what it left running, or the limit that it met."""
    own = {"timeout", "round_timeout", "idle_timeout", "silent_limit", "linger"}
    for reason_class in (LEFT_RUNNING, "usage_limit", "rate_limited"):
        assert (judge_stopped("work", stopping, "failed", reason_class) is None) == (stopping in own)


@pytest.mark.parametrize("stopping", [None, "cancelled", *get_args(Timer)])
def test_a_stop_never_turns_into_success(stopping: Stopping | None) -> None:
    verdicts = {judge_stopped(phase, stopping, verdict) for phase in PHASES for verdict in VERDICTS}
    assert not verdicts & {"passed", "lost", "interrupted", "void"}
