"""The table of phases is total and says what it should."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from sessionrun.engine.transitions import (
    JUDGEMENTS,
    TASK_PHASES,
    TRANSITIONS,
    WHEN_AGAIN_ENDS,
    Judgement,
    judge_stopped,
)
from sessionrun.model.events import VERDICTS, Stopping, Timer, Verdict
from sessionrun.model.keys import PHASES, Phase
from sessionrun.model.reasons import LEFT_RUNNING


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
