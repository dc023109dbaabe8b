"""The steps of the house: one without business does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionrun.client.config import Config
from sessionrun.client.planning.draft import Choice, Draft
from sessionrun.house import STEPS, Step, find_due, load
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options
from sessionrun.model.spec import SessionSpec, TaskSpec

OF_BUSINESSES = [step for step in STEPS["plan"] if step.business]


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    """Of a task that says nothing but its prompt."""
    tasks = (TaskSpec("a", ("true",)),)
    spec = SessionSpec("s", "2026-01-01T00:00:00Z", "prompts", "-p", str(tmp_path), "shell", {}, tasks)
    options, config = Options(), Config({})
    source = Source("-p", b"", str(tmp_path))
    return Draft(source, Plan(tasks), options, config, spec, Choice("shell", ""), None, tmp_path, preview=False)


@pytest.mark.parametrize("step", OF_BUSINESSES, ids=lambda step: step.function)
def test_a_step_without_business_does_nothing(step: Step, draft: Draft) -> None:
    """So the words by which a step is due only save its import."""
    assert load(step.function)(draft) == draft


def test_only_the_core_has_steps_for_a_task_that_says_nothing_else(draft: Draft) -> None:
    due = list(find_due("plan", draft.plan.tasks, draft, draft.options.given, {}, draft.plan, None))
    assert due == [load(step.function) for step in STEPS["plan"] if not (step.words or step.of_tasks)]
    assert not any(list(find_due(moment, draft.plan.tasks, draft.spec)) for moment in STEPS if moment != "plan")
